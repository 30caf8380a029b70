"""From relative positions to keys."""

import torch
import torch.nn.functional as F
from torch import Tensor


def relative_to_key(x: Tensor, n: int, m: int, reach: int | None = None) -> Tensor:
    """y[i, j] = x[i, position(i) - position(j)]: [..., n or 1, p] -> [..., n, m].

    p runs from 1 - n to m - 1, or from -reach to reach, its ends standing for all that is beyond.
    One row for all queries ([..., 1, p]) gives a matrix that is constant along its diagonals.
    """
    if reach is not None and x.device.type == "cpu" and x.shape[-2] == n:
        return from_table(x, torch.arange(m - n, m), m, reach)
    if reach is not None:
        x = x.index_select(-1, torch.arange(1 - n, m, device=x.device).clamp(-reach, reach) + reach)
    x = F.pad(x.flip(-1), (0, 2)).expand(*x.shape[:-2], n, n + m + 1)
    # More columns, read in rows one entry shorter: each row starts one entry earlier than the row above.
    rows = x.flatten(-2)[..., n - 1 : n - 1 + n * (n + m)]
    return rows.unflatten(-1, (n, n + m))[..., :m]


def from_table(x: Tensor, at: Tensor, m: int, reach: int) -> Tensor:
    """y[i, j] = x[i, at[i] - j], -reach and reach standing for what is beyond: [..., n, 2 reach + 1] -> [..., n, m].

    An index per pair, which all heads share: on a CPU several times as fast as rows of all relative positions.
    """
    far = at[:, None] - torch.arange(m, device=x.device)
    index = far.clamp(-reach, reach) + reach
    return x.gather(-1, index.expand(*x.shape[:-1], m))
