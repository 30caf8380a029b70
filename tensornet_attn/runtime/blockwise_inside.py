"""Helpers inside functions of a block of query rows: positions, masks, relative positions and random numbers."""

import torch
from torch import Tensor

from tensornet_attn.runtime.blockwise import Rows, fitted
from tensornet_attn.runtime.masks import run_time_mask
from tensornet_attn.runtime.positions import from_table, relative_to_key


def keys_of(rows: Rows) -> Tensor:
    """The positions of the keys visible to the rows: [m], integers."""
    near = torch.arange(rows.begin, rows.begin + rows.m - rows.prefix, device=rows.at.device)
    return torch.cat((torch.arange(rows.prefix, device=near.device), near)) if rows.prefix else near


def distance_rows(rows: Rows) -> Tensor:
    """Query position minus key position: [block, m], integers."""
    return rows.at[:, None] - keys_of(rows)


def causal_rows(rows: Rows) -> Tensor:
    """True if the key is not later than the query: [block, m]."""
    return distance_rows(rows) >= 0


def band_rows(rows: Rows, width: int) -> Tensor:
    """True within `width` positions on either side: [block, m]."""
    return distance_rows(rows).abs() <= width


def window_rows(rows: Rows, left: int, right: int) -> Tensor:
    """True from `left` positions before the query to `right` after it: [block, m]."""
    ahead = distance_rows(rows)
    return (ahead <= left) & (ahead >= -right)


def seen_rows(rows: Rows, sees) -> Tensor:
    """True where `sees(query, key)` holds, a function of both positions: [block, m]."""
    return sees(rows.at[:, None], keys_of(rows)).expand(rows.at.shape[0], rows.m)


def relative_rows(x: Tensor, rows: Rows, reach: int | None = None) -> Tensor:
    """y[i, j] = x[i, position(i) - position(j)]: [..., block or 1, p] -> [..., block, m].

    p runs over the block + m - 1 relative positions of these rows, or from -reach to reach.
    """
    if reach is not None and x.device.type == "cpu" and x.shape[-2] == rows.at.shape[0]:
        return from_table(x, rows.at - rows.begin, rows.m, reach)
    if reach is not None:
        far = torch.arange(1 - rows.m, rows.at.shape[0], device=x.device) + rows.at[:1] - rows.begin
        x = x.index_select(-1, far.clamp(-reach, reach) + reach)
    return relative_to_key(x, rows.at.shape[0], rows.m)


def relative_rows_of_keys(x: Tensor, rows: Rows, reach: int) -> Tensor:
    """y[j, i] = x[j, position(i) - position(j)] for key j and row i: [..., m or 1, p] -> [..., m, block]."""
    index = (distance_rows(rows).clamp(-reach, reach) + reach).mT
    rest = x.shape[:-2]
    return x.expand(*rest, index.shape[0], x.shape[-1]).gather(-1, index.expand(*rest, *index.shape))


def drawn_rows(x: Tensor, probability: float, rows: Rows) -> Tensor | None:
    """The dropout factors of the entries of x, or None outside training: 0, or 1 / (1 - probability)."""
    if not rows.training:
        return None
    keep = torch.empty(x.shape, device=x.device).uniform_(generator=rows.random) >= probability
    return keep.to(x.dtype) * (0.0 if probability == 1 else 1 / (1 - probability))


def dropped_rows(x: Tensor, entries: Tensor | None) -> Tensor:
    """x times dropout factors, if there are any."""
    return x if entries is None else x * entries


def noise_rows(given: Tensor | None, shape: tuple, std: float, draw: bool, rows: Rows, like: Tensor) -> Tensor:
    """The given noise, else fresh noise times `std`, else zeros: [batch..., legs]."""
    if given is not None:
        return given
    if draw:
        drawn = torch.empty(shape, device=like.device, dtype=like.dtype)  # randn with a generator rejects traced sizes
        return std * drawn.normal_(generator=rows.random)
    return torch.zeros(shape, device=like.device, dtype=like.dtype)


def gradient_of(function, gradient: Tensor, x: Tensor, legs: tuple[int, int]) -> Tensor:
    """The gradient of x from that of function(x); both may lack batch dimensions.

    `legs`: the number of dimensions of function(x) and of x that are not batch dimensions.
    """
    last, own = legs
    batch = torch.broadcast_shapes(gradient.shape[: gradient.ndim - last], x.shape[: x.ndim - own])
    y, pull = torch.func.vjp(function, x.expand(*batch, *x.shape[x.ndim - own :]))
    return pull(gradient.expand(y.shape))[0]


def mask_gradient(gradient: Tensor, mask: Tensor, batch: int, others: int) -> Tensor:
    """The gradient of a run-time mask, from that of scores [batch..., others..., n, m]."""
    return fitted(gradient, run_time_mask(mask, batch, others)).reshape(mask.shape)


def spread_rows(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Expands the last dimensions of x to these sizes."""
    return x.expand(*x.shape[: -len(sizes)], *sizes)
