"""Masks and positions of an attention call in a design's own terms: which keys a query sees, and where it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tensornet_attn.errors import InputError
from tensornet_attn.ops.rope import scaling_of as numbers_of
from tensornet_attn.runtime.positions import alibi_slopes, scaled_rates

Window = tuple[int, int] | None  # how far a query sees, keys before it and after


def arguments(
    mask: Tensor | None, causal: bool, where: str, seen: int = 0, window: Window = None, packs: bool = False
) -> dict[str, Tensor]:
    """What a causal or bidirectional design is called with for a mask of [n, m] or [batch, n, m].

    `mask`: boolean (true = may look) or a float that is added. Where it does no more than hide keys, beside what
    `causal` and the design's window hide, it becomes a `key_mask`, which acts in every design; a float mask of zeros
    and of hidden places becomes boolean. `seen`: positions before the n queries, the first of the m keys. `packs`: a
    mask of documents that do not see each other becomes `cu_seqlens`, which acts in every design too. Raises InputError
    where a design would have to look ahead, or beyond its window.
    """
    if mask is None:
        return {}
    n = mask.shape[-2]
    mask = _of_keys(mask, seen + n, where)
    visible = shown(mask)
    own = None if window is None else _pairs(torch.ones_like(visible), causal, seen, window)
    if causal and bool(visible.triu(seen + 1).any()):
        raise InputError(f"{where}: the mask shows later keys, but the design that stands here now is causal.")
    if own is not None and bool((visible & ~own).any()):
        raise InputError(f"{where}: the mask shows keys beyond the window of the design that stands here now.")
    if mask.dtype != torch.bool and bool((visible & (mask != 0)).any()):
        return {"mask": mask}
    keys = visible.any(-2)
    if own is not None:
        keys = keys | ~own.any(-2)  # keys that no query of the call reaches are not hidden
    if not torch.equal(visible, _pairs(keys[..., None, :].expand_as(visible), causal, seen, window)):
        offsets = _offsets(visible, causal, window) if packs and seen == 0 else None
        return {"mask": visible} if offsets is None else {"cu_seqlens": offsets}
    return _of_visible_keys(keys)


def _offsets(visible: Tensor, causal: bool, window: Window) -> Tensor | None:
    """Where documents of one row begin, if positions see all of their own and nothing else: int32 [documents + 1]."""
    n = visible.shape[-1]
    if visible.shape[:-2].numel() != 1 or visible.shape[-2] != n:
        return None
    visible = visible.reshape(n, n)
    first = torch.ones(n, dtype=torch.bool, device=visible.device)
    first[1:] = ~visible.diagonal(-1)  # a position that does not see the one before it
    same = _same_document(first.cumsum(0))
    if not torch.equal(visible, _pairs(same, causal, 0, window)):
        return None
    starts = first.nonzero()[:, 0]
    return torch.cat((starts, starts.new_tensor([n]))).int()


def _same_document(numbers: Tensor) -> Tensor:
    """Which positions are of one document, [n, n]."""
    return numbers[:, None] == numbers


def shown(mask: Tensor) -> Tensor:
    """Where a mask, boolean (true = may look) or added, lets one look; minus infinity and the least number hide.

    NaN does not: the output then says that something is wrong.
    """
    return mask if mask.dtype == torch.bool else ~(mask <= torch.finfo(mask.dtype).min)


def visible_pairs(
    given: dict[str, Tensor], n: int, causal: bool, device: torch.device, seen: int = 0, window: Window = None
) -> Tensor:
    """Which of the keys each of n queries behind `seen` positions sees, [n, m] or [batch, n, m]."""
    if "mask" in given:
        return _pairs(shown(given["mask"]), causal, seen, window)
    if "cu_seqlens" in given:
        sizes = given["cu_seqlens"].diff()
        numbers = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        return _pairs(_same_document(numbers), causal, seen, window)
    keys = given.get("key_mask", torch.ones(seen + n, dtype=torch.bool, device=device))
    return _pairs(keys[..., None, :].expand(*keys.shape[:-1], n, seen + n), causal, seen, window)


def of_hugging_face(
    mask: Any, n: int, causal: bool, where: str, seen: int = 0, window: Window = None, packs: bool = False
) -> dict[str, Tensor]:
    """`arguments` for an `attention_mask` of n queries, [batch, m], 1 = may look, or [batch, heads, n, m], boolean or
    added."""
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
    """What a design is called with for a mask of another sequence, [batch, heads, n or 1, m], boolean or added."""
    if mask is None:
        return {}
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        raise InputError(f"{where}: the mask of the other sequence is no tensor [batch, 1, n, m].")
    mask = same_for_all_heads(mask, where)
    visible = shown(mask)
    if mask.dtype != torch.bool and bool((visible & (mask != 0)).any()):
        return {"mask": mask}
    if torch.equal(visible, visible[:, :1].expand_as(visible)):
        return _of_visible_keys(visible[:, 0])
    return {"mask": visible}


def same_for_all_heads(mask: Tensor, where: str) -> Tensor:
    """[batch, heads, n, m] as [batch, n, m]. Raises InputError where heads differ: a design's heads may be others."""
    if mask.shape[1] > 1 and not torch.equal(mask, mask[:, :1].expand_as(mask)):
        raise InputError(f"{where}: the mask differs between heads; give one mask for all of them.")
    return mask[:, 0]


