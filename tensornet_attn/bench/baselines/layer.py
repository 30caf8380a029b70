"""What hand-written layers share: weights by the names of the design's file, projections to heads and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tensornet_attn.bench.baselines.attend import Attend, eager

Tensor = torch.Tensor


class Layer(nn.Module):
    """A layer of plain PyTorch; `size` has every leg size and setting of the design by name.

    Weights are uninitialised: their values are loaded from a module of the design, whose state dict has the same keys
    and shapes. Inputs are [batch, n, f]. `attend` is how softmax attention is called, where a layer calls it.
    """

    mixed = ""  # why no single call of attention computes it, as the end of a sentence; empty: one does
    linear = False  # whether memory grows linearly with n, unless causal
    linear_causal = False  # whether it does where causal

    def __init__(self, size: SimpleNamespace, causal: bool = False, attend: Attend = eager, **options: Any):
        super().__init__()
        self.size, self.causal, self.attend = size, causal, attend
        self.declare(**options)

    def declare(self, **options: Any) -> None:
        """Declares the weights: none here. `options` tell variants of a family apart."""

    def weights(self, **legs: str) -> None:
        """`weights(Wq="f h d")`: parameters with these legs."""
        for name, own in legs.items():
            setattr(self, name, nn.Parameter(torch.empty([getattr(self.size, leg) for leg in own.split()])))


def heads(x: Tensor, W: Tensor) -> Tensor:
    """x [b n f] times W [f h d], as [b h n d]."""
    return (x @ W.flatten(1)).unflatten(-1, W.shape[1:]).transpose(1, 2)


def out(o: Tensor, W: Tensor) -> Tensor:
    """Heads side by side through W [h d f]: o [b h n d] to [b n f]."""
    return o.transpose(1, 2).flatten(2) @ W.flatten(0, 1)


def elu1(x: Tensor) -> Tensor:
    return nn.functional.elu(x) + 1


def chosen(gates: Tensor, k: int, by: Tensor | None = None) -> Tensor:
    """The k largest gates along the last dimension, or those largest `by` something else, zeros for the rest."""
    places = (gates if by is None else by).topk(k, -1).indices
    return torch.zeros_like(gates).scatter(-1, places, gates.gather(-1, places))
