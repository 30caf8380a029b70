"""Helpers inside functions of a block of query rows: positions, masks, relative positions and random numbers."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.blockwise import Rows, fitted
from tensornet_attn.runtime.masks import run_time_mask
from tensornet_attn.runtime.positions import in_reach, in_reach_gradient, is_known, sheared, sheared_gradient


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
    x = x if reach is None else in_reach(x, rows.first - rows.begin + 1 - rows.m, rows.count + rows.m - 1, reach)
    return sheared(x.flip(-1), rows.count, rows.m)


def relative_rows_of_keys(x: Tensor, rows: Rows, reach: int) -> Tensor:
    """y[j, i] = x[j, position(i) - position(j)] for key j and row i: [..., m or 1, p] -> [..., m, block]."""
    x, n = x.expand(*x.shape[:-2], rows.m, x.shape[-1]), rows.count
    if not is_known(rows.m):
        index = (distance_rows(rows).clamp(-reach, reach) + reach).mT
        return x.gather(-1, index.expand(*x.shape[:-2], *index.shape))
    first, last = keys_near(rows, reach)
    near = in_reach(x[..., first:last, :], rows.first - rows.begin - last + 1, n + last - first - 1, reach)
    before, after = x[..., :first, -1:].mT, x[..., last:, :1].mT
    ends = [column.expand(*column.shape[:-2], n, column.shape[-1]) for column in (before, after)]
    return torch.cat((ends[0], sheared(near, last - first, n).mT, ends[1]), -1).mT  # scores have rows of queries


def shift_gradient(gradient: Tensor, rows: Rows, reach=None, of_keys: bool = False) -> Tensor:
    """The gradient of x in `relative_rows`, from that of its result: [..., block, m] -> [..., block, p].

    With `of_keys`, in `relative_rows_of_keys`: [..., m, block] -> [..., m, p].
    """
    if not of_keys:
        x = sheared_gradient(gradient).flip(-1)
        return x if reach is None else in_reach_gradient(x, rows.first - rows.begin + 1 - rows.m, reach)
    first, last = keys_near(rows, reach)
    before, near, after = gradient.split((first, last - first, rows.m - last), -2)
    near = in_reach_gradient(sheared_gradient(near), rows.first - rows.begin - last + 1, reach)
    ends = [
        F.pad(clamped.sum(-1)[..., None], pad) for clamped, pad in ((before, (2 * reach, 0)), (after, (0, 2 * reach)))
    ]
    return torch.cat((ends[0], near, ends[1]), -2)


def keys_near(rows: Rows, reach: int) -> tuple[int, int]:
    """The first key in reach of any row, and the one after the last one in reach."""
    at = rows.first - rows.begin
    first = max(min(at - reach, rows.m - 1), 0)
    return first, min(max(at + rows.count + reach, first + 1), rows.m)


def drawn_rows(x: Tensor, probability: float, rows: Rows) -> Tensor | None:
    """The dropout factors of the entries of x, or None outside training: 0, or 1 / (1 - probability)."""
    if not rows.training:
        return None
    keep = torch.empty(x.shape, device=x.device).uniform_(generator=rows.random) >= probability
    return keep.to(x.dtype) * (0.0 if probability == 1 else 1 / (1 - probability))


def dropped_rows(x: Tensor, entries: Tensor | None) -> Tensor:
    """x times dropout factors, if there are any."""
    return x if entries is None else x * entries


def noise_rows(noise: Tensor | None, shape: tuple, std: float, draw: bool, rows: Rows, like: Tensor) -> Tensor:
    """The given noise, else fresh noise times `std`, else zeros, in the dtype of `like`: [batch..., legs]."""
    if noise is not None:
        return noise.to(like.dtype)
    if draw:
        fresh = torch.empty(shape, device=like.device, dtype=like.dtype)  # randn with a generator rejects traced sizes
        return std * fresh.normal_(generator=rows.random)
    return torch.zeros(shape, device=like.device, dtype=like.dtype)


def gradient_of(function, gradient: Tensor, x: Tensor, legs: tuple[int, int]) -> Tensor:
    """The gradient of x from that of function(x); both may lack batch dimensions.

    `legs`: the number of dimensions of function(x) and of x that are not batch dimensions.
    """
    y_dims, x_dims = legs
    batch = torch.broadcast_shapes(gradient.shape[: gradient.ndim - y_dims], x.shape[: x.ndim - x_dims])
    y, pullback, *_ = torch.func.vjp(function, x.expand(*batch, *x.shape[x.ndim - x_dims :]))
    return pullback(gradient.expand(y.shape))[0]


def mask_gradient(gradient: Tensor, mask: Tensor, batch: int, others: int) -> Tensor:
    """The gradient of a run-time mask, from that of scores [batch..., others..., n, m]."""
    return fitted(gradient, run_time_mask(mask, batch, others)).reshape(mask.shape)


def spread_rows(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Expands the last dimensions of x to these sizes."""
    return x.expand(*x.shape[: -len(sizes)], *sizes)
