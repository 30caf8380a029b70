"""Measures of the maps of one box: ranks, distances between heads, entropy, reach, induction, eigenvalues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from tensornet_attn.analyse.maps import Maps, as_maps
from tensornet_attn.errors import InputError

Tensor = torch.Tensor
TOLERANCE = 1e-6  # from the papers, as the next two
VARIANCE = 0.95
TOP = 50
ALONE = 2048  # maximum rows of a matrix whose eigenvalues are computed by one thread
CHUNK = 2**24  # entries converted to float64 at once: 128 MiB


def map_rank(maps: Maps | Tensor, band: int = 0, tolerance: float = TOLERANCE) -> Tensor:
    """The rank of each map without a band around its diagonal: [batch..., heads...], integers.

    `band`: the number of diagonals that are set to zero, like the bandwidth of the design `fmm1`: 0 none, 1 the main
    diagonal, 5 two more on each side; an even band equals the odd band below it. The last query is at the position of
    the last key. The rank is the number of singular values above `tolerance`, an absolute bound, computed in float64.
    Maps computed in float32 have rounding errors of about 1e-8. Raises InputError.

    Source: after Nguyen et al., FMMformer (NeurIPS 2021), fig. 3, and Transformer-MGK (ICML 2022), fig. 2.

    >>> import torch
    >>> near = torch.eye(6) + torch.eye(6).roll(1, 1).triu()
    >>> map_rank(near[None]).item(), map_rank(near[None], band=3).item()
    (6, 0)
    """
    maps = as_maps(maps)
    return rank_of(singular_values(maps, band), tolerance).reshape((*maps.batch, *maps.heads))


def rank_of(values: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """The number of singular values above a bound: [...]."""
    return (values > tolerance).sum(-1)


def singular_values(maps: Maps | Tensor, band: int = 0) -> Tensor:
    """The singular values of each map, descending, without a band as in `map_rank`: [batch, heads, values].

    Float64. Raises InputError if an entry is not finite.

    >>> import torch
    >>> singular_values(torch.eye(2)).tolist()
    [[[1.0, 1.0]]]
    """
    maps = as_maps(maps)
    if not isinstance(band, int) or isinstance(band, bool) or band < 0:
        raise InputError(f"band is {band!r}; give a number of diagonals, at least 0.")
    outside, values = distances(maps) > (band - 1) // 2, _finite(maps)
    chunks = values.flatten(0, 1).split(max(1, CHUNK // max(1, outside.numel())))
    spectra = torch.cat([torch.linalg.svdvals(torch.where(outside, chunk.double(), 0)) for chunk in chunks])
    return spectra.reshape(*values.shape[:2], min(outside.shape))


def _finite(maps: Maps) -> Tensor:
    """The maps, [batch, heads, query, key]. Raises InputError if an entry is not finite."""
    if not maps.values.isfinite().all():
        raise InputError(f"the maps of '{maps.step}' have entries that are not finite.")
    return maps.by_head.detach()


def distances(maps: Maps) -> Tensor:
    """The distance of each query and key in positions; the last query is at the position of the last key: [n, m]."""
    n, m = maps.values.shape[-2:]
    device = maps.values.device
    return (torch.arange(m - n, m, device=device)[:, None] - torch.arange(m, device=device)).abs()


def _rows(maps: Maps) -> Tensor:
    """The maps with rows that sum to 1, or of zeros, float64: [batch, heads, query, key]. Raises InputError."""
    values = maps.by_head.detach().double()
    if not (values >= 0).all():
        raise InputError(f"the maps of '{maps.step}' have negative or NaN entries, so rows are not distributions.")
    sums = values.sum(-1, keepdim=True)
    return values / torch.where(sums == 0, 1, sums)


def map_entropy(maps: Maps | Tensor) -> Tensor:
    """The entropy of a query's row in nats, averaged over batch and queries: [heads...].

    Uniform attention to m keys has log m, attention to a single key 0. Rows are divided by their sums. Rows of zeros do
    not count; a head with no other rows is NaN. Raises InputError for maps with negative entries.

    >>> import torch
    >>> round(map_entropy(torch.ones(1, 4, 4) / 4).item(), 4)  # log 4
    1.3863
    """
    rows = _rows(as_maps(maps))
    return _mean_over_rows(as_maps(maps), rows, -torch.xlogy(rows, rows).sum(-1))


def map_reach(maps: Maps | Tensor) -> Tensor:
    """The attention distance in positions: the mean distance of a query to a key, weighted by its row: [heads...].

    Averaged over batch and queries like `map_entropy`. The last query is at the position of the last key. Raises
    InputError for maps with negative entries.

    >>> import torch
    >>> map_reach(torch.eye(3)[None]).item(), map_reach(torch.ones(1, 2, 2)).item()
    (0.0, 0.5)
    """
    maps = as_maps(maps)
    rows = _rows(maps)
    return _mean_over_rows(maps, rows, (rows * distances(maps)).sum(-1))


def induction_scores(maps: Maps | Tensor, period: int | None = None) -> Tensor:
    """The induction score of each head: [heads...], from 0 to 1; 1 is a perfect induction head.

    `maps`: of repeated sequences of random tokens (`repeated_tokens`), in which token i equals token i - `period`; the
    default period is half the number of keys. At a token's second occurrence, position i >= period, an induction head
    attends to the token after the first occurrence, position i - period + 1, because that token follows. The score is
    the attention to that position, averaged over the batch and over all queries from `period` on:

        score[h] = mean over batch and i >= period of A[h, i, i - period + 1]

    Rows are divided by their sums. Rows of zeros do not count; a head with no other rows is NaN. Uniform attention to
    all earlier keys has about 0.7 / period. The last query is at the position of the last key. Raises InputError for
    maps with negative entries, and if no query is at a second occurrence.

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
        raise InputError(f"period is {period!r}; give an integer of at least 2.")
    if period >= m or not n:
        raise InputError(f"the maps of '{maps.step}' have {m} keys, too few to repeat a sequence of {period} tokens.")
    second = torch.arange(max(period, m - n), m, device=maps.values.device)
    rows = _rows(maps)[:, :, second - (m - n)]
    looked_at = (second - period + 1).expand(*rows.shape[:-1])[..., None]
    return _mean_over_rows(maps, rows, rows.gather(-1, looked_at)[..., 0])


