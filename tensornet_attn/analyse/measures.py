"""What is measured of the maps of one box: ranks, distances between heads, entropy, reach, induction, eigenvalues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from tensornet_attn.analyse.maps import Maps, as_maps
from tensornet_attn.errors import InputError

Tensor = torch.Tensor
TOLERANCE = 1e-6  # of the papers, as the next two
VARIANCE = 0.95
TOP = 50
ALONE = 2048  # rows of a matrix whose eigenvalues one thread computes
CHUNK = 2**24  # entries made float64 at once: 128 MiB


def map_rank(maps: Maps | Tensor, band: int = 0, tolerance: float = TOLERANCE) -> Tensor:
    """The rank of each map without a band around its diagonal: [batch..., heads...], whole numbers.

    `band` counts the diagonals set to zero, as the bandwidth of the design `fmm1` does: 0 none, 1 the main one, 5 two
    more on either side; an even band is as the odd one below it. Where lengths differ the last query stands at the last
    key. The rank is the number of singular values above `tolerance`, an absolute bound. They are computed in float64;
    maps computed in float32 carry rounding of about 1e-8. Raises InputError.

    Source: after Nguyen et al., FMMformer (NeurIPS 2021), fig. 3, and Transformer-MGK (ICML 2022), fig. 2.

    >>> import torch
    >>> near = torch.eye(6) + torch.eye(6).roll(1, 1).triu()
    >>> map_rank(near[None]).item(), map_rank(near[None], band=3).item()
    (6, 0)
    """
    maps = as_maps(maps)
    return rank_of(singular_values(maps, band), tolerance).reshape((*maps.batch, *maps.heads))


def rank_of(values: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """How many singular values stand above a bound: [...]."""
    return (values > tolerance).sum(-1)


def singular_values(maps: Maps | Tensor, band: int = 0) -> Tensor:
    """The singular values of each map, largest first, with a band removed as in `map_rank`: [batch, heads, values].

    Float64. Raises InputError for maps that are not finite.

    >>> import torch
    >>> singular_values(torch.eye(2)).tolist()
    [[[1.0, 1.0]]]
    """
    maps = as_maps(maps)
    if not isinstance(band, int) or isinstance(band, bool) or band < 0:
        raise InputError(f"band is {band!r}; it counts diagonals, from 0.")
    outside, values = distances(maps) > (band - 1) // 2, _finite(maps)
    parts = values.flatten(0, 1).split(max(1, CHUNK // max(1, outside.numel())))
    found = torch.cat([torch.linalg.svdvals(torch.where(outside, part.double(), 0)) for part in parts])
    return found.reshape(*values.shape[:2], min(outside.shape))


def _finite(maps: Maps) -> Tensor:
    """The maps, [batch, heads, query, key]. Raises InputError where an entry is not finite."""
    if not maps.values.isfinite().all():
        raise InputError(f"the maps of '{maps.step}' have entries that are not finite.")
    return maps.by_head.detach()


def distances(maps: Maps) -> Tensor:
    """How far each key stands from each query, in positions; the last query stands at the last key: [query, key]."""
    n, m = maps.values.shape[-2:]
    device = maps.values.device
    return (torch.arange(m - n, m, device=device)[:, None] - torch.arange(m, device=device)).abs()


def _rows(maps: Maps) -> Tensor:
    """Rows of sum 1, or of zeros, float64: [batch, heads, query, key]."""
    values = maps.by_head.detach().double()
    if not (values >= 0).all():
        raise InputError(f"the maps of '{maps.step}' have entries that are negative or not numbers: no distributions.")
    sums = values.sum(-1, keepdim=True)
    return values / torch.where(sums == 0, 1, sums)


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


def _mean_over_rows(maps: Maps, rows: Tensor, value: Tensor) -> Tensor:
    """The mean over batch and queries of [batch, heads, query], rows of zeros left out: [heads...]."""
    some = rows.any(-1)
    return (value.sum((0, 2)) / some.sum((0, 2))).reshape(maps.heads)


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """Mean, variance, standard deviation, least and largest over the pairs of heads, each averaged over the batch.

    `pairs`: [heads, heads], the distance of each pair, averaged over the batch.
    """

    mean: float
    variance: float
    std: float
    min: float
    max: float
    pairs: Tensor


def head_distances(maps: Maps | Tensor) -> HeadDistances:
    """The distances between the maps of the heads: the L2 norm of the difference of two maps, over all its entries.

    Mean, variance and standard deviation (of all pairs, not of a sample), least and largest are over the pairs of heads
    of one sequence; each is averaged over the batch. So `std` is the mean of roots, not the root of `variance`. The
    paper prints the averages of mean and variance over the layers of a model. Computed in float64. Raises InputError
    where there is one head only, or an empty batch.

    Source: after Nguyen et al., FiSHformer (NeurIPS 2022), tables 8 and 12.

    >>> import torch
    >>> found = head_distances(torch.stack([torch.eye(2), torch.eye(2), torch.zeros(2, 2)]))
    >>> found.min, round(found.max, 6)
    (0.0, 1.414214)
    """
    maps = as_maps(maps)
    flat = maps.by_head.detach().flatten(2)
    heads = flat.shape[1]
    if heads < 2:
        raise InputError(f"'{maps.step}' has one map a sequence: distances between heads need two.")
    if not len(flat):
        raise InputError("the batch is empty: there are no distances between heads.")
    _finite(maps)
    first, second = torch.triu_indices(heads, heads, 1)
    pairs = torch.stack([_between(batch.double()) for batch in flat])
    each = pairs[:, first, second]
    variance = each.var(1, unbiased=False)
    averages = (each.mean(1), variance, variance.sqrt(), each.amin(1), each.amax(1))
    return HeadDistances(*(float(value.mean()) for value in averages), pairs.mean(0))


def _between(flat: Tensor) -> Tensor:
    """Of [heads, entries]: [heads, heads].

    A rotation keeps distances, and QR finds one after which a head has few entries. Not by products of the maps
    themselves, which lose what is left between two that are nearly equal.
    """
    flat = flat - flat[:1]
    if flat.shape[1] > flat.shape[0]:
        flat = torch.linalg.qr(flat.T, mode="r").R.T
    return torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")


@dataclass(frozen=True, eq=False)
class Eigenvalues:
    """The eigenvalues of the covariance matrix C of attention matrices, `values` [components], largest first, float64.

    C is n * m x n * m; the eigenvalues beyond `values` are zero. `matrices`: how many matrices C is the mean over.
    """

    values: Tensor
    matrices: int

    @property
    def cumulative(self) -> Tensor:
        """The cumulative sum of the eigenvalues as a part of the trace: [components]; zeros where the trace is zero."""
        whole = self.values.sum()
        return self.values.cumsum(0) / torch.where(whole == 0, 1, whole)

    def components(self, variance: float = VARIANCE) -> int:
        """How many of the largest eigenvalues sum to this part of the trace; 0 where the trace is zero."""
        if not 0 < variance <= 1:
            raise InputError(f"variance is {variance!r}; it is a part of the whole, above 0 and at most 1.")
        reached = self.cumulative >= variance - 1e-12  # a sum of parts may fall short of 1 by rounding
        return int(reached.int().argmax()) + 1 if reached.any() else 0

    def histogram(self, top: int = TOP, bins: int = 20) -> tuple[Tensor, Tensor]:
        """The histogram of the `top` largest eigenvalues, zeros left out: (counts [bins], edges [bins + 1]).

        Edges run from the least to the largest in equal ratios, because the first eigenvalue stands far above the rest.
        Raises InputError.
        """
        if top < 1 or bins < 1:
            raise InputError(f"top is {top!r} and bins is {bins!r}; both are whole numbers from 1.")
        logs = self.values[:top][self.values[:top] > 0].log10().cpu()
        if not len(logs):
            raise InputError("all eigenvalues are zero: there is no histogram.")
        counts, edges = torch.histogram(logs, bins)
        return counts.long(), 10**edges

    def __repr__(self) -> str:
        return f"Eigenvalues: {len(self.values)} of {self.matrices} matrices, {self.components()} for {VARIANCE:.0%}"


def map_eigenvalues(maps: Maps | Tensor | Iterable[Maps | Tensor]) -> Eigenvalues:
    """The eigenvalues of C = 1 / (M H) * sum over M sequences and H heads of vec(A) vec(A)^T.

    `maps`: the attention matrices A of one step over a batch, or an iterable with those of many batches, such as a
    generator; every A has the same n and m. The mean is not subtracted: that is the formula as printed. A may be the
    maps (`attention_maps`) or the scores before the softmax (`attention_scores`).

    C has the eigenvalues of the M H x M H matrix of inner products of the A, the Gram matrix, divided by M H. That
    matrix is computed, or C itself where an A has fewer than M H entries. Computed in float64. Raises InputError for
    no matrices, for matrices of different sizes, and for entries that are not finite.

    Source: Nguyen et al., FiSHformer (NeurIPS 2022), section 1.2, fig. 2 and section 4, "Eigen Analysis".

    >>> import torch
    >>> map_eigenvalues([torch.eye(2), torch.eye(2), torch.eye(2).flip(0)]).values.tolist()
    [1.3333333333333333, 0.6666666666666666, 0.0]
    """
    several = isinstance(maps, Iterable) and not isinstance(maps, (torch.Tensor, dict, str))
    given = [as_maps(part) for part in (maps if several else [maps])]
    sizes = list(dict.fromkeys(tuple(part.values.shape[-2:]) for part in given))
    if len(sizes) > 1:
        (n, m), (other, wide) = sizes[:2]
        raise InputError(f"the matrices have different sizes, {n} x {m} and {other} x {wide}: give those of one size.")
    if not any(part.by_head.shape[:2].numel() for part in given):
        raise InputError("there are no attention matrices: the batch is empty.")
    rows = torch.cat([_finite(part).flatten(2).flatten(0, 1) for part in given])
    matrices, entries = rows.shape
    along = 1 if matrices <= entries else 0  # the longer side is summed over, a part at a time
    parts = (part.double() for part in rows.split(max(1, CHUNK // max(1, rows.shape[1 - along])), along))
    product = sum(part @ part.T if along else part.T @ part for part in parts)
    # The reduction to tridiagonal form synchronises its threads for every row. Where other processes use the cores, two
    # threads take 11 s for 320 rows, and one takes 0.03 s.
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if len(product) <= ALONE else threads)
    try:
        values = torch.linalg.eigvalsh(product / matrices).flip(0)
    finally:
        torch.set_num_threads(threads)
    zero = len(values) * torch.finfo(values.dtype).eps * values[:1]  # below it an eigenvalue is rounding
    return Eigenvalues(torch.where(values > zero, values, 0), matrices)


def principal_components(maps: Maps | Tensor | Iterable[Maps | Tensor], variance: float = VARIANCE) -> int:
    """How many principal components explain that part of the trace of C; see `map_eigenvalues`.

    At most the number of matrices, M sequences times H heads, which may be far more than the number of heads. The mean
    over the layers of a model is a row of the paper's table. Raises InputError.

    Source: Nguyen et al., FiSHformer (NeurIPS 2022), tables 9 and 13.

    >>> import torch
    >>> principal_components([torch.eye(2), torch.eye(2), torch.eye(2).flip(0)])
    2
    """
    return map_eigenvalues(maps).components(variance)
