"""Converts a trained attention to a design that contains it, with matching sizes and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn import compiler
from tensornet_attn.convert import gain
from tensornet_attn.convert.attentions import place_of, read_trained
from tensornet_attn.convert.known import plain, reading_of
from tensornet_attn.convert.layers import read_as
from tensornet_attn.convert.trained import TrainedAttention, Widths
from tensornet_attn.convert.values import Bias, Turn, Weights, fill, lifted, lost
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.spec import Design
from tensornet_attn.spec.read import Source
from tensornet_attn.special import contains, embed, route

Asked = Mapping[str, Any] | None  # sizes or settings
TOLERANCE = 1e-6  # relative, of the comparison in float64


def convert(
    module: nn.Module,
    design: Source,
    *,
    backend: str = "auto",
    legs: Mapping[str, int | float | str] | None = None,
    settings: Mapping[str, int | float | str] | None = None,
    memory: bool = False,
    jitter: float = 0.0,
    where: str = "",
) -> CompiledDesign:
    """Converts a trained attention to a compiled design that computes the same.

    `module` is an attention listed in docs/convert.md. `design` contains multi-head attention (`contains` in its file);
    biases, rotary positions and dropout of the module are added to it. `legs` and `settings` set sizes that the module
    does not determine, such as ranks and numbers of experts. `memory` adds a second input for keys and values. `jitter`
    adds Gaussian noise to every weight, relative to its root mean square: without it, equal experts or mixture
    components get equal gradients and stay equal. `where` is the module's path, for errors.

    The result maps [batch..., n, f] to [batch..., n, f], with the module's device and dtype. Before the jitter, its
    outputs are compared with those of the trained weights on random input. Raises InputError if the module cannot be
    converted.

    >>> layer, x = nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 5, 16)
    >>> new = convert(layer, "thsa")
    >>> bool((new(x) - layer(x, x, x)[0]).abs().max() < 1e-5), list(new.C.shape)
    (True, [16, 16])
    """
    converted = made_of(module, design, backend, legs, settings, memory, where).train(module.training)
    with torch.no_grad():
        for weight in converted.parameters() if jitter else ():
            weight.add_(jitter * weight.square().mean().sqrt() * torch.randn_like(weight))
    return converted


def made_of(
    module: nn.Module, design: Source, backend: str, legs: Asked, settings: Asked, memory: bool = False, where: str = ""
) -> CompiledDesign:
    """Converts a module to the shipped design that equals it, or to a design that contains its attention."""
    reading = reading_of(module, design)
    if reading is None:
        return start_from(read_trained(module, where), design, backend, legs, settings, memory)
    converted, location = read_as(reading, module, place_of(module, where), backend), place_of(module, where)
    for name, asked in {**(legs or {}), **(settings or {})}.items():
        if converted.plan.graph.values.get(name) != asked:
            needed = converted.plan.graph.values.get(name)
            raise InputError(
                f"{location} cannot become {name_of(design)}: '{name}' must be {needed}, as in the module, not {asked}."
            )
    if memory and len(converted.plan.graph.of_role("input")) < 2:
        raise InputError(f"{location} cannot become {name_of(design)}: it takes no second input.")
    return converted


def start_from(trained: TrainedAttention, design: Source, *options: Any) -> CompiledDesign:
    """Calls `made_from`, and adds the module and the design to its errors."""
    try:
        return made_from(trained, design, *options)
    except InputError as error:
        raise InputError(f"{trained.where} cannot become {name_of(design)}: {error}") from None


def fresh(outside: Widths, design: Source, backend: str, legs: Asked, settings: Asked) -> CompiledDesign:
    """The design with newly initialised weights, in place of a module of these widths.

    The feature leg of its input gets the module's width, unless `legs` sets it. Raises InputError if the design cannot
    replace the module.
    """
    graph = build(compiler.load(design))
    message = f"{outside.where} cannot become '{graph.name}': "
    x = graph.of_role("input")[0]
    features = [leg for leg in x.legs if not graph.leg[leg].sequence]
    if len(features) != 1 or len(x.legs) != 2:
        raise InputError(
            f"{message}'{x.name}' has the legs {' '.join(x.legs)}, but its input is [batch, n, {outside.width}]."
        )
    sized = compiler.load(design, legs={features[0]: outside.width, **(legs or {})}, settings=settings)
    graph = build(sized)
    if (size := size_of(graph, features[0])) != outside.width:
        raise InputError(f"{message}leg '{features[0]}' is {size}, but its input has width {outside.width}.")
    output_legs = graph.step[graph.output].legs
    if len(output_legs) != 2 or size_of(graph, output_legs[-1]) != outside.output:
        sizes = " ".join(f"{leg} {size_of(graph, leg) or ''}".strip() for leg in output_legs)
        raise InputError(f"{message}its output has the legs {sizes}, but must be [batch, n, {outside.output}].")
    like = outside.like
    return compiler.compile(sized, backend, outside.causal or None, like.device, like.dtype)


def made_from(
    trained: TrainedAttention,
    design: Source,
    backend: str = "auto",
    legs: Asked = None,
    settings: Asked = None,
    memory: bool = False,
) -> CompiledDesign:
    """The design with the weights of a trained attention. Raises InputError if its outputs differ."""
    like = trained.weights["Wq"]
    # float64, so that scaled and mixed weights are rounded only at the end
    weights, biases = (
        {key: tensor.cpu().double() for key, tensor in tensors.items()} for tensors in (trained.weights, trained.biases)
    )
    norms = {key: replace(norm, weight=norm.weight.cpu().double()) for key, norm in trained.norms.items()}
    buckets = trained.buckets and replace(trained.buckets, weight=trained.buckets.weight.cpu().double())
    sinks = None if trained.sinks is None else trained.sinks.cpu().double()
    trained = replace(trained, weights=weights, biases=biases, norms=norms, buckets=buckets, sinks=sinks)
    general = compiler.load(design, legs=legs, settings=settings)
    source, below = base_of(trained, general)
    sized, above = carried(general, source, below, trained.causal)
    requested, needed = build(general).values, build(sized).values
    for name in [*(legs or {}), *(settings or {})]:
        if requested.get(name) != needed.get(name):
            message = f"the requested '{name}' is {requested[name]}, but the trained weights need {needed[name]}."
            raise InputError(message)
    final, values, table = gained(sized, above, trained, memory)
    agree(trained, (final, values), gained(source, below, trained, False)[:2])
    if table and trained.buckets is not None and trained.buckets.passed_in:
        final = compiler.load(gain.with_weight_given(final.as_dict(), table))
        del values[table]
    compiled = compiler.compile(final, backend, trained.causal, like.device, like.dtype)
    fill(compiled, values)
    return compiled


def values_of(trained: TrainedAttention, design: Source) -> dict[str, Tensor]:
    """The values of the design's weights, as differentiable functions of the trained weights."""
    source, below = base_of(trained, compiler.load(design))
    return gained(*carried(compiler.load(design), source, below, trained.causal), trained, False)[1]