def vertical_scores(maps: Maps | Tensor) -> Tensor:
    """The vertical line score of each head: [heads...], from 0 to 1.

    A vertical line is a key that many queries attend to. The score is the mean attention of all queries to the key that
    receives most, averaged over the batch: 1 if all queries attend to one key, 1 / m if all keys receive equal
    attention. Rows are divided by their sums. A head without rows is NaN. Raises InputError for maps with negative
    entries.

    Source: after Csordas et al., Few Heads Are Enough (EPA; later SwitchHead), fig. 6c and 6d, which show such maps.

    >>> import torch
    >>> vertical_scores(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).item(), vertical_scores(torch.eye(4)).item()
    (0.75, 0.25)
    """
    maps = as_maps(maps)
    rows = _rows(maps)
    count = rows.any(-1).sum(-1)  # [batch, head]
    some = count > 0
    share = rows.sum(-2).amax(-1) / torch.where(some, count, 1)
    return (share.sum(0) / some.sum(0)).reshape(maps.heads)


def _mean_over_rows(maps: Maps, rows: Tensor, row_values: Tensor) -> Tensor:
    """The mean over batch and queries of [batch, heads, query] without rows of zeros: [heads...]."""
    some = rows.any(-1)
    return (row_values.sum((0, 2)) / some.sum((0, 2))).reshape(maps.heads)


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """Mean, variance, standard deviation, minimum and maximum over pairs of heads, each averaged over the batch.

    `pairs`: [heads, heads], the distance of each pair, averaged over the batch.
    """

    mean: float
    variance: float
    std: float
    min: float
    max: float
    pairs: Tensor


