"""Tokens to rows of the residual stream: a table, a factor, positions, dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models.config import Config
from tensornet_attn.runtime.positions import sinusoid

Tensor = torch.Tensor


class Positions(nn.Module):
    """Adds positions, learned or sinusoid, where the model has them, and drops out."""

    def __init__(self, config: Config, length: int, **new: Any):
        super().__init__()
        self.kind, self.length = config.positions, length
        self.dropout = nn.Dropout(config.dropout)
        if self.kind == "learned":
            self.table = nn.Parameter(torch.zeros(length, config.width, **new))

    def forward(self, x: Tensor) -> Tensor:
        """x, and the result, [batch, n, width]. Raises InputError."""
        n = x.shape[1]
        if self.kind == "learned":
            if n > self.length:
                raise InputError(f"{n} positions given; the model has learned {self.length}.")
            x = x + self.table[:n]
        elif self.kind == "sinusoid":
            x = x + sinusoid(torch.arange(n, device=x.device), x.shape[2], x.dtype)
        return self.dropout(x)


def check_tokens(name: str, tokens: Tensor, key_mask: Tensor | None, mask_name: str = "key_mask") -> None:
    """[batch, n], integers, and a boolean mask of the same shape. Raises InputError."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise InputError(f"'{name}' is {_given(tokens)}; give [batch, n], torch.int64.")
    _check_mask(mask_name, key_mask, tokens.shape)


def check_numbers(name: str, numbers: Tensor, key_mask: Tensor | None, features: int) -> None:
    """[batch, n, features], floating point, and a boolean mask [batch, n]. Raises InputError."""
    right = isinstance(numbers, torch.Tensor) and numbers.dim() == 3 and numbers.shape[2] == features
    if not right or not numbers.is_floating_point():
        raise InputError(f"'{name}' is {_given(numbers)}; give [batch, n, {features}], torch.float32.")
    _check_mask("key_mask", key_mask, numbers.shape[:2])


def _check_mask(name: str, mask: Tensor | None, shape: torch.Size) -> None:
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.shape != shape:
        raise InputError(f"'{name}' is {_given(mask)}; give {list(shape)}, torch.bool, true = a token.")


def _given(value: object) -> str:
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
