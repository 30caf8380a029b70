"""How much the heads of an attention differ: distances between their maps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tensornet_attn.analyse.maps import Maps, as_maps
from tensornet_attn.errors import InputError

Tensor = torch.Tensor


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
    flat = _heads_of(maps)
    heads = flat.shape[1]
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


def _heads_of(maps: Maps) -> Tensor:
    """[batch, heads, entries], finite, with at least two heads and one element of the batch."""
    flat = maps.by_head.detach().flatten(2)
    if flat.shape[1] < 2:
        raise InputError(f"'{maps.step}' has one map a sequence: distances between heads need two.")
    if not len(flat):
        raise InputError("the batch is empty: there are no distances between heads.")
    if not flat.isfinite().all():
        raise InputError(f"the maps of '{maps.step}' have entries that are not finite.")
    return flat
