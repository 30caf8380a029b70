"""Loads a design of a layer, sets the leg of the model's width, and checks that the design fits its place."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tensornet_attn import compiler
from tensornet_attn import graph as graphs
from tensornet_attn.errors import InputError, Problem
from tensornet_attn.graph.build import build
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.visibility import by_distance
from tensornet_attn.models.config import Part
from tensornet_attn.plan.decoding import PLACES, decoding_of
from tensornet_attn.plan.parts import Decoding
from tensornet_attn.spec import Design
from tensornet_attn.spec.places import Document, Path
from tensornet_attn.spec.read import read_document
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.sizes import Sizes
from tensornet_attn.spec.sources import document_of, file_document, text_document


def opened(design: Any, document: Document, path: Path) -> tuple[Document, Reporter]:
    """A new document of the design at `path` of a model's document; without data if the design cannot be read."""
    if isinstance(design, Design):
        return document_of(design)
    if isinstance(design, Mapping):
        inner = inside(document, path)
        return inner, Reporter(inner)
    if "\n" in design:
        return text_document(design, "<text>", None)
    folder = os.path.dirname(document.path or "")  # a path is relative to the model's file, as under `extends`
    file, reporter = file_document(os.path.normpath(os.path.join(folder, design)) if is_path(design) else design)
    if file.data and not {"tensornet", "extends"} & file.data.keys():  # messages quote no file that is not a design
        file = Document({}, file.name)
        reporter = Reporter(file)
        hint = "give a file that starts with 'tensornet: 1'."
        reporter.error("unknown-design", f"'{printable(design)}' is not a design.", (), hint=hint)
    return file, reporter


def shipped(design: Any) -> bool:
    """Whether a part names a shipped design."""
    return isinstance(design, str) and not is_path(design) and "\n" not in design


def is_path(name: str) -> bool:
    """Whether the name of a design or model is a path, and not a shipped name."""
    return "/" in name or os.sep in name or name.endswith((".yaml", ".yml"))


def inside(document: Document, path: Path) -> Document:
    """A copy of the part of a document at `path`, as a document."""
    depth, content = len(path), copy.deepcopy(document.value(path))
    name = content.get("name") if isinstance(content, dict) else None
    out = Document(
        content, document.name if document.values else printable(str(name or "design"), 64), path=document.path
    )
    for locations, inner in ((document.keys, out.keys), (document.values, out.values)):
        inner.update({at[depth:]: location for at, location in locations.items() if at[:depth] == path})
    return out


@dataclass(frozen=True)
class Fitted:
    """A design with its sizes in a model. `causal` is the option that it is compiled with.

    `context`: it has a second input, for a source or a memory. `elements`: number of elements of its weights and
    states.
    """

    design: compiler.Design
    causal: bool | None
    context: bool
    elements: int


@dataclass
class DesignPlace:
    """The place of a design in a model. `role`: mixer, cross or mlp. `longest`: maximum lengths of its two inputs."""

    document: Document
    reporter: Reporter
    path: Path
    role: str
    part: Part
    width: int
    causal: bool  # whether the model requires a causal design
    longest: tuple[int, int]
    failed: bool = field(default=False, init=False)

    def refuse(self, message: str, hint: str, *inner: str, code: str = "no-fit") -> None:
        self.failed = True
        self.reporter.error(code, message, (*self.path, *inner), hint=hint)