def of_torch(attn_mask: Tensor | None, padding: Tensor | None, heads: int, where: str) -> Tensor | None:
    """Masks of nn.MultiheadAttention, true = hidden, or added, as one of [n, m] or [batch, n, m], true = may look."""
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = same_for_all_heads(attn_mask.unflatten(0, (-1, heads)), where)
    given = [mask for mask in (attn_mask, None if padding is None else _rows(padding)) if mask is not None]
    masks = [~mask if mask.dtype == torch.bool else mask for mask in given]
    if len(masks) < 2:
        return masks[0] if masks else None
    if all(mask.dtype == torch.bool for mask in masks):
        return masks[0] & masks[1]
    return _added(masks[0]) + _added(masks[1])


@dataclass(frozen=True)
class Rope:
    """Rotary positions that a design has: their base, whether the model's angles stand for neighbours, their scaling.

    `once`: the model gives the angle of a pair once, not for each of its two entries. `scaling`: as
    `runtime.positions.scaled_rates` takes it.
    """

    base: float
    interleaved: bool = False
    once: bool = False
    scaling: tuple[str | float, ...] | None = None

    def check(self, where: str, turns: tuple[Tensor, Tensor] | None, ids: Tensor, length: int) -> None:
        """Raises InputError unless cosines and sines, [batch, n, width], are those of positions [batch, n].

        `length`: how many positions the design counts, which some angles depend on.
        """
        if turns is None:
            raise InputError(f"{where}: position_embeddings are not given; they are compared with the design's own.")
        if self.once:
            turns = torch.cat((turns[0], turns[0]), -1), torch.cat((turns[1], turns[1]), -1)
        angles = ids[..., None].float() * self.rates(turns[0].shape[-1], length, ids.device)  # batch n pairs
        factor = float(self.scaling[3]) if self.scaling and self.scaling[0] == "yarn" else 1.0
        tolerance = torch.full_like(angles, 1e-4 if turns[0].dtype in (torch.float32, torch.float64) else 2e-2)
        tolerance += angles.abs() * 1e-6 if self.scaling else 0.0  # scaled ones are rounded in another order
        pairs, one = ((-1, 2), -1) if self.interleaved else ((2, -1), -2)
        for got, wanted in zip(turns, (angles.cos() * factor, angles.sin() * factor), strict=True):
            apart = (got.float().unflatten(-1, pairs) - wanted.unsqueeze(one)).abs()
            if apart.numel() and not bool((apart <= tolerance.unsqueeze(one)).all()):  # NaN is refused too
                kind = f" and rope_type '{self.scaling[0]}'" if self.scaling else ""
                message = f"position_embeddings are not those of position_ids with base {self.base:g}{kind}."
                raise InputError(f"{where}: {message}")

    def rates(self, width: int, length: int, device: torch.device) -> Tensor:
        """Radians of a position, for each pair: [width / 2]."""
        if self.scaling is None:
            return _frequencies(self.base, width, device)
        pairs = torch.arange(width // 2, device=device, dtype=torch.float)
        return scaled_rates(torch.tensor([length - 1], device=device), pairs, self.base, *self.scaling)  # type: ignore[arg-type]


def scaling_of(keys: Mapping[str, Any]) -> tuple[str | float, ...] | None:
    """The keys of a box `rope` that scale its positions, as `Rope` has them."""
    numbers = {name: float(value) for name, value in keys.items() if name != "rope_type"}
    return numbers_of(str(keys["rope_type"]), numbers) if keys else None


@dataclass(frozen=True)
class Alibi:
    """ALiBi that a design has: the argument of the call with its biases, and the number of heads."""

    argument: str
    heads: int

    def check(self, where: str, bias: Tensor | None, keys: Tensor) -> None:
        """Raises InputError unless the biases, [batch * heads or heads, 1, m or more], are the design's.

        Row by row they may differ by a number, which no softmax sees. keys: [m] or [batch, m], those that count.
        """
        if bias is None:
            raise InputError(f"{where}: '{self.argument}' is not given; it is compared with the design's own biases.")
        m, slopes = keys.shape[-1], alibi_slopes(self.heads, bias.device, torch.float32)
        own = slopes[:, None] * torch.arange(m, device=bias.device)  # heads m
        apart = bias[:, 0, :m].float().unflatten(0, (-1, self.heads)) - own  # batch heads m
        most, least = (apart.masked_fill(~keys.reshape(-1, 1, m), end) for end in (-torch.inf, torch.inf))
        spread = most.amax(-1) - least.amin(-1)
        tolerance = 1e-4 if bias.dtype in (torch.float32, torch.float64) else 1e-2
        if not bool((spread <= tolerance * max(1, m)).all()):
            raise InputError(f"{where}: '{self.argument}' are not the biases of consecutive positions.")


@lru_cache(16)
def _frequencies(base: float, width: int, device: torch.device) -> Tensor:
    """In float32 like the model's own, so that both round alike: [width / 2]."""
    return 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float, device=device) / width))


