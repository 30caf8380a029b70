"""Visibility of keys as boolean tensors; True = visible."""

import torch
from torch import Tensor

from tensornet_attn.runtime.positions import distance, query_positions


def causal_mask(n: int, m: int, device: torch.device | None = None, shift: int = 0) -> Tensor:
    """True if the key is not later than `shift` positions before the query: [n, m]."""
    return distance(n, m, device) >= shift


def up_to(m: int, longest: int) -> bool:
    """Whether there are at most so many keys; False in traced code, which is for all lengths."""
    return not torch.compiler.is_compiling() and not torch._C._is_tracing() and m <= longest


def band_mask(n: int, m: int, width: int, device: torch.device | None = None) -> Tensor:
    """True within `width` positions on either side: [n, m]."""
    return distance(n, m, device).abs() <= width


def window_mask(n: int, m: int, left: int, right: int, device: torch.device | None = None) -> Tensor:
    """True from `left` positions before the query to `right` after it: [n, m]."""
    ahead = distance(n, m, device)
    return (ahead <= left) & (ahead >= -right)


def seen_mask(n: int, m: int, sees, device: torch.device | None = None) -> Tensor:
    """True where `sees(query, key)` holds, a function of both positions: [n, m]."""
    return sees(query_positions(n, m, device)[:, None], torch.arange(m, device=device)).expand(n, m)


def run_time_mask(mask: Tensor, batch: int, others: int) -> Tensor:
    """Broadcasts a mask [n, m], [batch..., n, m] or [batch..., others..., n, m] to the last form.

    `batch`: number of batch dimensions; `others`: number of legs of the box besides query and key.
    """
    if mask.ndim in (2, batch + others + 2):
        return mask
    if mask.ndim == batch + 2:
        return mask[(..., *[None] * others, slice(None), slice(None))]
    wanted = " or ".join(str(ndim) for ndim in sorted({2, batch + 2, batch + others + 2}))
    raise ValueError(f"mask: {mask.ndim} dimensions; give {wanted}.")


def key_keep(key_mask: Tensor, others: int, query: bool = True) -> Tensor:
    """A key mask [batch..., m] as [batch..., 1 per other leg, (1 for the query leg), m]."""
    return key_mask[(..., *[None] * (others + query), slice(None))]


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The conjunction of two masks; None means all visible."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def above_nothing(x: Tensor, keep: Tensor | None) -> Tensor:
    """The visible entries that are not minus infinity."""
    return x != float("-inf") if keep is None else keep & (x != float("-inf"))


def visible_and_bias(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Splits a run-time mask into (visibility, bias); minus infinity means hidden."""
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    visible = mask != float("-inf")
    return visible, torch.where(visible, mask, 0)


def visible(
    box_mask: Tensor | None, mask: Tensor | None, key_mask: Tensor | None, batch: int, others: int, query: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """Visibility and bias of a box: its own mask [n, m] combined with the masks of the call.

    `batch`: number of batch dimensions; `others`: number of legs of the box besides query and key.
    """
    if mask is None and key_mask is None:
        return box_mask, None
    keep, bias = visible_and_bias(None if mask is None or not query else run_time_mask(mask, batch, others))
    keep = both(box_mask, keep)
    return keep if key_mask is None else both(keep, key_keep(key_mask, others, query)), bias


def heads_together(mask: Tensor | None, batch: int, order: tuple[int, ...], mixed: int | None = None) -> Tensor | None:
    """Orders the other legs of a mask and flattens the last `mixed`, or all: [batch..., heads..., n, m]."""
    if mask is None or mask.ndim <= batch + 2:
        return mask
    last = len(order) + 2
    mask = mask.movedim(tuple(i - last for i in order), tuple(range(-last, -2)))
    mixed = len(order) if mixed is None else mixed
    return mask.flatten(-2 - mixed, -3) if mixed > 1 else mask


def mask_along(mask: Tensor | None, batch: int, order: tuple[int | None, ...]) -> Tensor | None:
    """The visibility by a mask with other legs, for a tensor with its own legs: [batch..., legs..., n, m].

    `order`: for each of these legs the mask's leg, or None if the mask lacks it. A pair is visible if it is visible
    anywhere along the remaining legs.
    """
    if mask is None or mask.ndim <= batch + 2:
        return mask
    keep = mask if mask.dtype == torch.bool else mask != float("-inf")
    leg_dims = [batch + i for i in order if i is not None]
    keep = keep.movedim(leg_dims, tuple(range(batch, batch + len(leg_dims))))
    if keep.ndim > batch + len(leg_dims) + 2:
        keep = keep.flatten(batch + len(leg_dims), -3).any(batch + len(leg_dims))
    return keep[(*[slice(None)] * batch, *(None if i is None else slice(None) for i in order))]


def either(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The disjunction of two masks; None means all visible."""
    return None if a is None or b is None else a | b


def in_any(keep: Tensor | None, legs: int) -> Tensor | None:
    """Visibility in any element of the batch, for a tensor without batch; keeps the last `legs` dimensions."""
    return keep if keep is None or keep.ndim <= legs else keep.flatten(0, -legs - 1).any(0)


def hide(x: Tensor, keep: Tensor | None, fill: float) -> Tensor:
    """x where visible, else `fill`; used before a hidden infinite entry would be multiplied by a zero gradient."""
    return x if keep is None else torch.where(keep, x, fill)