def fit(place: DesignPlace) -> Fitted | None:
    """The design at a place, with the sizes of the place; None if it is refused, with the reasons in the reporter."""
    part = place.part
    if place.causal and part.causal is False:
        place.refuse("the model requires a causal design here.", "leave out 'causal: false'.", "causal")
        return None
    at = (*place.path, "design") if place.document.value((*place.path, "design")) is not None else place.path
    reading = read_document(*opened(part.design, place.document, at), kind=compiler.Design)
    if reading.design is None or reading.reporter.failed:
        _report_problems(place, reading.reporter.problems(), {})
        return None
    widths = _width_legs(place, reading.design)
    if place.failed:
        return None
    legs: dict[str, Any] = {**dict.fromkeys(widths, place.width), **part.legs}
    causal = True if place.causal else part.causal
    reading = read_document(*opened(part.design, place.document, at), legs, part.settings, compiler.Design)
    graph = graphs.examine(reading, causal)
    if graph is None or not isinstance(reading.design, compiler.Design):
        _report_problems(place, reading.reporter.problems(), legs)
        return None
    _check_fit(place, graph)
    if place.failed:
        return None
    stored = (*graph.of_role("weight"), *graph.of_role("state"))
    elements = sum(prod(size or 1 for size in graph.shape_of(tensor.name)) for tensor in stored)
    return Fitted(reading.design, causal, len(graph.of_role("input")) > 1, elements)


def _width_legs(place: DesignPlace, design: Design) -> list[str]:
    """The legs of the inputs that take the width of the residual stream: the legs that are not sequence legs."""
    leg_kinds = {
        leg.name: leg.kind
        for leg in Sizes.of(design.declared_legs, design.settings, Reporter(design.document)).legs.values()
    }
    width_legs: list[str] = []
    for name, declared in list(design.inputs.items())[:2]:
        legs = declared.legs.split() if isinstance(declared.legs, str) else list(declared.legs)
        along = [leg_kinds.get(leg) in ("query", "key") for leg in legs]
        if along != [True, False]:
            message = f"input '{name}' of '{design.name}' has the legs '{' '.join(legs)}'."
            place.refuse(message, "give each input a sequence leg and then the leg of the width, e.g. 'n f'.")
            return []
        width_legs.append(legs[1])
    if not width_legs:
        place.refuse(f"'{design.name}' has no input.", "give the design an input such as 'x: n f'.")
    for leg in width_legs:
        if leg in place.part.legs and place.part.legs[leg] != place.width:
            message = f"leg '{leg}' of '{design.name}' has the model's width, {place.width}."
            place.refuse(message, f"leave out '{leg}': the model sets its size.", "legs", leg)
    return width_legs


def _report_problems(place: DesignPlace, problems: list[Problem], legs: Mapping[str, Any]) -> None:
    """Reports the problems of a design, and its place in the model."""
    elsewhere = not problems  # without a problem of its own, the place is reported
    for problem in problems:
        section, name = problem.file.partition("= argument")[0], problem.source.partition(":")[0]
        if problem.line is None and not problem.field:  # nothing could be opened
            message = problem.message.replace("this file", f"'{problem.file}'", 1)
            place.refuse(message, problem.hint, code=problem.code)
        elif problem.file not in ("legs= argument", "settings= argument"):
            place.reporter.reported.append(problem)
            elsewhere |= problem.file != place.document.name
        else:
            overridden = section == "settings" or name in place.part.legs  # otherwise the model's width
            path = (*place.path, section, name) if overridden else ("model", "width")
            place.reporter.error(problem.code, problem.message, path, hint=problem.hint)
    if elsewhere:
        what = f"as used here, {'causal and ' if place.causal else ''}at width {place.width}"
        message = f"this design is invalid{f' {what}' if legs else ''}."
        place.refuse(message, "fix the other problems reported for it.", code="refused")
    place.failed = True