def shifts_of(where: str, ids: Tensor, before: Tensor | None, visible: Callable[[], Tensor], seen: int) -> Tensor:
    """How far the positions of a call are from those that a design counts itself, 0, 1, 2, ... along the keys.

    ids: [batch, n]; before: the shifts of the `seen` keys before them, [batch, 1] where one serves all; so is the
    result, of all keys. Rotary positions act by their differences alone, so ids may be shifted, as they are after
    padding on the left. `visible`: which keys each query sees. Raises InputError where a query and a key that it sees
    are another distance apart than they stand in the sequence.
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
            f"{where}: position_ids are not consecutive where a query sees a key; a design counts positions itself."
        )
    return shift


def _of_keys(mask: Tensor, m: int, where: str) -> Tensor:
    """A mask of at least m keys, of the first m: a static cache has room for more. Raises InputError."""
    if mask.shape[-1] < m:
        raise InputError(f"{where}: the mask is of {mask.shape[-1]} keys; there are {m}, with those that are kept.")
    return mask[..., :m]


def _of_visible_keys(keys: Tensor) -> dict[str, Tensor]:
    return {} if bool(keys.all()) else {"key_mask": keys}


def _rows(keys: Tensor) -> Tensor:
    """[..., m], the same for each of m queries: [..., m, m]."""
    return keys[..., None, :].expand(*keys.shape, keys.shape[-1])


def _added(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)


def _pairs(visible: Tensor, causal: bool, seen: int = 0, window: Window = None) -> Tensor:
    """What of it the design shows: queries behind `seen` keys, that see none later, and none beyond their window."""
    if causal:
        visible = visible.tril(seen)
    return visible if window is None else visible.triu(seen - window[0]).tril(seen + window[1])
