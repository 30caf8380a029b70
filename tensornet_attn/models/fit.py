"""A design in a layer: opened where the file says, the width put on the leg of its input, and whether it fits."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tensornet_attn import compiler
from tensornet_attn import graph as graphs
from tensornet_attn.errors import Problem
from tensornet_attn.graph.model import Graph
from tensornet_attn.models.config import Part
from tensornet_attn.spec import Design
from tensornet_attn.spec.places import Document, Path
from tensornet_attn.spec.read import read_document
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.sizes import Sizes
from tensornet_attn.spec.sources import document_of, file_document, text_document


def opened(value: Any, document: Document, path: Path) -> tuple[Document, Reporter]:
    """A fresh document of the design at `path` of a model's document; without data where it cannot be had."""
    if isinstance(value, Design):
        return document_of(value)
    if isinstance(value, Mapping):
        inner = inside(document, path)
        return inner, Reporter(inner)
    if "\n" in value:
        return text_document(value, "<text>", None)
    folder = os.path.dirname(document.path or "")  # a path is relative to the model's file, as under `extends`
    found, reporter = file_document(os.path.normpath(os.path.join(folder, value)) if is_path(value) else value)
    if found.data and not {"tensornet", "extends"} & found.data.keys():  # show nothing of a file that is no design
        found = Document({}, found.name)
        reporter = Reporter(found)
        hint = "a design starts with 'tensornet: 1'; check that file by itself."
        reporter.error("unknown-design", f"'{printable(value)}' is no design.", (), hint=hint)
    return found, reporter


def shipped(value: Any) -> bool:
    """Whether a part names a shipped design."""
    return isinstance(value, str) and not is_path(value) and "\n" not in value


def is_path(name: str) -> bool:
    """Whether a name of a design or model is a path, not that of a shipped one."""
    return "/" in name or os.sep in name or name.endswith((".yaml", ".yml"))


def inside(document: Document, path: Path) -> Document:
    """A part of a document as one of its own, which may be changed."""
    depth, data = len(path), copy.deepcopy(document.value(path))
    name = data.get("name") if isinstance(data, dict) else None
    out = Document(data, document.name if document.values else printable(str(name or "design"), 64), path=document.path)
    for places, own in ((document.keys, out.keys), (document.values, out.values)):
        own.update({at[depth:]: place for at, place in places.items() if at[:depth] == path})
    return out


@dataclass(frozen=True)
class Fitted:
    """A design with its sizes in a model. `causal` is what it is compiled with.

    `keyed`: it has keys, which a key mask may hide. `context`: it has a second input, the source or what came before.
    `elements`: numbers in its weights and states.
    """

    design: compiler.Design
    causal: bool | None
    keyed: bool
    context: bool
    elements: int


@dataclass
class Place:
    """Where in a model a design stands: `role` is mixer, cross or mlp; `longest` the rows of its two inputs."""

    document: Document
    reporter: Reporter
    path: Path
    role: str
    part: Part
    width: int
    causal: bool  # whether the model needs it to be
    longest: tuple[int, int]
    failed: bool = field(default=False, init=False)

    def refuse(self, message: str, hint: str, *inner: str, code: str = "no-fit") -> None:
        self.failed = True
        self.reporter.error(code, message, (*self.path, *inner), hint=hint)


def fit(place: Place) -> Fitted | None:
    """The design at a place, checked as it is there; None where it is refused, with the reasons in the reporter."""
    part = place.part
    if place.causal and part.causal is False:
        place.refuse("this place of the model is causal.", "leave out 'causal: false'.", "causal")
        return None
    at = (*place.path, "design") if place.document.value((*place.path, "design")) is not None else place.path
    reading = read_document(*opened(part.design, place.document, at), kind=compiler.Design)
    if reading.design is None or reading.reporter.failed:
        return _forward(place, reading.reporter.problems(), {})
    widths = _width_legs(place, reading.design)
    if place.failed:
        return None
    legs: dict[str, Any] = {**dict.fromkeys(widths, place.width), **part.legs}
    causal = True if place.causal else part.causal
    reading = read_document(*opened(part.design, place.document, at), legs, part.settings, compiler.Design)
    graph = graphs.examine(reading, causal)
    if graph is None or reading.design is None:
        return _forward(place, reading.reporter.problems(), legs)
    _check(place, graph)
    if place.failed:
        return None
    stored = (*graph.of_role("weight"), *graph.of_role("state"))
    elements = sum(prod(size or 1 for size in graph.shape_of(tensor.name)) for tensor in stored)
    return Fitted(reading.design, causal, graph.key is not None, len(graph.of_role("input")) > 1, elements)


