"""Masks and noise of a call, checked: which forms there are, where they act, and what their sizes must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.ops import OPS

Tensor = torch.Tensor
Sizes = tuple[tuple[str, int | None], ...]


@dataclass(frozen=True)
class Masks:
    """Where masks act. `places`: (step, kind, other legs and their sizes) of the boxes that `mask` acts in."""

    design: str
    query: str
    key: str
    places: tuple[tuple[str, str, Sizes], ...]
    keys: bool  # whether `key_mask` acts anywhere
    fast_weights: str | None  # a delta rule, which no mask acts in
    apart: tuple[str, ...] = ()  # boxes whose legs the plan took apart: their maps are no more one for each entry
    maps: tuple[str, ...] = ()  # sums over keys that the plan reads as attention maps, in which nothing can be added

    def refuse(self, sentence: str) -> InputError:
        return InputError(f"{self.design}: {sentence}")


def check_mask(masks: Masks, mask: Tensor, batch: tuple[int, ...], lengths: dict[str, int]) -> None:
    """[n, m], [batch..., n, m] or [batch..., other legs, n, m], boolean or float. Raises InputError."""
    if masks.fast_weights is not None:
        raise masks.refuse(f"no mask acts in the delta rule '{masks.fast_weights}'; give a key_mask.")
    if not masks.places:
        raise masks.refuse("mask: no box of this design has both a query and a key leg.")
    if not isinstance(mask, torch.Tensor):
        raise masks.refuse(f"mask is a {type(mask).__name__}, not a tensor.")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise masks.refuse(f"mask is {mask.dtype}; give a boolean (true = may look) or a float (added).")
    forbids = next((place for place in masks.places if not OPS[place[1]].takes_float_mask), None)
    if mask.dtype != torch.bool and forbids is not None:
        raise masks.refuse(f"a float mask cannot be added in '{forbids[0]}', a {forbids[1]} box; give a boolean one.")
    if mask.dtype != torch.bool and masks.maps:
        raise masks.refuse(
            f"a float mask cannot be added in '{masks.maps[0]}', a sum that is planned as attention; give a boolean "
            "one, or compile with backend='reference'."
        )
    n, m = lengths[masks.query], lengths[masks.key]
    if mask.dim() < 2 or tuple(mask.shape[-2:]) != (n, m):
        raise masks.refuse(
            f"mask has shape {list(mask.shape)}; its last two sizes are '{masks.query}' {n} and '{masks.key}' {m}."
        )
    for _, _, others in masks.places:
        _check_leading(masks, mask, batch, others)


def _check_leading(masks: Masks, mask: Tensor, batch: tuple[int, ...], others: Sizes) -> None:
    """What stands before query and key: nothing, the batch, or the batch and the box's other legs."""
    leading = tuple(mask.shape[:-2])
    wanted: list[tuple[str, int | None]] = [("batch", size) for size in batch]
    if len(leading) not in (0, len(batch)):
        if masks.apart:
            raise masks.refuse(
                f"mask has {mask.dim()} dimensions; '{masks.apart[0]}' is planned as one map for many entries of its "
                f"legs, so give [{masks.query}, {masks.key}] or [batch..., {masks.query}, {masks.key}], "
                "or compile with backend='reference'."
            )
        wanted += others
    if len(leading) not in (0, len(wanted)):
        legs = [leg for leg, _ in others]
        pair = [masks.query, masks.key]
        forms = [
            pair,
            *([["batch...", *pair]] if batch else []),
            *([["batch..."] * bool(batch) + legs + pair] if legs else []),
        ]
        texts = " or ".join(f"[{', '.join(form)}]" for form in forms)
        raise masks.refuse(f"mask has {mask.dim()} dimensions with {len(batch)} of the batch; give {texts}.")
    for got, (leg, size) in zip(leading, wanted, strict=False):
        if size is not None and got != size and got != 1 and not (leg == "batch" and size == 1):
            raise masks.refuse(f"mask has shape {list(mask.shape)}: {got} on '{leg}', which is {size}.")


def check_key_mask(masks: Masks, key_mask: Tensor, batch: tuple[int, ...], lengths: dict[str, int]) -> None:
    """[batch..., m], boolean. Raises InputError."""
    if not masks.keys:
        raise masks.refuse("key_mask: no box of this design runs over a key leg.")
    if not isinstance(key_mask, torch.Tensor):
        raise masks.refuse(f"key_mask is a {type(key_mask).__name__}, not a tensor.")
    if key_mask.dtype != torch.bool:
        raise masks.refuse(f"key_mask is {key_mask.dtype}; give a boolean one, true = may look.")
    m = lengths[masks.key]
    if key_mask.dim() < 1 or key_mask.shape[-1] != m:
        raise masks.refuse(f"key_mask has shape {list(key_mask.shape)}; its last size is '{masks.key}' {m}.")
    leading = tuple(key_mask.shape[:-1])
    for got, size in zip(reversed(leading), reversed(batch), strict=False):
        if got != size and got != 1 and size != 1:
            raise masks.refuse(f"key_mask has shape {list(key_mask.shape)}; the batch is {list(batch)}.")


def check_noise(
    design: str,
    known: Mapping[str, Sizes],
    noise: Mapping[str, Tensor],
    batch: tuple[int, ...],
    lengths: dict[str, int],
) -> None:
    """Values by name, [batch..., legs]. Raises InputError."""
    for name, value in noise.items():
        if name not in known:
            raise InputError(f"{design}: there is no noise '{name}'; {nearest(str(name), known)}")
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{design}: noise '{name}' is a {type(value).__name__}, not a tensor.")
        legs = known[name]
        wanted = [lengths.get(leg) if size is None else size for leg, size in legs]
        shape = f"[{', '.join(['batch...', *(leg for leg, _ in legs)])}]"
        if value.dim() < len(legs):
            raise InputError(f"{design}: noise '{name}' has shape {list(value.shape)}; it needs {shape}.")
        for got, (leg, _), size in zip(value.shape[value.dim() - len(legs) :], legs, wanted, strict=True):
            if size is not None and got != size:
                raise InputError(
                    f"{design}: noise '{name}' has size {got} on leg '{leg}', which is {size}; give {shape}."
                )
        for got, size in zip(reversed(value.shape[: value.dim() - len(legs)]), reversed(batch), strict=False):
            if got != size and got != 1 and size != 1:
                raise InputError(f"{design}: noise '{name}' has shape {list(value.shape)}; the batch is {list(batch)}.")
