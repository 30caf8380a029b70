"""Calls whose key mask marks padding: at the tokens, the result is that of each sequence without its padding.

If padding would change the result (`graph/padding.py`), the call runs on the tokens alone, as a packed row.

# x [2, 4, f], key_mask 0111 0011     ->     x [1, 5, f], cu_seqlens [0, 3, 5]
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensor

from tensornet_attn.errors import InputError
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.executable import Result
from tensornet_attn.nn.offsets import of_one_forward, on_host

Tensor = torch.Tensor
PLACES = ("padding", "padding on the left", "padding between tokens")
APART = "other padding behind the queries than behind the keys"


def call_of_tokens(
    module: Any,
    inputs: tuple[Tensor, ...],
    key_mask: Tensor | None = None,
    rows: Tensor | None = None,
    cache: Cache | None = None,
    counted: bool = False,
    **options: Any,
) -> Any:
    """Returns `module(*inputs, key_mask=key_mask, cache=cache, **options)` with the exact results at tokens.

    key_mask: [batch..., m], false at padding. `rows`: [batch..., n], false at padding among the queries, if the keys
    are an input of their own; otherwise queries are keys. `counted`: hidden rows between tokens are positions. The
    result at padding is unspecified. Raises InputError if a cache or other options exclude the exact result; in a
    compiled program, an assertion fails.
    """
    problem = changed_by_padding(module, inputs, key_mask, rows, counted)
    if problem is None:
        shown = key_mask if module._signature.masks.keys else None
        return module(*inputs, key_mask=shown, cache=cache, **options)
    what = "documents of a packed row" if "cu_seqlens" in options else None
    what = "calls with a mask of pairs" if options.get("mask") is not None else what
    what = "sequences of a cache" if cache is not None else what
    if what is not None:
        padding = module._packing.evaluation
        hint = "" if padding.behind else "pad on the right, or " if padding.before else "pad on the left, or "
        raise InputError(
            f"{module.design.name}: {what} take no padding, because {problem}: {hint}give sequences of equal length."
        )
    return _call_packed(module, inputs, key_mask, rows, counted, options)


def changed_by_padding(
    module: Any,
    inputs: tuple[Tensor, ...],
    key_mask: Tensor | None,
    rows: Tensor | None = None,
    counted: bool = False,
) -> str | None:
    """Why the padding of a call changes results at tokens. Returns None if it does not, or if there is none.

    Arguments as in `call_of_tokens`. A compiled program, or a captured CUDA graph, asserts that there is none. Masks
    that cannot be read, under `vmap` and of the meta device, are taken to hide nothing between tokens.
    """
    masks = [mask for mask in (key_mask, rows) if mask is not None and mask.dtype == torch.bool and mask.dim()]
    if not masks:
        return None
    reasons = _reasons(module._packing, rows is not key_mask and _own_keys(module._packing, inputs), counted)
    if not reasons:
        return None
    compiling = torch.compiler.is_compiling()
    if not compiling and any(map(_unreadable, masks)):
        reasons = {reason: where for reason, where in reasons.items() if where in PLACES[:2]}
        if not reasons:
            return None
    recorded = compiling or (masks[0].is_cuda and torch.cuda.is_current_stream_capturing())
    if recorded:
        flags: Any = torch.stack([_hidden(_spans(mask) if counted else mask) for mask in masks]).any(0)
    else:
        read = _hidden_in_spans_on_host if counted else _hidden_on_host
        flags = [any(flags) for flags in zip(*[on_host(mask, read) for mask in masks], strict=True)]
        if not flags[0]:
            return None
    for reason, where in reasons.items():
        changes = (
            _ends_apart([_spans(mask) if counted else mask for mask in masks])
            if where == APART
            else flags[PLACES.index(where)]
        )
        if recorded:
            torch._assert_async(~changes, f"{module.design.name}: a compiled call takes no {where}, because {reason}.")
        elif bool(changes):
            return reason
    return None


def _reasons(packing: Any, own_keys: bool, counted: bool) -> dict[str, str]:
    """Why padding changes results, and the place of this padding; a wide place replaces a narrow one."""
    padding = packing.evaluation
    places = {} if counted else {padding.between: PLACES[2]}
    places |= {padding.apart: APART} if own_keys else {}
    places |= {padding.before: PLACES[1], padding.behind: PLACES[0]}
    return {reason: where for reason, where in places.items() if reason is not None}


def _unreadable(mask: Tensor) -> bool:
    return mask.is_meta or isinstance(mask, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(mask)


def _hidden(mask: Tensor) -> Tensor:
    """Whether a mask [batch..., length] hides rows at each of PLACES, bool [3]."""
    begins = mask[..., 1:] & ~mask[..., :-1]
    parts = begins.sum(-1) + mask[..., :1].sum(-1)
    return torch.stack([~mask.all(), begins.any(), (parts > 1).any()])


def _hidden_on_host(mask: Tensor) -> list[bool]:
    return [False] * len(PLACES) if bool(mask.all()) else _hidden(mask).tolist()


def _hidden_in_spans_on_host(mask: Tensor) -> list[bool]:
    return _hidden_on_host(mask if bool(mask.all()) else _spans(mask))


def _ends_apart(masks: list[Tensor]) -> Tensor:
    """Whether rows are hidden between the tokens, or other numbers of rows behind the keys than behind the queries."""
    between = torch.stack([_hidden(mask)[2] for mask in masks]).any()
    first, *more_counts = [(~mask).flip(-1).cumprod(-1).sum(-1) for mask in masks]
    return between | (first != (more_counts[0] if more_counts else 0)).any()


def _own_keys(packing: Any, inputs: tuple[Tensor, ...]) -> bool:
    """Whether the keys of a call are an input of their own."""
    legs_of = [legs for x, legs in zip(inputs, packing.inputs, strict=False) if x is not None]
    return not packing.tied and any(packing.key in legs for legs in legs_of)


def _spans(mask: Tensor) -> Tensor:
    """The rows from the first visible one of each sequence to the last one."""
    return (mask.cumsum(-1) > 0) & (mask.flip(-1).cumsum(-1) > 0).flip(-1)


def _call_packed(
    module: Any,
    inputs: tuple[Tensor, ...],
    key_mask: Tensor | None,
    rows: Tensor | None,
    counted: bool,
    options: dict[str, Any],
) -> Result:
    packing, signature = module._packing, module._signature
    checked = key_mask if signature.masks.keys else None
    batch, lengths = signature.batch(inputs), signature.check(inputs, None, checked, None)
    n, m = lengths[packing.query], lengths[signature.masks.key]
    legs_of = [*zip(inputs, packing.inputs, strict=False)]
    visible = _of_batch(key_mask, (*batch, m), inputs[0].device)
    keys = queries = on_host(visible, _tokens_in_spans if counted else _tokens)
    offsets = {"cu_seqlens": keys.offsets}
    if _own_keys(packing, inputs):
        queries = on_host(_of_batch(rows, (*batch, n), visible.device), _tokens)
        offsets = {"cu_seqlens_q": queries.offsets, "cu_seqlens_k": keys.offsets}
    tokens = {packing.query: queries.places, packing.key: keys.places}
    if counted and checked is not None:
        options = options | {"key_mask": visible.flatten()[keys.places]}
    packed = [x if x is None else _in_a_row(module, x, legs, batch, tokens) for x, legs in legs_of]
    returned = module(*packed, **offsets, **options)
    y, losses = returned if isinstance(returned, tuple) else (returned, None)
    y = y.squeeze(0).movedim(packing.axis, 0)
    y = y.new_zeros(prod(batch) * n, *y.shape[1:]).index_copy(0, tokens[packing.query], y)
    y = y.unflatten(0, (*batch, n)).movedim(len(batch), len(batch) + packing.axis)
    return y if losses is None else (y, losses)


def _of_batch(mask: Tensor | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A mask with all dimensions of the batch."""
    mask = torch.ones((), dtype=torch.bool, device=device) if mask is None else mask
    return mask if mask.shape == shape else mask.expand(shape)


