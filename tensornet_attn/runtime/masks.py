"""Which keys a query may look at, as boolean tensors: true = may look."""

import torch
from torch import Tensor

from tensornet_attn.runtime.positions import distance, query_positions


def causal_mask(n: int, m: int, device: torch.device | None = None) -> Tensor:
    """True where the key is not later than the query: [n, m]."""
    return distance(n, m, device) >= 0


def band_mask(n: int, m: int, width: int, device: torch.device | None = None) -> Tensor:
    """True within `width` positions on either side: [n, m]."""
    return distance(n, m, device).abs() <= width


def window_mask(n: int, m: int, left: int, right: int, device: torch.device | None = None) -> Tensor:
    """True from `left` positions before the query to `right` after it: [n, m]."""
    ahead = distance(n, m, device)
    return (ahead <= left) & (ahead >= -right)


def seen_mask(n: int, m: int, sees, device: torch.device | None = None) -> Tensor:
    """True where `sees(query, key)`, of the positions of both: [n, m]."""
    return sees(query_positions(n, m, device)[:, None], torch.arange(m, device=device)).expand(n, m)


def run_time_mask(mask: Tensor, batch: int, others: int) -> Tensor:
    """A mask [n, m], [batch..., n, m] or [batch..., others..., n, m] so that it broadcasts to the last of these.

    `batch` and `others` count dimensions: those of the batch, and the legs of the box beside query and key.
    """
    if mask.ndim in (2, batch + others + 2):
        return mask
    if mask.ndim == batch + 2:
        return mask[(..., *[None] * others, slice(None), slice(None))]
    wanted = " or ".join(str(ndim) for ndim in sorted({2, batch + 2, batch + others + 2}))
    raise ValueError(f"mask: {mask.ndim} dimensions where {wanted} are wanted.")


def key_keep(key_mask: Tensor, others: int, query: bool = True) -> Tensor:
    """A key mask [batch..., m] as [batch..., ones for the other legs, (1 for the query leg), m]."""
    return key_mask[(..., *[None] * (others + query), slice(None))]


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Where two masks both allow it; None allows everything."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def visible_and_bias(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A run-time mask as (where one may look, what is added there); minus infinity means may not look."""
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    visible = mask != float("-inf")
    return visible, torch.where(visible, mask, 0)


def visible(
    own: Tensor | None, mask: Tensor | None, key_mask: Tensor | None, batch: int, others: int, query: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """Where a box may look and what is added there: its own mask [n, m] together with those of the call.

    `batch` and `others` count dimensions: those of the batch, and the legs of the box beside query and key.
    """
    keep, bias = visible_and_bias(None if mask is None or not query else run_time_mask(mask, batch, others))
    keep = both(own, keep)
    return keep if key_mask is None else both(keep, key_keep(key_mask, others, query)), bias


def heads_together(mask: Tensor | None, batch: int, order: tuple[int, ...]) -> Tensor | None:
    """A mask that names several other legs, these in the given order and as one: [batch..., heads, n, m]."""
    if mask is None or mask.ndim <= batch + 2:
        return mask
    last = len(order) + 2
    mask = mask.movedim(tuple(i - last for i in order), tuple(range(-last, -2)))
    return mask.flatten(-last, -3)


def mask_along(mask: Tensor | None, batch: int, order: tuple[int | None, ...]) -> Tensor | None:
    """Where a mask that names other legs lets a box look, in those of another tensor: [batch..., legs..., n, m].

    `order`: which of the mask's legs each of these is, None where it has none; seen is what is seen anywhere along the
    rest.
    """
    if mask is None or mask.ndim <= batch + 2:
        return mask
    keep = mask if mask.dtype == torch.bool else mask != float("-inf")
    own = [batch + i for i in order if i is not None]
    keep = keep.movedim(own, tuple(range(batch, batch + len(own))))
    if keep.ndim > batch + len(own) + 2:
        keep = keep.flatten(batch + len(own), -3).any(batch + len(own))
    return keep[(*[slice(None)] * batch, *(None if i is None else slice(None) for i in order))]


def either(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Where one of two masks allows it; None allows everything."""
    return None if a is None or b is None else a | b


def in_any(keep: Tensor | None, legs: int) -> Tensor | None:
    """Where a mask allows it for some element of the batch, for what has none: its last `legs` dimensions."""
    return keep if keep is None or keep.ndim <= legs else keep.flatten(0, -legs - 1).any(0)


def hide(x: Tensor, keep: Tensor | None, fill: float) -> Tensor:
    """x where it is seen, else a number: before what would multiply an infinite entry by a gradient of zero."""
    return x if keep is None else torch.where(keep, x, fill)