def _check_fit(place: DesignPlace, graph: Graph) -> None:
    inputs, output = graph.of_role("input"), graph.legs_of(graph.output)
    if len(output) != 2 or output[0] != graph.query:
        message = f"the output of '{graph.name}' has the legs '{' '.join(output)}'."
        place.refuse(message, "give the output the query leg and then the leg of the width, for the residual stream.")
    elif size_of(graph, output[1]) != place.width:
        size, into = size_of(graph, output[1]), inputs[0].legs[1]
        message = f"the output of '{graph.name}' has {size} on leg '{output[1]}', its input {place.width} on '{into}'."
        place.refuse(message, "give both the same size: a residual connection adds them.")
    if len(inputs) > 2:
        names = ", ".join(tensor.name for tensor in inputs)
        place.refuse(f"'{graph.name}' has {len(inputs)} inputs: {names}.", "use a design with one or two inputs.")
    elif place.role == "cross" and len(inputs) != 2:
        message = f"'{graph.name}' has one input; 'cross' needs two, the target and the source."
        place.refuse(message, "e.g. the shipped design 'cross'.")
    elif place.role == "cross":
        if graph.tied or (inputs[0].legs[0], inputs[1].legs[0]) != (graph.query, graph.key):
            message = f"the two inputs of '{graph.name}' are not separate queries and keys."
            place.refuse(message, f"e.g. '{inputs[0].name}: n f' and '{inputs[1].name}: m f'.")
    elif len(inputs) == 2 and inputs[1].default != inputs[0].name:
        message = f"'{graph.name}' needs a second input '{inputs[1].name}', but a {place.role} has one input."
        place.refuse(message, "move the design to 'cross' in a decoder, or use a design with one input.")
    for name, rows in zip((graph.query, graph.key), place.longest, strict=True):
        leg = graph.leg[name] if name is not None else None
        if leg is not None and leg.maximum is not None and leg.maximum < rows:
            message = f"leg '{leg.name}' of '{graph.name}' has a maximum of {leg.maximum}; the model needs {rows} rows."
            hint = f"e.g. 'legs: {{{leg.name}: {rows}}}', or reduce the model's length."
            place.refuse(message, hint)


def check_carried(place: DesignPlace, fitted: Fitted) -> None:
    """Refuses a design whose cache cannot be carried, in a model with `memory_kind: cache`."""
    reason = not_carried(build(fitted.design, fitted.causal), bool(fitted.design.loss_weights))
    if reason:
        place.refuse(reason, "leave out 'memory_kind: cache': a memory of inputs has fewer requirements.")


def not_carried(graph: Graph, losses: bool) -> str | None:
    """The reason why a design's cache cannot be carried; None if it can, or if it is empty."""
    try:
        decoding = decoding_of(graph, droppable=True)
    except InputError as error:
        return str(error)
    if not decoding.kept:
        return None
    stored = [tensor for tensor in graph.tensors if tensor.role in ("weight", "state")]
    ends = [leg.name for leg in graph.legs if leg.name in _sequence(graph, graph.leg) and leg.maximum is not None]
    reasons = [
        *(f"training updates the state '{state}', once per segment" for state, _ in graph.updates),
        *(f"training draws '{name}' anew in each of the two parts of a segment" for name in decoding.drawn),
        *(["its losses are computed over whole sequences"] if losses else []),
        *(f"'{tensor.name}' has a row for each position" for tensor in stored if _sequence(graph, tensor.legs)),
        *(f"leg '{leg}' has a maximum, and the number of segments is unlimited" for leg in ends),
        *_position_dependent(graph, decoding),
    ]
    return next((f"the cache of '{graph.name}' cannot be carried: {reason}." for reason in reasons), None)


def _sequence(graph: Graph, legs: Iterable[str]) -> list[str]:
    return [leg for leg in legs if leg in (graph.query, graph.key)]


def _position_dependent(graph: Graph, decoding: Decoding) -> list[str]:
    """Reasons that use absolute positions, which dropping the oldest positions would change."""
    if all(cached.leg is None or cached.reach is not None for cached in decoding.kept):
        return []
    graph = decoding.graph
    turned = [cached.name for cached in decoding.kept if cached.placed]
    tables = [
        tensor.name
        for tensor in graph.tensors
        if tensor.init is not None and tensor.init.name in PLACES and _sequence(graph, tensor.legs)
    ]
    masks = [step.name for step in graph.steps if not by_distance(graph.masks(step))]
    return [f"'{name}' uses absolute positions, and the oldest are dropped" for name in (*turned, *tables, *masks)]
