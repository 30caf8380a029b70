"""Masks and positions of an attention call in a design's own terms: which keys a query sees, and where it stands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensornet_attn.errors import InputError


def arguments(mask: Tensor | None, causal: bool, where: str) -> dict[str, Tensor]:
    """What a causal or bidirectional design is called with for a mask of [n, m] or [batch, n, m].

    `mask`: boolean (true = may look) or a float that is added. Where it does no more than hide keys, beside what
    `causal` hides, it becomes a `key_mask`, which acts in every design; a float mask of zeros and of hidden places
    becomes boolean. Raises InputError where a causal design would have to look ahead.
    """
    if mask is None:
        return {}
    visible = _shown(mask)
    if causal and bool(visible.triu(1).any()):
        raise InputError(f"{where}: the mask shows later keys, but the design that stands here now is causal.")
    if mask.dtype != torch.bool and bool((visible & (mask != 0)).any()):
        return {"mask": mask}
    keys = visible.any(-2)
    if not torch.equal(visible, _pairs(keys[..., None, :].expand_as(visible), causal)):
        return {"mask": visible}
    return {} if bool(keys.all()) else {"key_mask": keys}


def visible_pairs(given: dict[str, Tensor], n: int, causal: bool, device: torch.device) -> Tensor:
    """Which of n keys each of n queries sees, [n, m] or [batch, n, m]."""
    if "mask" in given:
        return _pairs(_shown(given["mask"]), causal)
    return _pairs(_rows(given.get("key_mask", torch.ones(n, dtype=torch.bool, device=device))), causal)


def of_hugging_face(mask: Any, where: str) -> Tensor | None:
    """An `attention_mask`, [batch, m], 1 = may look, or [batch, heads, n, m], boolean or added, as [batch, n, m]."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise InputError(
            f"{where}: the attention mask is a {type(mask).__name__}; load the model with "
            "attn_implementation='sdpa' or 'eager', whose masks are tensors."
        )
    if mask.dim() == 2:
        return _rows(mask.bool())
    if mask.dim() != 4 or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise InputError(
            f"{where}: the attention mask is {mask.dtype} of shape {list(mask.shape)}; give [batch, m], or boolean "
            "or float [batch, 1, n, m]."
        )
    one = same_for_all_heads(mask, where)
    return _rows(one.squeeze(-2)) if one.shape[-2] == 1 else one


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


def check_positions(
    where: str,
    base: float,
    turns: tuple[Tensor, Tensor] | None,
    ids: Tensor | None,
    given: dict[str, Tensor],
    causal: bool,
) -> None:
    """Nothing, where the positions that a design counts itself, 0, 1, 2, ... along the keys, are those of the call.

    turns: cosines and sines, [batch, n, d]; ids: positions [batch, n], 0 to n - 1 where absent. Rotary positions act
    by their differences alone, so ids may be shifted, as they are after padding on the left: they are refused where a
    query and a key that it sees are another distance apart than they stand in the sequence. Raises InputError.
    """
    if turns is None:
        raise InputError(f"{where}: position_embeddings are not given; they are compared with the design's own.")
    cos, sin = turns
    n, width = cos.shape[-2:]
    places = torch.arange(n, device=cos.device)
    ids = places[None] if ids is None else ids
    # float32 like the model's own, so that both round alike
    frequencies = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float, device=ids.device) / width))
    half = ids[..., None].float() * frequencies
    angles = torch.cat((half, half), dim=-1)  # batch n d
    tolerance = 1e-4 if cos.dtype in (torch.float32, torch.float64) else 2e-2
    for got, wanted in ((cos, angles.cos()), (sin, angles.sin())):
        if not torch.allclose(got.float(), wanted.expand_as(got), atol=tolerance, rtol=0):
            raise InputError(f"{where}: position_embeddings are not those of position_ids with base {base:g}.")
    shift = ids - places
    if bool((shift == shift[:, :1]).all()):
        return
    apart = shift[:, :, None] != shift[:, None, :]
    if bool((apart & visible_pairs(given, n, causal, cos.device)).any()):
        raise InputError(
            f"{where}: position_ids are not consecutive where a query sees a key; a design counts positions itself."
        )


def _shown(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min


def _rows(keys: Tensor) -> Tensor:
    """[..., m], the same for each of m queries: [..., m, m]."""
    return keys[..., None, :].expand(*keys.shape, keys.shape[-1])


def _added(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)


def _pairs(visible: Tensor, causal: bool) -> Tensor:
    return visible.tril() if causal else visible
