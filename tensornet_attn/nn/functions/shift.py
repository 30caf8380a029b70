"""From relative positions to keys, without an index per pair."""

import torch
import torch.nn.functional as F
from torch import Tensor


def relative_to_key(x: Tensor, n: int, m: int, reach: int | None = None) -> Tensor:
    """y[i, j] = x[i, position(i) - position(j)]: [..., n or 1, p] -> [..., n, m].

    p runs from 1 - n to m - 1, or from -reach to reach, its ends standing for all that is beyond.
    One row for all queries ([..., 1, p]) gives a matrix that is constant along its diagonals.
    """
    if reach is not None:
        x = x.index_select(-1, torch.arange(1 - n, m, device=x.device).clamp(-reach, reach) + reach)
    x = F.pad(x.flip(-1), (0, 2)).expand(*x.shape[:-2], n, n + m + 1)
    # More columns, read in rows one entry shorter: each row starts one entry earlier than the row above.
    rows = x.flatten(-2)[..., n - 1 : n - 1 + n * (n + m)]
    return rows.unflatten(-1, (n, n + m))[..., :m]