def head_distances(maps: Maps | Tensor) -> HeadDistances:
    """The distances between the maps of heads: the L2 norm of the difference of two maps, over all entries.

    Mean, variance and standard deviation (of the population), minimum and maximum are over the pairs of heads of a
    sequence, then averaged over the batch. So `std` is a mean of roots, not the root of `variance`. The paper prints
    mean and variance averaged over the layers of a model. Computed in float64. Raises InputError for a single head or
    an empty batch.

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
        raise InputError(f"'{maps.step}' has one map per sequence, but distances between heads need at least two.")
    if not len(flat):
        raise InputError("the batch is empty, so there are no distances between heads.")
    _finite(maps)
    first, second = torch.triu_indices(heads, heads, 1)
    pairs = torch.stack([_between(batch.double()) for batch in flat])
    pair_distances = pairs[:, first, second]
    variance = pair_distances.var(1, unbiased=False)
    averages = (pair_distances.mean(1), variance, variance.sqrt(), pair_distances.amin(1), pair_distances.amax(1))
    mean, spread, deviation, least, most = (float(average.mean()) for average in averages)
    return HeadDistances(mean, spread, deviation, least, most, pairs.mean(0))


def _between(flat: Tensor) -> Tensor:
    """Distances between rows, [heads, entries] to [heads, heads].

    QR rotates the rows, which preserves distances, so that each has few entries. Inner products of the maps would lose
    the small difference between nearly equal maps.
    """
    flat = flat - flat[:1]
    if flat.shape[1] > flat.shape[0]:
        flat = torch.linalg.qr(flat.T, mode="r").R.T
    return torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")


@dataclass(frozen=True, eq=False)
class Eigenvalues:
    """The eigenvalues of the covariance matrix C of attention matrices: `values` [components], descending, float64.

    C is n * m x n * m; eigenvalues that are not in `values` are zero. `matrices`: the number of attention matrices.
    """

    values: Tensor
    matrices: int

    @property
    def cumulative(self) -> Tensor:
        """The cumulative sum of the eigenvalues as a fraction of the trace: [components]; zeros if the trace is 0."""
        whole = self.values.sum()
        return self.values.cumsum(0) / torch.where(whole == 0, 1, whole)

    def components(self, variance: float = VARIANCE) -> int:
        """How many of the largest eigenvalues sum to this fraction of the trace; 0 if the trace is 0."""
        if not 0 < variance <= 1:
            raise InputError(f"variance is {variance!r}; give a fraction above 0 and at most 1.")
        reached = self.cumulative >= variance - 1e-12  # rounding may keep the sum below 1
        return int(reached.int().argmax()) + 1 if reached.any() else 0

    def histogram(self, top: int = TOP, bins: int = 20) -> tuple[Tensor, Tensor]:
        """The histogram of the `top` largest nonzero eigenvalues: (counts [bins], edges [bins + 1]).

        Edges are spaced logarithmically, because the first eigenvalue is much larger than the others. Raises
        InputError.
        """
        if top < 1 or bins < 1:
            raise InputError(f"top is {top!r} and bins is {bins!r}; give integers of at least 1.")
        logs = self.values[:top][self.values[:top] > 0].log10().cpu()
        if not len(logs):
            raise InputError("all eigenvalues are zero, so there is no histogram.")
        counts, edges = torch.histogram(logs, bins)
        return counts.long(), 10**edges

    def __repr__(self) -> str:
        return f"Eigenvalues: {len(self.values)} of {self.matrices} matrices, {self.components()} for {VARIANCE:.0%}"


def batches_of(maps: Maps | Tensor | Iterable[Maps | Tensor]) -> Iterator[Maps]:
    """The maps of one step, or those of several batches, one batch at a time. Raises InputError."""
    alone = isinstance(maps, (torch.Tensor, dict, str))
    yield from (as_maps(batch) for batch in ([maps] if alone or not isinstance(maps, Iterable) else maps))


def map_eigenvalues(maps: Maps | Tensor | Iterable[Maps | Tensor]) -> Eigenvalues:
    """The eigenvalues of C = 1 / (M H) * sum over M sequences and H heads of vec(A) vec(A)^T.

    `maps`: the attention matrices A of one step over a batch, or an iterable of those of several batches, such as a
    generator; all A have the same n and m. The mean is not subtracted, as in the printed formula. A may be the maps
    (`attention_maps`) or the scores before the softmax (`attention_scores`).

    C has the same nonzero eigenvalues as the M H x M H Gram matrix, the inner products of the A, divided by M H. The
    smaller of the two matrices is computed, in float64. Raises InputError if there are no matrices, if their sizes
    differ, or if an entry is not finite.

    Source: Nguyen et al., FiSHformer (NeurIPS 2022), section 1.2, fig. 2 and section 4, "Eigen Analysis".

    >>> import torch
    >>> map_eigenvalues([torch.eye(2), torch.eye(2), torch.eye(2).flip(0)]).values.tolist()
    [1.3333333333333333, 0.6666666666666666, 0.0]
    """
    batches = list(batches_of(maps))
    sizes = list(dict.fromkeys(tuple(batch.values.shape[-2:]) for batch in batches))
    if len(sizes) > 1:
        (n, m), (other_n, other_m) = sizes[:2]
        raise InputError(f"the matrices have different sizes, {n} x {m} and {other_n} x {other_m}; give one size.")
    if not any(batch.by_head.shape[:2].numel() for batch in batches):
        raise InputError("there are no attention matrices, because the batch is empty.")
    rows = torch.cat([_finite(batch).flatten(2).flatten(0, 1) for batch in batches])
    matrices, entries = rows.shape
    along = 1 if matrices <= entries else 0  # sums over the longer side, in chunks
    chunks = (chunk.double() for chunk in rows.split(max(1, CHUNK // max(1, rows.shape[1 - along])), along))
    product = sum(chunk @ chunk.T if along else chunk.T @ chunk for chunk in chunks)
    # The reduction to tridiagonal form synchronises its threads for every row. If other processes use the cores, two
    # threads take 11 s for 320 rows, and one takes 0.03 s.
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if len(product) <= ALONE else threads)
    try:
        values = torch.linalg.eigvalsh(product / matrices).flip(0)
    finally:
        torch.set_num_threads(threads)
    zero = len(values) * torch.finfo(values.dtype).eps * values[:1]  # smaller eigenvalues are rounding errors
    return Eigenvalues(torch.where(values > zero, values, 0), matrices)


def principal_components(maps: Maps | Tensor | Iterable[Maps | Tensor], variance: float = VARIANCE) -> int:
    """The number of principal components that explain a fraction of the trace of C; see `map_eigenvalues`.

    It is at most the number of matrices, M sequences times H heads, which may be much larger than the number of heads.
    The paper's table prints the mean over the layers of a model. Raises InputError.

    Source: Nguyen et al., FiSHformer (NeurIPS 2022), tables 9 and 13.

    >>> import torch
    >>> principal_components([torch.eye(2), torch.eye(2), torch.eye(2).flip(0)])
    2
    """
    return map_eigenvalues(maps).components(variance)
