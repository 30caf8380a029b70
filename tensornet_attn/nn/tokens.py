"""Calls whose key mask marks padding: at the tokens, the result is that of each sequence without its padding.

If padding would change the result (`graph/padding.py`), the call runs on the tokens alone, as a packed row.

# x [2, 4, f], key_mask 0111 0011     ->     x [1, 5, f], cu_seqlens [0, 3, 5]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tensornet_attn.errors import InputError
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.made import Result

Tensor = torch.Tensor


def call_of_tokens(
    module: Any,
    inputs: tuple[Tensor, ...],
    key_mask: Tensor | None = None,
    rows: Tensor | None = None,
    cache: Cache | None = None,
    **options: Any,
) -> Result:
    """Returns `module(*inputs, key_mask=key_mask, cache=cache, **options)` with the exact results at tokens.

    key_mask: [batch..., m], false at padding. `rows`: [batch..., n], false at padding among the queries, if the keys
    are an input of their own; otherwise queries are keys. The result at padding is unspecified. Raises InputError if a
    cache or other options exclude the exact result; in a compiled program, an assertion fails.
    """
    problem = changed_by_padding(module, key_mask, rows)
    if problem is None:
        shown = key_mask if module._signature.masks.keys else None
        return module(*inputs, key_mask=shown, cache=cache, **options)
    if cache is not None or "cu_seqlens" in options:
        what = "documents of a packed row" if cache is None else "sequences of a cache"
        hint = "" if module._packing.evaluation.behind else "pad on the right, or "
        raise InputError(
            f"{module.design.name}: {what} take no padding, because {problem}: {hint}give sequences of equal length."
        )
    return _call_packed(module, inputs, key_mask, rows, options)


def changed_by_padding(module: Any, *masks: Tensor | None) -> str | None:
    """Why the padding of a call changes results at tokens. Returns None if it does not, or if there is none.

    `masks`: of keys or queries, [batch..., length], false at padding. A compiled program asserts that there is none.
    """
    padding = module._packing.evaluation
    problem = padding.behind or padding.before
    present = [mask for mask in masks if mask is not None]
    if problem is None or not present:
        return None
    anywhere = padding.behind is not None
    changes = torch.stack([~mask.all() if anywhere else (~mask[..., :1] & mask).any() for mask in present]).any()
    if torch.compiler.is_compiling():
        where = "padding" if anywhere else "padding on the left"
        torch._assert_async(~changes, f"{module.design.name}: a compiled call takes no {where}, because {problem}.")
        return None
    return problem if bool(changes) else None


def _call_packed(
    module: Any, inputs: tuple[Tensor, ...], key_mask: Tensor | None, rows: Tensor | None, options: dict[str, Any]
) -> Result:
    packing, signature = module._packing, module._signature
    batch, lengths = signature.batch(inputs), signature.check(inputs, None, None, None)
    n, m = lengths[packing.query], lengths[signature.masks.key]
    legs_of = [*zip(inputs, packing.inputs, strict=False)]
    keys = queries = _rows(key_mask, batch, m, inputs[0].device)
    offsets = {"cu_seqlens": _offsets(keys)}
    if not packing.tied and any(x is not None and packing.key in legs for x, legs in legs_of):
        queries = _rows(rows, batch, n, keys.device)
        offsets = {"cu_seqlens_q": _offsets(queries), "cu_seqlens_k": _offsets(keys)}
    tokens = {packing.query: queries.flatten().nonzero()[:, 0], packing.key: keys.flatten().nonzero()[:, 0]}
    packed = [x if x is None else _in_a_row(module, x, legs, batch, tokens) for x, legs in legs_of]
    result = module(*packed, **offsets, **options)
    y, losses = result if isinstance(result, tuple) else (result, None)
    y = y.squeeze(0).movedim(packing.axis, 0)
    y = y.new_zeros(queries.numel(), *y.shape[1:]).index_copy(0, tokens[packing.query], y)
    y = y.unflatten(0, (*batch, n)).movedim(len(batch), len(batch) + packing.axis)
    return y if losses is None else (y, losses)


def _rows(mask: Tensor | None, batch: tuple[int, ...], length: int, device: torch.device) -> Tensor:
    mask = torch.ones((), dtype=torch.bool, device=device) if mask is None else mask
    return mask.expand(*batch, length).reshape(-1, length)


def _offsets(tokens: Tensor) -> Tensor:
    """The `cu_seqlens` of the tokens of each sequence, int32 [batch + 1]."""
    return F.pad(tokens.sum(-1).cumsum(0), (1, 0)).int()


def _in_a_row(
    module: Any, x: Tensor, legs: tuple[str, ...], batch: tuple[int, ...], tokens: Mapping[str | None, Tensor]
) -> Tensor:
    """An input [batch..., legs] with its tokens in one row, [1, ...]; an input without a sequence leg as it is."""
    axes = [axis for axis, leg in enumerate(legs) if leg in tokens]
    if len(axes) > 1:
        raise InputError(
            f"{module.design.name}: padding changes its results, and an input has both a query and a key leg: give "
            "sequences of equal length."
        )
    if not axes:
        return x
    own = x.shape[x.dim() - len(legs) :]
    rows = x.expand(*batch, *own).reshape(-1, *own).movedim(1 + axes[0], 1).flatten(0, 1)
    return rows.index_select(0, tokens[legs[axes[0]]]).movedim(0, axes[0])[None]
