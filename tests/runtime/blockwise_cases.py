"""Functions of a block of rows that tests call, and the same as plain code over all rows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tensornet_attn.runtime.blockwise import FUNCTIONS, GRADIENTS, Rows, block_function, blockwise
from tensornet_attn.runtime.blockwise_inside import causal_rows, drawn_rows, dropped_rows, noise_rows, relative_rows
from tensornet_attn.runtime.masks import causal_mask, visible
from tensornet_attn.runtime.positions import relative_to_key
from tensornet_attn.runtime.softmax import masked_softmax

F64 = torch.float64
SMALL = (2, 1)  # blocks of two rows, whatever the lengths
LENGTHS = [(1, 1), (1, 7), (7, 1), (7, 7), (8, 8), (3, 10), (10, 3)]
BATCHES = [(), (2,), (2, 3), (0,), (1, 1)]


def some(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, dtype=F64, generator=generator).to(dtype).requires_grad_()


def known_to_torch(tile: str) -> str:
    """A function of a block whose gradient is torch's."""
    function = FUNCTIONS[tile][0]
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]

    def gradients(rows: Rows, gradient: Tensor, wanted: set[str], *operands: Any) -> list[Tensor | None]:
        given = dict(zip(names, operands, strict=True))
        own = [name for name in names if name in wanted]
        y, pull = torch.func.vjp(
            lambda *some: function(rows, **given | dict(zip(own, some, strict=True))), *(given[name] for name in own)
        )
        gradient = gradient if gradient.shape == y.shape else gradient.sum(-2, keepdim=True)
        found = dict(zip(own, pull(gradient), strict=True))
        return [found.get(name) for name in names]

    GRADIENTS[tile] = gradients, names
    return tile


@known_to_torch
@block_function(rows=(0, -2, 0, 0, -2, 0), out=-2, legs=(0, 3, 3, 3, -1, 1))
def mixed_rows(
    rows: Rows, P: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, key_mask: Tensor | None
) -> Tensor:
    """Scores of heads g mixed to heads h: P [g h], q [g n d], k [g m d], v [h m e] -> [h n e]."""
    keep, bias = visible(None, mask, key_mask, len(rows.batch), 1)
    scores = torch.einsum("...gnm,gh->...hnm", q @ k.mT, P)
    return masked_softmax(scores, keep, bias) @ v


def mixed(*operands: Tensor, mask: Any = None, key_mask: Any = None, batch: Any = None, block: Any = SMALL) -> Tensor:
    """`mixed_rows` a block at a time."""
    q, k = operands[1:3]
    batch = tuple(q.shape[:-3]) if batch is None else batch
    return blockwise(mixed_rows, [*operands, mask, key_mask], q.shape[-2], k.shape[-2], batch, block)


def mixed_plain(P: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, key_mask: Any = None) -> Tensor:
    keep, bias = visible(None, mask, key_mask, q.ndim - 3, 1)
    return masked_softmax(torch.einsum("...gnm,gh->...hnm", q @ k.mT, P), keep, bias) @ v


def mixed_operands(n: int, m: int, batch: tuple[int, ...] = (2,), dtype: torch.dtype = F64) -> list[Tensor]:
    shapes = [(2, 3), (*batch, 2, n, 4), (*batch, 2, m, 4), (*batch, 3, m, 5)]
    return [some(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]


@known_to_torch
@block_function(rows=(-2, 0, 0, 0), spans=(0, 0, -1, 0), out=-2, keys=(0, -2, 0, 0), legs=(2, 2, 0, 0))
def relative_scores_rows(rows: Rows, q: Tensor, k: Tensor, far: Tensor, near: Tensor) -> Tensor:
    """Causal, with a table of all relative positions, far [d p], and one of those up to 2 away, near [5]."""
    scores = q @ k.mT + relative_rows(q @ far, rows) + relative_rows(near[None], rows, 2)
    return masked_softmax(scores, causal_rows(rows)) @ k


def relative(q: Tensor, k: Tensor, far: Tensor, near: Tensor, block: Any = SMALL) -> Tensor:
    return blockwise(relative_scores_rows, [q, k, far, near], q.shape[-2], k.shape[-2], tuple(q.shape[:-2]), block)


def relative_plain(q: Tensor, k: Tensor, far: Tensor, near: Tensor) -> Tensor:
    n, m = q.shape[-2], k.shape[-2]
    scores = q @ k.mT + relative_to_key(q @ far, n, m) + relative_to_key(near[None], n, m, 2)
    return masked_softmax(scores, causal_mask(n, m)) @ k


def relative_operands(n: int, m: int, batch: tuple[int, ...] = (2,)) -> list[Tensor]:
    return [some(*batch, n, 4), some(*batch, m, 4, seed=1), some(4, n + m - 1, seed=2), some(5, seed=3)]


@known_to_torch
@block_function(rows=(-2, 0, -2), out=-2, legs=(2, 2, 2))
def drawn_scores_rows(rows: Rows, q: Tensor, k: Tensor, noise: Tensor | None) -> Tensor:
    """Noise on the scores and dropout after the softmax, both drawn block by block."""
    shape = (*rows.batch, rows.at.shape[0], rows.m)
    scores = q @ k.mT + noise_rows(noise, shape, 0.5, rows.training, rows, q)
    weights = scores.softmax(-1)
    return dropped_rows(weights, drawn_rows(weights, float(rows.sizes[0]) / 4, rows)) @ k


def drawn(q: Tensor, k: Tensor, noise: Any = None, quarters: int = 1, training: bool = True) -> Tensor:
    """The same with a dropout of so many quarters."""
    call = (q.shape[-2], k.shape[-2], tuple(q.shape[:-2]), SMALL, training, training, (quarters,))
    return blockwise(drawn_scores_rows, [q, k, noise], *call)


def same(got: Tensor, want: Tensor, leaves: list[Tensor], near: float = 1e-10) -> None:
    """Equal values, and equal gradients by random weights."""
    torch.testing.assert_close(got, want, rtol=near, atol=near)
    by = torch.randn(want.shape, dtype=want.dtype, generator=torch.Generator().manual_seed(5))
    asked = [x for x in leaves if x.requires_grad]
    found = torch.autograd.grad(got, asked, by, allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad(want, asked, by, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found, wanted, rtol=near, atol=near)
    assert all(x.isfinite().all() for x in found)


def hidden(mask: Tensor) -> Tensor:
    """A float mask with entries of minus infinity."""
    return torch.where(mask > 1, -math.inf, mask)
