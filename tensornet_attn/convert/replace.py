"""Replaces every attention of a model with a design that computes the same. On an error, the model is unchanged."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from tensornet_attn.convert.attentions import CROSS, buckets_of, known, outside_of, place_of, read_trained
from tensornet_attn.convert.calls import scaling_of as scaling_in
from tensornet_attn.convert.families import Family, family_of
from tensornet_attn.convert.known import reading_of, swappable
from tensornet_attn.convert.layers import window_of
from tensornet_attn.convert.make import Asked, fresh, made_of, start_from
from tensornet_attn.convert.masks import AlibiBiases, RopePositions, scaling_of
from tensornet_attn.convert.saving import finish_conversion
from tensornet_attn.convert.trained import Buckets, refusal
from tensornet_attn.convert.wrap import ReplacedAttention, Shared, Swapped, swap_of
from tensornet_attn.errors import InputError
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.spec.read import Source

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def convert_model(
    model: nn.Module,
    design: Source,
    *,
    backend: str = "auto",
    legs: Mapping[str, int | float | str] | None = None,
    settings: Mapping[str, int | float | str] | None = None,
    init: str = "trained",
) -> nn.Module:
    """Replaces every attention of a model in place with a design that computes the same, and returns the model.

    `model` is a Hugging Face model with an attention from the table of docs/convert.md, or any module that contains
    nn.MultiheadAttention. Outputs, dtype, device and training mode do not change, and `generate` still uses a cache.
    With `init="fresh"` the design has newly initialised weights; it can be any design with the widths of the attention.
    `backend`, `legs` and `settings` are as in `convert`. Raises InputError with the module's path if an attention
    cannot be converted; the model is then unchanged.

    >>> from torch import nn
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
    >>> convert_model(encoder, "thsa").layers[0].self_attn.design.design.name
    'thsa'
    """
    if init not in ("trained", "fresh"):
        raise InputError(f"init is 'trained' or 'fresh', not {init!r}.")
    found_attentions, shared = attentions(model), Shared()
    swaps = [
        (attention, _swapped(attention, found_attentions, design, init, (backend, legs, settings), shared))
        for attention in found_attentions
    ]
    for attention, new in swaps:
        for parent, name in attention.places:
            setattr(parent, name, new)
    finish_conversion(model, [new for _, new in swaps])
    if "transformers" in sys.modules:
        import tensornet_attn.convert.pretrained  # noqa: F401  # from_pretrained then reads what they save
    return model


@dataclass
class Found:
    """An attention of a model, with the parents and attributes that refer to it."""

    module: nn.Module
    path: str
    places: list[tuple[nn.Module, str]] = field(default_factory=list)


def attentions(model: nn.Module) -> list[Found]:
    """The attentions of a model, without duplicates. Raises InputError if there are none or one cannot be replaced."""
    if not isinstance(model, nn.Module):
        raise InputError(f"a {type(model).__name__} is not a model; give an nn.Module.")
    if swappable(model):
        raise InputError(f"{place_of(model, '')} is itself an attention; convert it with ta.convert.")
    found_by_id: dict[int, Found] = {}
    for path, parent, name, module in _candidates(model, ""):
        if isinstance(parent, nn.TransformerDecoderLayer) and name == "multihead_attn":
            raise refusal(place_of(module, path), CROSS)
        if not swappable(module):
            read_trained(module, path)  # raises an error with the reason
        found_by_id.setdefault(id(module), Found(module, path)).places.append((parent, name))
    if not found_by_id:
        raise InputError(f"no attention found in {type(model).__name__}.")
    for attention in found_by_id.values():
        _check_alone(attention, model)
    return list(found_by_id.values())


def _candidates(parent: nn.Module, path: str) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """(path, parent, attribute, module) of each module that is a known attention or has "Attention" in its name."""
    for name, module in parent._modules.items():  # named_children skips shared modules
        inner_path = f"{path}.{name}" if path else name
        if module is None or any(
            isinstance(candidate, CompiledDesign) for candidate in (module, getattr(module, "design", None))
        ):
            continue
        replaceable = swappable(module)
        inside = [] if replaceable else list(_candidates(module, inner_path))
        if inside or not (replaceable or "Attention" in type(module).__name__):
            yield from inside
        else:
            yield inner_path, parent, name, module


def _check_alone(attention: Found, model: nn.Module) -> None:
    """Refuses an attention with hooks, and one that shares a weight with another module. Raises InputError."""
    own_modules = {id(module): module for module in attention.module.modules()}
    hooks = [hook for inner in own_modules.values() for kind in HOOKS for hook in getattr(inner, kind).values()]
    # transformers leaves these hooks after a call with output_attentions or output_hidden_states
    if any("output_capturing_hook" not in getattr(hook, "__qualname__", "") for hook in hooks):
        raise refusal(place_of(attention.module, attention.path), "hooks are registered on it, which would be lost")
    others = (module for module in model.modules() if id(module) not in own_modules)
    outside = {id(parameter) for module in others for parameter in module._parameters.values()}
    for name, parameter in attention.module.named_parameters():
        if id(parameter) in outside:
            reason = f"its '{name}' is shared with another module, and the conversion would end the sharing"
            raise refusal(place_of(attention.module, attention.path), reason)


def _swapped(
    attention: Found,
    found_attentions: list[Found],
    design: Source,
    init: str,
    options: tuple[str, Asked, Asked],
    shared: Shared,
) -> Swapped:
    """The new module, with the device, dtype, training mode and `requires_grad` of the old module."""
    family, reading = family_of(attention.module) or Family(()), reading_of(attention.module, design)
    if init == "fresh":
        outside = outside_of(attention.module, known(attention.module, attention.path)[1], family.layout)
        compiled = fresh(outside, design, *options)
        looks_back = bool(compiled.plan.graph.causal)
        replaced = replace(_place(attention.module, family, outside.where, outside.causal), looks_back=looks_back)
    elif reading is not None and reading.in_models:
        compiled = made_of(attention.module, design, *options, where=attention.path)
        replaced = _place(
            attention.module, family, place_of(attention.module, attention.path), bool(compiled.plan.graph.causal)
        )
        base = reading.numbers(attention.module).get("base")
        scaling = None if base is None else scaling_of(scaling_in(replaced.where, attention.module))
        rope = None if base is None else RopePositions(base, family.layout.interleaved, reading.once, scaling)
        replaced = replace(replaced, rope=rope, window=window_of(attention.module))
    else:
        trained = read_trained(attention.module, attention.path)
        if family.layout.buckets and trained.buckets is None and not trained.cross:
            trained = replace(trained, buckets=_of_the_first(attention, found_attentions))
        compiled = start_from(trained, design, *options)
        replaced = _place(attention.module, family, trained.where, trained.causal)
        layout, base = family.layout, trained.rope_base
        replaced = replace(
            replaced,
            rope=None
            if base is None
            else RopePositions(base, layout.interleaved, layout.once, scaling_of(trained.rope_scaling)),
            alibi=AlibiBiases(layout.alibi, trained.weights["Wq"].shape[1]) if trained.alibi else None,
            window=trained.window,
            cross=trained.cross,
        )
        if trained.buckets is not None:
            graph, first = compiled.plan.graph, not trained.buckets.passed_in
            shape = {*trained.buckets.weight.shape}
            candidates = graph.of_role("weight" if first else "input")
            table = next(tensor.name for tensor in candidates if {size_of(graph, leg) for leg in tensor.legs} == shape)
            replaced = replace(replaced, table=table, gives=first)
    replaced = replace(replaced, backend=options[0])
    entry, *rest = compiled.plan.graph.of_role("input")
    provided = {replaced.table} | ({rest[0].name} if replaced.cross and rest else set())
    if entry.default is not None or any(tensor.default is None and tensor.name not in provided for tensor in rest):
        needed = ", ".join(tensor.name for tensor in (entry, *rest) if tensor.default is None)
        raise InputError(
            f"{replaced.where} cannot become '{compiled.design.name}': it needs {needed}, but is called with one input."
        )
    if not any(parameter.requires_grad for parameter in attention.module.parameters()):
        compiled.requires_grad_(False)
    new = swap_of(attention.module, replaced)(
        compiled.train(attention.module.training), replaced, attention.module, shared
    )
    new.training = attention.module.training  # not train(): dropout and LayerNorm keep their own mode
    return new


def _of_the_first(attention: Found, found_attentions: list[Found]) -> Buckets | None:
    """The relative position biases that the first attention of the stack passes to this attention."""
    stack = attention.path.rpartition(".block.")[0]
    for candidate in found_attentions:
        buckets = (
            buckets_of(candidate.path, candidate.module) if candidate.path.rpartition(".block.")[0] == stack else None
        )
        if buckets is not None:
            return replace(buckets, passed_in=True)
    return None


def _place(module: Any, family: Family, where: str, causal: bool) -> ReplacedAttention:
    layout = family.layout
    inside = getattr(module, layout.inside) if layout.inside else module
    return ReplacedAttention(
        where,
        tuple(inspect.signature(type(module).forward).parameters)[1:],
        causal,
        behind=family.behind,
        layer=getattr(inside, "layer_idx", None),
        hides=layout.hides,
        biased=layout.buckets,
    )
