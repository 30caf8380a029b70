"""Principal components of attention matrices over many sequences and heads: eigenvalues of their covariance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tensornet_attn.analyse.maps import Maps, as_maps
from tensornet_attn.errors import InputError

Tensor = torch.Tensor
VARIANCE = 0.95  # of the paper, as the next
TOP = 50
ALONE = 2048  # rows of a matrix whose eigenvalues one thread computes
CHUNK = 2**24  # entries made float64 at once: 128 MiB


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
    rows = _rows(maps)
    matrices, entries = rows.shape
    along = 1 if matrices <= entries else 0  # the longer side is summed over, a part at a time
    parts = (part.double() for part in rows.split(max(1, CHUNK // max(1, rows.shape[1 - along])), along))
    product = sum(part @ part.T if along else part.T @ part for part in parts)
    with _few_threads(len(product)):
        values = torch.linalg.eigvalsh(product / matrices).flip(0)
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


@contextmanager
def _few_threads(rows: int) -> Iterator[None]:
    """One thread of torch for matrices of up to ALONE rows.

    The reduction to tridiagonal form synchronises its threads for every row. Where other processes use the cores, two
    threads take 11 s for 320 rows, and one takes 0.03 s.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if rows <= ALONE else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rows(maps: Maps | Tensor | Iterable[Maps | Tensor]) -> Tensor:
    """Every matrix as a row: [matrices, entries]."""
    parts = list(_parts(maps))
    sizes = list(dict.fromkeys(tuple(part.values.shape[-2:]) for part in parts))
    if len(sizes) > 1:
        (n, m), (other, wide) = sizes[:2]
        raise InputError(f"the matrices have different sizes, {n} x {m} and {other} x {wide}: give those of one size.")
    rows = [part.by_head.detach().flatten(2).flatten(0, 1) for part in parts]
    if not sum(map(len, rows)):
        raise InputError("there are no attention matrices: the batch is empty.")
    for part, values in zip(parts, rows, strict=True):
        if not values.isfinite().all():
            raise InputError(f"the maps of '{part.step}' have entries that are not finite.")
    return torch.cat(rows)


def _parts(maps: Maps | Tensor | Iterable[Maps | Tensor]) -> Iterator[Maps]:
    if isinstance(maps, Iterable) and not isinstance(maps, (torch.Tensor, dict, str)):
        yield from map(as_maps, maps)
    else:
        yield as_maps(maps)
