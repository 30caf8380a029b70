"""What the rows of attention maps say as distributions over keys: how sharp they are, and where they look."""

from __future__ import annotations

import torch

from tensornet_attn.analyse.maps import Maps, as_maps
from tensornet_attn.analyse.ranks import distances
from tensornet_attn.errors import InputError

Tensor = torch.Tensor


def map_entropy(maps: Maps | Tensor) -> Tensor:
    """The entropy of a query's row in nats, averaged over batch and queries: [heads...].

    A row that sees m keys evenly has log m, one that sees a single key 0. Rows are divided by their sums; rows that see
    nothing are left out, and a head that has no other is NaN. Raises InputError for maps with negative entries.

    >>> import torch
    >>> round(map_entropy(torch.ones(1, 4, 4) / 4).item(), 4)  # log 4
    1.3863
    """
    rows = _rows(as_maps(maps))
    return _mean_over_rows(as_maps(maps), rows, -torch.xlogy(rows, rows).sum(-1))


def map_reach(maps: Maps | Tensor) -> Tensor:
    """How far a query looks, in positions: the mean distance to a key, weighted by its row: [heads...].

    Averaged over batch and queries like `map_entropy`; the last query stands at the last key. Raises InputError for
    maps with negative entries.

    >>> import torch
    >>> map_reach(torch.eye(3)[None]).item(), map_reach(torch.ones(1, 2, 2)).item()
    (0.0, 0.5)
    """
    maps = as_maps(maps)
    rows = _rows(maps)
    return _mean_over_rows(maps, rows, (rows * distances(maps)).sum(-1))


def induction_scores(maps: Maps | Tensor, period: int | None = None) -> Tensor:
    """The induction score of each head: [heads...], from 0 to 1; 1 is a perfect induction head.

    `maps` are those of sequences of random tokens that are repeated: token i is token i - `period`, half the number of
    keys where none is given (`repeated_tokens` makes them). At a token's second occurrence, position i >= period, an
    induction head attends to the token after the first occurrence, position i - period + 1, because that token comes
    next. The score is the attention on that position, averaged over the batch and over all queries from `period` on:

        score[h] = mean over batch and i >= period of A[h, i, i - period + 1]

    Rows are divided by their sums; rows that see nothing are left out, and a head that has no other is NaN. Attention
    spread evenly over all keys seen so far gives about 0.7 / period. The last query stands at the last key. Raises
    InputError for maps with negative entries, and where no query stands at a second occurrence.

    Source: Olsson et al., In-context Learning and Induction Heads (2022), the prefix matching score; used by Csordas et
    al., Few Heads Are Enough (EPA; later SwitchHead), section 5 and fig. 6.

    >>> import torch
    >>> perfect = torch.eye(6).roll(2, 0)  # query i looks at key i - 2: right for a period of 3
    >>> induction_scores(perfect).item(), induction_scores(torch.eye(6)).item()
    (1.0, 0.0)
    """
    maps = as_maps(maps)
    n, m = maps.values.shape[-2:]
    period = m // 2 if period is None else period
    if not isinstance(period, int) or isinstance(period, bool) or period < 2:
        raise InputError(f"period is {period!r}; a sequence that is repeated has at least 2 tokens.")
    if period >= m or not n:
        raise InputError(f"the maps of '{maps.step}' have {m} keys: a sequence of {period} is not repeated in them.")
    second = torch.arange(max(period, m - n), m, device=maps.values.device)
    rows = _rows(maps)[:, :, second - (m - n)]
    looked_at = (second - period + 1).expand(*rows.shape[:-1])[..., None]
    return _mean_over_rows(maps, rows, rows.gather(-1, looked_at)[..., 0])


def _rows(maps: Maps) -> Tensor:
    """Rows of sum 1, or of zeros, float64: [batch, heads, query, key]."""
    values = maps.by_head.detach().double()
    if not (values >= 0).all():
        raise InputError(f"the maps of '{maps.step}' have entries that are negative or not numbers: no distributions.")
    sums = values.sum(-1, keepdim=True)
    return values / torch.where(sums == 0, 1, sums)


def _mean_over_rows(maps: Maps, rows: Tensor, value: Tensor) -> Tensor:
    """The mean over batch and queries of [batch, heads, query], rows of zeros left out: [heads...]."""
    some = rows.any(-1)
    return (value.sum((0, 2)) / some.sum((0, 2))).reshape(maps.heads)
