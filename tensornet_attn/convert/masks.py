"""Converts masks and positions of attention calls to the arguments of a design."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tensornet_attn.errors import InputError
from tensornet_attn.nn.offsets import of_one_forward
from tensornet_attn.ops.rope import scaling_of as numbers_of
from tensornet_attn.runtime.positions import alibi_slopes, scaled_rates

Window = tuple[int, int] | None  # number of keys that a query sees before and after its position


def arguments(
    mask: Tensor | None, causal: bool, where: str, seen: int = 0, window: Window = None, packs: bool = False
) -> dict[str, Tensor]:
    """The arguments of a causal or bidirectional design for a mask of [n, m] or [batch, n, m].

    `mask` is boolean (true = visible) or a float that is added to scores. A mask that hides only whole keys, besides
    the keys that `causal` and the design's window hide, becomes a `key_mask`, which every design supports. With
    `packs`, a mask of separate documents becomes `cu_seqlens`, which every design supports too. A float mask of zeros
    and minus infinity becomes boolean. `seen` is the number of keys before the n queries. Raises InputError if the mask
    makes later keys visible to a causal design, or keys beyond its window.
    """
    if mask is None:
        return {}
    n = mask.shape[-2]
    mask = _of_keys(mask, seen + n, where)
    visible = shown(mask)
    in_window = None if window is None else _pairs(torch.ones_like(visible), causal, seen, window)
    if causal and bool(visible.triu(seen + 1).any()):
        raise InputError(f"{where}: the mask makes later keys visible, but the design is causal.")
    if in_window is not None and bool((visible & ~in_window).any()):
        raise InputError(f"{where}: the mask makes keys visible beyond the window of the design.")
    if mask.dtype != torch.bool and bool((visible & (mask != 0)).any()):
        return {"mask": mask}
    keys = visible.any(-2)
    if in_window is not None:
        keys = keys | ~in_window.any(-2)  # keys outside the windows of all queries need no mask
    if not torch.equal(visible, _pairs(keys[..., None, :].expand_as(visible), causal, seen, window)):
        offsets = _offsets(visible, causal, window) if packs and seen == 0 else None
        return {"mask": visible} if offsets is None else {"cu_seqlens": of_one_forward(offsets)}
    return _of_visible_keys(keys)


def _offsets(visible: Tensor, causal: bool, window: Window) -> Tensor | None:
    """The `cu_seqlens` int32 [documents + 1] of one row, or None if the mask is not one of separate documents."""
    n = visible.shape[-1]
    if visible.shape[:-2].numel() != 1 or visible.shape[-2] != n:
        return None
    visible = visible.reshape(n, n)
    first = torch.ones(n, dtype=torch.bool, device=visible.device)
    first[1:] = ~visible.diagonal(-1)  # a document starts where a position does not see the previous position
    same = _same_document(first.cumsum(0))
    if not torch.equal(visible, _pairs(same, causal, 0, window)):
        return None
    starts = first.nonzero()[:, 0]
    return torch.cat((starts, starts.new_tensor([n]))).int()


def _same_document(numbers: Tensor) -> Tensor:
    """Whether two positions are in the same document, [n, n]."""
    return numbers[:, None] == numbers


def shown(mask: Tensor) -> Tensor:
    """The visible pairs of a mask that is boolean (true = visible) or added to scores.

    In an added mask, minus infinity and the minimum of the dtype hide a pair. NaN does not, and reaches the output.
    """
    return mask if mask.dtype == torch.bool else ~(mask <= torch.finfo(mask.dtype).min)


def visible_pairs(
    masks: dict[str, Tensor], n: int, causal: bool, device: torch.device, seen: int = 0, window: Window = None
) -> Tensor:
    """The visible keys of each of n queries after `seen` positions, [n, m] or [batch, n, m]."""
    if "mask" in masks:
        return _pairs(shown(masks["mask"]), causal, seen, window)
    if "cu_seqlens" in masks:
        sizes = masks["cu_seqlens"].diff()
        numbers = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        return _pairs(_same_document(numbers), causal, seen, window)
    keys = masks.get("key_mask", torch.ones(seen + n, dtype=torch.bool, device=device))
    return _pairs(keys[..., None, :].expand(*keys.shape[:-1], n, seen + n), causal, seen, window)


def of_hugging_face(
    mask: Any, n: int, causal: bool, where: str, seen: int = 0, window: Window = None, packs: bool = False
) -> dict[str, Tensor]:
    """`arguments` for an `attention_mask` of n queries: [batch, m] with 1 = visible, or [batch, heads, n, m]."""
    if mask is None:
        return {}
    if not isinstance(mask, Tensor):
        raise InputError(
            f"{where}: the attention mask is a {type(mask).__name__}; load the model with "
            "attn_implementation='sdpa' or 'eager', whose masks are tensors."
        )
    if mask.dim() == 2:
        return _of_visible_keys(_of_keys(mask.bool(), seen + n, where))
    if mask.dim() != 4 or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise InputError(
            f"{where}: the attention mask is {mask.dtype} of shape {list(mask.shape)}; give [batch, m], or boolean "
            "or float [batch, 1, n, m]."
        )
    return arguments(same_for_all_heads(mask, where).expand(-1, n, -1), causal, where, seen, window, packs)


def of_memory(mask: Any, where: str) -> dict[str, Tensor]:
    """The arguments of a design for a mask of another sequence, [batch, heads, n or 1, m], boolean or added."""
    if mask is None:
        return {}
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        raise InputError(f"{where}: the mask of the other sequence is not a tensor [batch, 1, n, m].")
    mask = same_for_all_heads(mask, where)
    visible = shown(mask)
    if mask.dtype != torch.bool and bool((visible & (mask != 0)).any()):
        return {"mask": mask}
    if torch.equal(visible, visible[:, :1].expand_as(visible)):
        return _of_visible_keys(visible[:, 0])
    return {"mask": visible}


def same_for_all_heads(mask: Tensor, where: str) -> Tensor:
    """[batch, heads, n, m] as [batch, n, m]. Raises InputError if heads differ: a design may have other heads."""
    if mask.shape[1] > 1 and not torch.equal(mask, mask[:, :1].expand_as(mask)):
        raise InputError(f"{where}: the mask differs between heads; give one mask for all of them.")
    return mask[:, 0]


def of_torch(attn_mask: Tensor | None, padding: Tensor | None, heads: int, where: str) -> Tensor | None:
    """Joins the masks of nn.MultiheadAttention, where true = hidden, to a mask of [n, m] or [batch, n, m]."""
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = same_for_all_heads(attn_mask.unflatten(0, (-1, heads)), where)
    hidden = [mask for mask in (attn_mask, None if padding is None else _rows(padding)) if mask is not None]
    masks = [~mask if mask.dtype == torch.bool else mask for mask in hidden]
    if len(masks) < 2:
        return masks[0] if masks else None
    if all(mask.dtype == torch.bool for mask in masks):
        return masks[0] & masks[1]
    return _added(masks[0]) + _added(masks[1])


@dataclass(frozen=True)
class RopePositions:
    """The rotary positions of a design.

    `interleaved`: the model rotates neighbouring entries as pairs. `once`: the model passes one angle per pair, not one
    per entry. `scaling`: the arguments of `runtime.positions.scaled_rates`.
    """

    base: float
    interleaved: bool = False
    once: bool = False
    scaling: tuple[str | float, ...] | None = None

    def check(self, where: str, turns: tuple[Tensor, Tensor] | None, ids: Tensor, length: int) -> None:
        """Raises InputError if cosines and sines [batch, n, width] do not match the positions `ids` [batch, n].

        `length` is the number of positions so far; some scalings depend on it.
        """
        if turns is None:
            raise InputError(f"{where}: position_embeddings are missing; they are compared with the design's own.")
        if self.once:
            turns = torch.cat((turns[0], turns[0]), -1), torch.cat((turns[1], turns[1]), -1)
        angles = ids[..., None].float() * self.rates(turns[0].shape[-1], length, ids.device)  # batch n pairs
        factor = float(self.scaling[3]) if self.scaling and self.scaling[0] == "yarn" else 1.0
        tolerance = torch.full_like(angles, 1e-4 if turns[0].dtype in (torch.float32, torch.float64) else 2e-2)
        tolerance += angles.abs() * 1e-6 if self.scaling else 0.0  # scaled angles are rounded in a different order
        pairs, pair_axis = ((-1, 2), -1) if self.interleaved else ((2, -1), -2)
        for passed, expected in zip(turns, (angles.cos() * factor, angles.sin() * factor), strict=True):
            gaps = (passed.float().unflatten(-1, pairs) - expected.unsqueeze(pair_axis)).abs()
            if gaps.numel() and not bool((gaps <= tolerance.unsqueeze(pair_axis)).all()):  # NaN is refused too
                kind = f" and rope_type '{self.scaling[0]}'" if self.scaling else ""
                message = f"position_embeddings do not match position_ids with base {self.base:g}{kind}."
                raise InputError(f"{where}: {message}")

    def rates(self, width: int, length: int, device: torch.device) -> Tensor:
        """The angle per position of each pair, in radians: [width / 2]."""
        if self.scaling is None:
            return _frequencies(self.base, width, device)
        pairs = torch.arange(width // 2, device=device, dtype=torch.float)
        return scaled_rates(torch.tensor([length - 1], device=device), pairs, self.base, *self.scaling)  # type: ignore[arg-type]


def scaling_of(keys: Mapping[str, Any]) -> tuple[str | float, ...] | None:
    """`RopePositions.scaling` from the keys of a box `rope`. Returns None if they do not scale positions."""
    numbers = {name: float(number) for name, number in keys.items() if name != "rope_type"}
    return numbers_of(str(keys["rope_type"]), numbers) if keys else None


@dataclass(frozen=True)
class AlibiBiases:
    """The ALiBi biases of a design: the argument of the call that contains them, and the number of heads."""

    argument: str
    heads: int

    def check(self, where: str, bias: Tensor | None, keys: Tensor) -> None:
        """Raises InputError if the biases [batch * heads or heads, 1, m or more] do not match the design's.

        A constant difference per row is allowed, because softmax removes it. `keys`: visible keys, [m] or [batch, m].
        """
        if bias is None:
            raise InputError(f"{where}: '{self.argument}' is missing; it is compared with the design's own biases.")
        m, slopes = keys.shape[-1], alibi_slopes(self.heads, bias.device, torch.float32)
        biases = slopes[:, None] * torch.arange(m, device=bias.device)  # heads m
        gaps = bias[:, 0, :m].float().unflatten(0, (-1, self.heads)) - biases  # batch heads m
        most, least = (gaps.masked_fill(~keys.reshape(-1, 1, m), end) for end in (-torch.inf, torch.inf))
        spread = most.amax(-1) - least.amin(-1)
        tolerance = 1e-4 if bias.dtype in (torch.float32, torch.float64) else 1e-2
        if not bool((spread <= tolerance * max(1, m)).all()):
            raise InputError(f"{where}: '{self.argument}' does not contain the biases of consecutive positions.")


@lru_cache(16)
def _frequencies(base: float, width: int, device: torch.device) -> Tensor:
    """The frequencies [width / 2], in float32 as in the model, for equal rounding."""
    return 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float, device=device) / width))


def shifts_of(where: str, ids: Tensor, before: Tensor | None, visible: Callable[[], Tensor], seen: int) -> Tensor:
    """The offsets of a call's positions from those of the design, which are 0, 1, 2, ... along the keys.

    `ids`: [batch, n]. `before`: the offsets of the `seen` earlier keys, [batch, seen], or [batch, 1] if they are equal.
    Returns the offsets of all keys in the same form. Offsets are allowed, as after left padding, because rotary
    positions depend only on differences. `visible` returns the visible keys of each query. Raises InputError if the
    distance between a query and a visible key differs from their distance in the sequence.
    """
    n = ids.shape[-1]
    shift = ids - torch.arange(seen, seen + n, device=ids.device)
    first = shift[:, :1] if before is None else before
    if first.shape[-1] == 1 and bool((shift == first).all()):
        return first
    if before is not None:
        rows = max(len(shift), len(before))
        shift = torch.cat((before.expand(rows, seen), shift.expand(rows, n)), -1)
    apart = shift[:, -n:, None] != shift[:, None, :]
    if bool((apart & visible()).any()):
        raise InputError(
            f"{where}: position_ids are not consecutive between a query and a visible key, as the design assumes."
        )
    return shift


def _of_keys(mask: Tensor, m: int, where: str) -> Tensor:
    """The first m keys of a mask, which is longer for a static cache. Raises InputError if it has fewer than m keys."""
    if mask.shape[-1] < m:
        raise InputError(f"{where}: the mask has {mask.shape[-1]} keys, but there are {m}, cached keys included.")
    return mask[..., :m]


def _of_visible_keys(keys: Tensor) -> dict[str, Tensor]:
    return {} if bool(keys.all()) else {"key_mask": of_one_forward(keys)}


def _rows(keys: Tensor) -> Tensor:
    """Repeats [..., m] for m queries: [..., m, m]."""
    return keys[..., None, :].expand(*keys.shape, keys.shape[-1])


def _added(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)


def _pairs(visible: Tensor, causal: bool, seen: int = 0, window: Window = None) -> Tensor:
    """Removes the pairs that `causal` and the window hide, for queries after `seen` keys."""
    if causal:
        visible = visible.tril(seen)
    return visible if window is None else visible.triu(seen - window[0]).tril(seen + window[1])
