"""What functions of a block of query rows call: positions, masks, relative positions and random numbers of its rows."""

import torch
from torch import Tensor

from tensornet_attn.nn.functions.blockwise import Rows
from tensornet_attn.nn.functions.shift import from_table, relative_to_key


def distance_rows(rows: Rows) -> Tensor:
    """Query position minus key position: [block, m], integers."""
    return rows.at[:, None] - torch.arange(rows.m, device=rows.at.device)


def causal_rows(rows: Rows) -> Tensor:
    """True where the key is not later than the query: [block, m]."""
    return distance_rows(rows) >= 0


def band_rows(rows: Rows, width: int) -> Tensor:
    """True within `width` positions on either side: [block, m]."""
    return distance_rows(rows).abs() <= width


def window_rows(rows: Rows, left: int, right: int) -> Tensor:
    """True from `left` positions before the query to `right` after it: [block, m]."""
    ahead = distance_rows(rows)
    return (ahead <= left) & (ahead >= -right)


def relative_rows(x: Tensor, rows: Rows, reach: int | None = None) -> Tensor:
    """y[i, j] = x[i, position(i) - position(j)]: [..., block or 1, p] -> [..., block, m].

    p runs over the block + m - 1 relative positions of these rows, or from -reach to reach.
    """
    if reach is not None and x.device.type == "cpu" and x.shape[-2] == rows.at.shape[0]:
        return from_table(x, rows.at, rows.m, reach)
    if reach is not None:
        far = torch.arange(1 - rows.m, rows.at.shape[0], device=x.device) + rows.at[:1]
        x = x.index_select(-1, far.clamp(-reach, reach) + reach)
    return relative_to_key(x, rows.at.shape[0], rows.m)


def dropped_rows(x: Tensor, probability: float, rows: Rows) -> Tensor:
    """Entries dropped while training, the rest scaled up."""
    if not rows.training:
        return x
    keep = torch.empty(x.shape, device=x.device).uniform_(generator=rows.random) >= probability
    return x * keep.to(x.dtype) * (0.0 if probability == 1 else 1 / (1 - probability))


def noise_rows(given: Tensor | None, shape: tuple, std: float, draw: bool, rows: Rows, like: Tensor) -> Tensor:
    """The values given, else fresh ones times `std`, else zeros: [batch..., legs]."""
    if given is not None:
        return given
    if draw:
        drawn = torch.empty(shape, device=like.device, dtype=like.dtype)  # randn with a generator takes no traced sizes
        return std * drawn.normal_(generator=rows.random)
    return torch.zeros(shape, device=like.device, dtype=like.dtype)
