"""Masks of an attention call in a design's own terms: which keys a query sees, as `mask=` and `key_mask=`."""

from __future__ import annotations

from typing import Any

import torch

from tensornet_attn.errors import InputError

Tensor = torch.Tensor


def arguments(mask: Tensor | None, causal: bool, where: str) -> dict[str, Tensor]:
    """What a causal or bidirectional design is called with for a mask of [n, m] or [batch, n, m].

    `mask`: boolean (true = may look) or a float that is added. Where it does no more than hide keys, beside what
    `causal` hides, it becomes a `key_mask`, which acts in every design; a float mask of zeros and of hidden places
    becomes boolean. Raises InputError where a causal design would have to look ahead.
    """
    if mask is None:
        return {}
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
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
        mask = given["mask"]
        shown = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    elif "key_mask" in given:
        keys = given["key_mask"]
        shown = keys[..., None, :].expand(*keys.shape[:-1], n, n)
    else:
        shown = torch.ones(n, n, dtype=torch.bool, device=device)
    return _pairs(shown, causal)


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
        keys = mask.bool()
        return keys[:, None, :].expand(-1, keys.shape[-1], -1)
    if mask.dim() != 4 or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise InputError(
            f"{where}: the attention mask is {mask.dtype} of shape {list(mask.shape)}; give [batch, m], or boolean "
            "or float [batch, 1, n, m]."
        )
    one = same_for_all_heads(mask, where)
    return one.expand(-1, one.shape[-1], -1) if one.shape[-2] == 1 else one


def same_for_all_heads(mask: Tensor, where: str) -> Tensor:
    """[batch, heads, n, m] as [batch, n, m]. Raises InputError where heads differ: a design's heads may be others."""
    if mask.shape[1] > 1 and not torch.equal(mask, mask[:, :1].expand_as(mask)):
        raise InputError(f"{where}: the mask differs between heads; give one mask for all of them.")
    return mask[:, 0]


def of_torch(attn_mask: Tensor | None, padding: Tensor | None, heads: int, where: str) -> Tensor | None:
    """Masks of nn.MultiheadAttention, true = hidden, or added, as one of [n, m] or [batch, n, m], true = may look."""
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = same_for_all_heads(attn_mask.unflatten(0, (-1, heads)), where)
    attn_mask, padding = _inverted(attn_mask), _inverted(padding)
    if padding is None:
        return attn_mask
    keys = padding[..., None, :].expand(*padding.shape[:-1], padding.shape[-1], padding.shape[-1])
    if attn_mask is None:
        return keys
    if attn_mask.dtype == keys.dtype == torch.bool:
        return attn_mask & keys
    return _added(attn_mask) + _added(keys)


def _inverted(mask: Tensor | None) -> Tensor | None:
    return ~mask if mask is not None and mask.dtype == torch.bool else mask


def _added(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)


def _pairs(visible: Tensor, causal: bool) -> Tensor:
    return visible.tril() if causal else visible