class Tokens(NamedTuple):
    """The tokens of all sequences: their places among all rows, [tokens], and `cu_seqlens`, int32 [sequences + 1]."""

    places: Tensor
    offsets: Tensor


def _tokens(mask: Tensor) -> Tokens:
    counts = mask.reshape(-1, mask.shape[-1]).sum(-1)
    return Tokens(mask.flatten().nonzero()[:, 0], of_one_forward(F.pad(counts.cumsum(0), (1, 0)).int()))


def _tokens_in_spans(mask: Tensor) -> Tokens:
    return _tokens(_spans(mask))


def _in_a_row(
    module: Any, x: Tensor, legs: tuple[str, ...], batch: tuple[int, ...], tokens: Mapping[str | None, Tensor]
) -> Tensor:
    """An input [batch..., legs] with its tokens in one row, [1, ...]; an input without a sequence leg as it is."""
    axes = [axis for axis, leg in enumerate(legs) if leg in tokens]
    leading = x.shape[: x.dim() - len(legs)].numel()
    if len(axes) > 1 or (not axes and leading > 1):
        reason = "has both a query and a key leg" if axes else "without a sequence leg differs between sequences"
        raise InputError(
            f"{module.design.name}: padding changes its results, and an input {reason}: give sequences of equal length."
        )
    sizes = x.shape[x.dim() - len(legs) :]
    if not axes:
        return x.reshape(sizes)
    rows = x.expand(*batch, *sizes).reshape(-1, *sizes).movedim(1 + axes[0], 1).flatten(0, 1)
    return rows.index_select(0, tokens[legs[axes[0]]]).movedim(0, axes[0])[None]