def _width_legs(place: Place, design: compiler.Design) -> list[str]:
    """The legs of the inputs that run along no sequence: the width of the residual stream is put on them."""
    kinds = {
        leg.name: leg.kind
        for leg in Sizes.of(design.declared_legs, design.settings, Reporter(design.document)).legs.values()
    }
    found: list[str] = []
    for name, declared in list(design.inputs.items())[:2]:
        legs = declared.legs.split() if isinstance(declared.legs, str) else list(declared.legs)
        along = [kinds.get(leg) in ("query", "key") for leg in legs]
        if along != [True, False]:
            message = f"input '{name}' of '{design.name}' has the legs '{' '.join(legs)}'."
            place.refuse(message, "an input in a model has a sequence leg and then the leg of the width, e.g. 'n f'.")
            return []
        found.append(legs[1])
    if not found:
        place.refuse(f"'{design.name}' has no input.", "a design in a model has an input such as 'x: n f'.")
    for leg in found:
        if leg in place.part.legs and place.part.legs[leg] != place.width:
            message = f"leg '{leg}' of '{design.name}' is the model's width, which is {place.width}."
            place.refuse(message, "leave it out: the model puts its width there.", "legs", leg)
    return found


def _forward(place: Place, problems: list[Problem], legs: Mapping[str, Any]) -> None:
    """Tells what is wrong with the design, and where in the model it stands."""
    elsewhere = not problems  # whatever the reason, the model says so
    for problem in problems:
        section, name = problem.file.partition("= argument")[0], problem.source.partition(":")[0]
        if problem.line is None and not problem.field:  # nothing could be opened
            message = problem.message.replace("this file", f"'{problem.file}'", 1)
            place.refuse(message, problem.hint, code=problem.code)
        elif problem.file not in ("legs= argument", "settings= argument"):
            place.reporter.found.append(problem)
            elsewhere |= problem.file != place.document.name
        else:
            own = section == "settings" or name in place.part.legs  # else the width, which is the model's
            path = (*place.path, section, name) if own else ("model", "width")
            place.reporter.error(problem.code, problem.message, path, hint=problem.hint)
    if elsewhere:
        what = f"as it is used here, {'causal and ' if place.causal else ''}at width {place.width}"
        message = f"this design is refused {what if legs else 'by itself'}."
        place.refuse(message, "what is wrong with it is told beside this.", code="refused")
    place.failed = True


def _check(place: Place, graph: Graph) -> None:
    inputs, output = graph.of_role("input"), graph.legs_of(graph.output)
    if len(output) != 2 or output[0] != graph.query:
        message = f"the output of '{graph.name}' has the legs '{' '.join(output)}'."
        place.refuse(message, "it goes back into the residual stream: query leg, then the leg of the width.")
    elif graph.leg[output[1]].size != place.width:
        size, into = graph.leg[output[1]].size, inputs[0].legs[1]
        message = f"the output of '{graph.name}' has {size} on leg '{output[1]}', its input {place.width} on '{into}'."
        place.refuse(message, "a residual connection needs the same width on both sides.")
    if len(inputs) > 2:
        names = ", ".join(tensor.name for tensor in inputs)
        place.refuse(f"'{graph.name}' has {len(inputs)} inputs: {names}.", "a design in a model has one or two.")
    elif place.role == "cross" and len(inputs) != 2:
        message = f"'{graph.name}' has one input; 'cross' looks from the target at the source."
        place.refuse(message, "e.g. the shipped design 'cross'.")
    elif place.role == "cross":
        if graph.tied or (inputs[0].legs[0], inputs[1].legs[0]) != (graph.query, graph.key):
            message = f"'{graph.name}' does not keep its two inputs apart: one has the queries, the other the keys."
            place.refuse(message, f"e.g. '{inputs[0].name}: n f' and '{inputs[1].name}: m f'.")
    elif len(inputs) == 2 and inputs[1].default != inputs[0].name:
        message = f"'{graph.name}' needs a second input '{inputs[1].name}', which a {place.role} is not given."
        place.refuse(message, "put it under 'cross' in a decoder, or choose a design of one sequence.")
    _check_lengths(place, graph)


def _check_lengths(place: Place, graph: Graph) -> None:
    """Maxima of sequence legs against what the model may give them."""
    queries, keys = place.longest
    for name, rows in ((graph.query, queries), (graph.key, keys)):
        leg = graph.leg[name] if name is not None else None
        if leg is not None and leg.maximum is not None and leg.maximum < rows:
            message = (
                f"leg '{leg.name}' of '{graph.name}' has a maximum of {leg.maximum}; the model gives it {rows} rows."
            )
            hint = f"e.g. 'legs: {{{leg.name}: {rows}}}', or a shorter model."
            place.refuse(message, hint)
