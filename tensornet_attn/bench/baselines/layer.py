"""The base class of handwritten layers: weights by the names in the design's file, projections, and attention.

Softmax attention has three implementations: eager, scaled_dot_product_attention and flex_attention.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Reach = tuple[int, int]  # number of visible positions to the left and to the right of a query
Attend = Callable[..., Tensor]


def visible(n: int, m: int, causal: bool, reach: Reach | None, device: torch.device) -> Tensor | None:
    """The boolean mask [n, m] of visible keys, or None if all are visible. The last query is at the last key."""
    if not causal and reach is None:
        return None
    distance = torch.arange(m - n, m, device=device)[:, None] - torch.arange(m, device=device)
    keep = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return keep if reach is None else keep & (distance <= reach[0]) & (distance >= -reach[1])


def attention_map(scores: Tensor, causal: bool = False, reach: Reach | None = None) -> Tensor:
    """Softmax over the keys of scores [..., n, m]."""
    n, m = scores.shape[-2:]
    keep = visible(n, m, causal, reach, scores.device)
    return (scores if keep is None else scores.masked_fill(~keep, -torch.inf)).softmax(-1)


def eager(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, reach: Reach | None = None, bias: Any = None
) -> Tensor:
    """softmax(scale q k^T + bias) v of q [b h n d], k [b g m d], v [b g m e], where g divides h: [b h n e]."""
    k, v = (x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (scale * q) @ k.transpose(-2, -1)
    return attention_map(scores if bias is None else scores + bias, causal, reach) @ v


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, reach: Reach | None = None, bias: Any = None
) -> Tensor:
    """As `eager`, by F.scaled_dot_product_attention."""
    n, m, grouped = q.shape[-2], k.shape[-2], q.shape[1] != k.shape[1]
    if n == m and reach is None and bias is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    mask = visible(n, m, causal, reach, q.device)
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)


class Flex:
    """As `eager`, by a compiled flex_attention. Block masks are cached by length."""

    def __init__(self) -> None:
        from torch.nn.attention.flex_attention import flex_attention

        self._call = torch.compile(flex_attention, dynamic=False)
        self._masks: dict[tuple[int, int], Any] = {}

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        causal: bool = False,
        reach: Reach | None = None,
        bias: Any = None,
    ) -> Tensor:
        n, m = q.shape[-2], k.shape[-2]
        if (n, m) not in self._masks:
            self._masks[n, m] = block_mask(n, m, causal, reach, q.device)
        score = None
        if bias is not None:
            score = partial(_biased, bias.expand(q.shape[0], q.shape[1], n, m))
        grouped = q.shape[1] != k.shape[1]
        return self._call(q, k, v, score_mod=score, block_mask=self._masks[n, m], scale=scale, enable_gqa=grouped)


def _biased(bias: Tensor, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + bias[b, h, i, j]


def block_mask(n: int, m: int, causal: bool, reach: Reach | None, device: torch.device) -> Any:
    """`visible` as a block mask of flex_attention, or None if all keys are visible."""
    from torch.nn.attention.flex_attention import create_block_mask

    if not causal and reach is None:
        return None
    left, right = reach or (n + m, n + m)

    def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = i + (m - n) - j
        return (distance <= left) & (distance >= max(-right, 0 if causal else -right))

    # without compilation, it allocates n x m elements
    make = torch.compile(create_block_mask) if device.type == "cuda" else create_block_mask
    return make(keep, None, None, n, m, device=str(device))


class BaselineLayer(nn.Module):
    """A layer in plain PyTorch. `size` has the leg sizes and settings of the design by name.

    Weights are uninitialised; their values come from the state dict of the design, which has the same keys and shapes.
    Inputs are [batch, n, f]. `attend` is the implementation of softmax attention.
    """

    legs = ""  # names and legs of the weights of all variants
    mixed = (
        ""  # the reason why no single call of fused attention computes it, as the end of a sentence; empty if one does
    )
    linear = False  # whether memory is linear in n if not causal
    linear_causal = False  # whether memory is linear in n if causal

    def __init__(self, size: SimpleNamespace, causal: bool = False, attend: Attend = eager, **options: Any):
        super().__init__()
        self.size, self.causal, self.attend = size, causal, attend
        self.weights(self.legs)
        self.declare(**options)

    if TYPE_CHECKING:  # weights and modules are declared by name, in `legs` and by `setattr`
        declare: Callable[..., None]
        forward: Callable[..., Any]

        def __getattr__(self, name: str) -> Any: ...
    else:

        def declare(self, **options: Any) -> None:
            """Declares the parts that depend on the options of a variant."""

    def weights(self, legs: str) -> None:
        """Declares parameters by their legs: `weights("Wq[f h d] b[h]")`."""
        for name, weight_legs in re.findall(r"(\w+)\[([^]]*)\]", legs):
            setattr(self, name, nn.Parameter(torch.empty([getattr(self.size, leg) for leg in weight_legs.split()])))

    def qkv(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of x [b n f], each [b h n d]."""
        return tuple(heads(x, W) for W in (self.Wq, self.Wk, self.Wv))


def heads(x: Tensor, W: Tensor) -> Tensor:
    """x [b n f] times W [f h d], as [b h n d]."""
    return (x @ W.flatten(1)).unflatten(-1, W.shape[1:]).transpose(1, 2)


def out(o: Tensor, W: Tensor) -> Tensor:
    """The output projection W [h d f] of heads o [b h n d]: [b n f]."""
    return o.transpose(1, 2).flatten(2) @ W.flatten(0, 1)


def elu1(x: Tensor) -> Tensor:
    return nn.functional.elu(x) + 1


def chosen(gates: Tensor, k: int, by: Tensor | None = None) -> Tensor:
    """The k largest gates along the last dimension, ranked `by` another tensor if given; the others are zero."""
    places = (gates if by is None else by).topk(k, -1).indices
    return torch.zeros_like(gates).scatter(-1, places, gates.gather(-1, places))