def base_of(trained: TrainedAttention, general: Design) -> tuple[Design, Weights]:
    """The trained attention as a shipped design that the general design contains, and its weights.

    The shipped design is mhsa, or gqa if several query heads share a key head. If the general design has rotary
    positions, it is mhsa_rope or gqa_rope; otherwise, rotary positions are added later.
    """
    g = trained.weights["Wk"].shape[1]
    kind = "mhsa" if g == trained.weights["Wq"].shape[1] else "gqa"
    standard = trained.rope_base == 10000 and trained.rope_fraction == 1 and not trained.rope_scaling
    rotary = [f"{kind}_rope"] if standard and contains(general, f"{kind}_rope") else []
    name = (rotary or [kind])[0]
    f, h, d = trained.weights["Wq"].shape
    sizes = {"f": f, "d": d} | ({"h": h} if kind == "mhsa" else {"g": g, "j": h // g})
    design = compiler.load(name, legs=sizes)
    shapes = {} if kind == "mhsa" else {"Wq": (f, g, h // g, d), "Wo": (g, h // g, d, f)}
    values = {key: tensor.reshape(shapes.get(key, tensor.shape)) for key, tensor in trained.weights.items()}
    biases = {
        f"W{key}": Bias(0, trained.biases[f"b{key}"].reshape(values[f"W{key}"].shape[1:]))  # the weight's legs but f
        for key in "qkv"
        if f"b{key}" in trained.biases
    }
    last = {key: Turn(values[f"W{key}"].ndim - 1, d, key) for key in "qk"}
    turned = last if trained.rope_base is not None and not rotary else {}
    turns, norms = ({f"W{key}": last[key] for key in letters} for letters in (turned, trained.norms))
    return design, Weights(values, biases, turns, norms)


def carried(general: Design, source: Design, below: Weights, causal: bool) -> tuple[Design, Weights]:
    """The general design at sizes that contain the source, and its weights, by the shortest chain of special cases."""
    names = route(general, source.name)
    if len(names) == 1:
        return source, below
    chain, design = [general, *(compiler.load(name) for name in names[1:-1])], source
    for name, bigger in zip(reversed(names[1:]), reversed(chain), strict=True):
        step = embed(bigger, name, design)
        if step.causal and not causal:
            raise InputError(f"'{bigger.name}' contains '{name}' only if both are causal.")
        above = lifted(step, below)
        if homeless := lost(step, below, above):
            raise InputError(f"'{bigger.name}' cannot hold the bias, norm or rotary positions of '{homeless[0]}'.")
        design, below = step.general, above
    return design, below


def gained(
    design: Design, weights: Weights, trained: TrainedAttention, memory: bool
) -> tuple[Design, dict[str, Tensor], str]:
    """Adds the other parts of the trained layer to the design: biases, positions, norms, window, dropout and others.

    Returns the design, all its values, and the name of the weight of relative position biases, or an empty string.
    """
    document, graph, values = design.as_dict(), build(design), dict(weights.values)
    document.pop("contains", None)
    table = ""
    if memory or trained.cross:
        document, _ = gain.with_memory(document, graph, trained.cross)
    if weights.biases:
        document, names = gain.with_biases(document, graph, {name: bias.axis for name, bias in weights.biases.items()})
        values |= {names[weight]: bias.tensor for weight, bias in weights.biases.items()}
    if weights.turns:
        axes = {name: (turn.axis, turn.width) for name, turn in weights.turns.items()}
        base, fraction = plain(trained.rope_base or 1.0), plain(trained.rope_fraction)
        document = gain.with_rope(document, graph, axes, base, fraction, trained.rope_scaling)
    for weight, turn in weights.norms.items():
        norm = trained.norms[turn.letter]
        shape = tuple(norm.weight.shape)
        document, name, sizes = gain.with_norm(
            document, graph, weight, turn.axis, (norm.kind, norm.eps), shape, norm.whole
        )
        values[name] = norm.weight.reshape(sizes)
    if trained.window:
        document = gain.with_window(document, graph, *trained.window)
    if trained.sinks is not None:
        document, name, sizes = gain.with_sinks(document, graph, len(trained.sinks))
        values[name] = trained.sinks.reshape(sizes)
    if trained.softcap:
        document = gain.with_softcap(document, graph, trained.softcap)
    if trained.alibi:
        document = gain.with_alibi(document, graph, trained.weights["Wq"].shape[1])
    if trained.buckets is not None:
        count, heads = trained.buckets.weight.shape
        numbers = (heads, count, trained.buckets.furthest, trained.buckets.both_sides)
        document, table = gain.with_buckets(document, graph, *numbers)
        values[table] = trained.buckets.weight
    if trained.dropout:
        document = gain.with_dropout(document, graph, trained.dropout)
    if "bo" in trained.biases:
        document, name = gain.with_output_bias(document, graph, graph.step[graph.output].legs[-1])
        values[name] = trained.biases["bo"]
    return compiler.load(document), values, table


def agree(trained: TrainedAttention, *designs: tuple[Design, Mapping[str, Tensor]]) -> None:
    """Compares two designs with their weights on random input in float64. Raises InputError if they differ."""
    outputs, n = [], 4 if trained.window is None else min(trained.window[0] + 3, 64)
    for design, values in designs:
        module = compiler.reference(design, trained.causal, device="cpu", dtype=torch.float64).eval()
        fill(module, values)
        needed_inputs = [tensor for tensor in module.plan.graph.of_role("input") if tensor.default is None]
        width = design.legs[needed_inputs[0].legs[-1]] or 1
        x = torch.randn(1, n, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with torch.no_grad():
            outputs.append(module(*[x] * len(needed_inputs)))
    worst, size = (outputs[0] - outputs[1]).abs().max(), outputs[1].abs().max()
    if not worst <= TOLERANCE * max(1.0, float(size)):
        raise InputError(f"its outputs differ by {float(worst):.1e} from the trained layer's.")


def name_of(design: Source) -> str:
    if isinstance(design, Design):
        return f"'{design.name}'"
    name = design.get("name", "this design") if isinstance(design, Mapping) else design
    return f"'{name}'" if "\n" not in str(name) else "this design"
