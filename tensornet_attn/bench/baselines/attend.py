"""Softmax attention in three ways: written out, by scaled_dot_product_attention, by flex_attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Reach = tuple[int, int]  # a query looks this far to the left and to the right
Attend = Callable[..., Tensor]


def visible(n: int, m: int, causal: bool, reach: Reach | None, device: torch.device) -> Tensor | None:
    """What a query may look at, boolean [n, m]; None for everything. The last query stands at the last key."""
    if not causal and reach is None:
        return None
    distance = torch.arange(m - n, m, device=device)[:, None] - torch.arange(m, device=device)
    keep = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return keep if reach is None else keep & (distance <= reach[0]) & (distance >= -reach[1])


def attention_map(scores: Tensor, causal: bool = False, reach: Reach | None = None) -> Tensor:
    """softmax over the keys of scores [..., n, m]."""
    keep = visible(*scores.shape[-2:], causal, reach, scores.device)
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
    """The same by F.scaled_dot_product_attention."""
    n, m, grouped = q.shape[-2], k.shape[-2], q.shape[1] != k.shape[1]
    if n == m and reach is None and bias is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    mask = visible(n, m, causal, reach, q.device)
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)


class Flex:
    """The same by flex_attention, compiled; its block masks are made once a length."""

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
    """flex_attention's own form of `visible`; None for everything."""
    from torch.nn.attention.flex_attention import create_block_mask

    if not causal and reach is None:
        return None
    left, right = reach or (n + m, n + m)

    def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = i + (m - n) - j
        return (distance <= left) & (distance >= max(-right, 0 if causal else -right))

    make = (
        torch.compile(create_block_mask) if device.type == "cuda" else create_block_mask
    )  # or n x m elements are made
    return make(keep, None, None, n, m, device=str(device))
