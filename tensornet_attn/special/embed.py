"""Embeds a special case in a general design: the general design's sizes, and the value of each of its weights.

    contains:
      mhsa:                                             # the special case: a shipped design or a path
        legs: {r: h * d, s: h * d}                      # sizes of this design, in terms of the special case
        weights: {C: "sqrt(h) * kron(eye(h), ones(d, d))"}

A leg or setting that is not listed takes the value of its namesake in the special case, or keeps its own value if there
is none. A weight that is not listed takes the values of its namesake; a weight without a namesake must be listed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tensornet_attn.errors import DesignError, InputError, nearest
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Function, Graph
from tensornet_attn.ir import arithmetic
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec import Design
from tensornet_attn.spec.design import Special
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.read import load
from tensornet_attn.special.value import Shaped, WeightFormula, matrix_shape, numbers_of, parse_value, shape_of, stored

Numbers = Mapping[str, int | float]
Sizes = dict[str, int | float]


class Misfit(Exception):
    """A wrong entry of `contains`: a refusal and its path; `key`: at the key instead of the value."""

    def __init__(self, refusal: Refusal, path: Path, key: bool = False):
        super().__init__(str(refusal))
        self.refusal, self.path, self.key = refusal, path, key


@dataclass(frozen=True)
class Embedding:
    """`general` equals `special` when its weights have `values`; `causal`: when both are compiled causal."""

    general: Design
    special: Design
    values: dict[str, WeightFormula]
    causal: bool
    graph: Graph  # of `general`
    special_graph: Graph

    @cached_property
    def numbers(self) -> dict[str, int | float]:
        """Values of the names in coefficients: legs and settings of the special case, then of the general design."""
        return self.graph.values | self.special_graph.values

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Leg sizes of both designs by name, for broadcast legs."""
        return _sizes(self.special_graph) | _sizes(self.graph)

    def shaped(self, weight: str) -> Shaped:
        """The legs of a weight's value before it is stored."""
        return shape_of(self.values[weight], self.special_graph, self.sizes)


def special_of(general: Design, name: str) -> Design:
    """Loads the design that an entry of `contains` names, at its default sizes. Raises DesignError."""
    return load(path_of(general, name) or name)


def path_of(general: Design, name: str) -> str | None:
    """The path in an entry, relative to the file of the design. Returns None for a shipped name."""
    if "/" not in name and not name.endswith(".yaml"):
        return None
    return os.path.normpath(os.path.join(os.path.dirname(general.document.path or ""), name))


def embed(general: Design, name: str, special: Design | None = None) -> Embedding:
    """Returns the embedding that `contains` declares, for a special case of given sizes. Raises InputError."""
    if name not in general.contains:
        hint = nearest(name, general.contains) if general.contains else "it lists no special cases."
        raise InputError(f"'{general.name}' does not list '{name}' under 'contains'; {hint}")
    try:
        return embedding(general, name, special or special_of(general, name))
    except Misfit as misfit:
        location = ".".join(map(str, misfit.path))
        raise InputError(f"{general.name}: {location}: {misfit.refusal.message} {misfit.refusal.hint}") from None


def embedding(general: Design, name: str, special: Design) -> Embedding:
    """Like `embed`, but raises Misfit if the entry does not fit the two designs."""
    entry, graph = general.contains[name], build(special)
    resized, resized_graph = _resized(general, entry, graph, name)
    values = _values(resized_graph, entry, graph, name)
    embedded = Embedding(resized, special, values, entry.causal, resized_graph, graph)
    for weight, value in values.items():
        path = ("contains", name, "weights", *([weight] if weight in entry.weights else []))
        _check_names(embedded, value, path)
        _check_shape(embedded, weight, path)
    return embedded


def keeps_sizes(general: Design, name: str, special: Design) -> bool:
    """Whether an entry of `contains` leaves all legs and settings of the general design unchanged.

    Uses the sizes that both designs have. Raises Misfit if the entry does not fit them.
    """
    general_values = build(general).values
    legs, settings = _given(general, general.contains[name], build(special), name)
    return all(general_values.get(key) == number for key, number in (legs | settings).items())


def _given(general: Design, entry: Special, special: Graph, name: str) -> tuple[Sizes, Sizes]:
    """The legs and settings of the general design that an entry sets: namesakes, and those it lists."""
    legs, settings = _carried(general.legs, special), _carried(general.settings, special)
    for section, listed, out in (("legs", entry.legs, legs), ("settings", entry.settings, settings)):
        for key, expression in listed.items():
            path = ("contains", name, section, key)
            if key not in (general.legs if section == "legs" else general.settings):
                hint = nearest(key, general.legs if section == "legs" else general.settings)
                raise Misfit(Refusal("unknown-name", f"this design has no '{key}' in its {section}.", hint), path)
            out[key] = _evaluated(expression, special, path)
    return legs, settings


def _resized(general: Design, entry: Special, special: Graph, name: str) -> tuple[Design, Graph]:
    """The general design with the sizes and settings of the entry, and its graph."""
    legs, settings = _given(general, entry, special, name)
    try:
        resized = load(general, legs=legs, settings=settings)
        return resized, build(resized)
    except DesignError as error:
        problem = error.problems[0]
        message = f"at the sizes of '{special.name}' this design is invalid: {problem.message}"
        raise Misfit(Refusal("special-size", message, problem.hint), ("contains", name), key=True) from None


def _carried(declared: Mapping[str, object], special: Graph) -> Sizes:
    """The values of namesakes in the special case."""
    return {
        key: special.values[key]
        for key, declaration in declared.items()
        if key in special.values and declaration is not None
    }


def _evaluated(expression: int | float | str, special: Graph, path: Path) -> int | float:
    try:
        tree = arithmetic.parse(expression)
        for name in arithmetic.names(tree):
            if name.name not in special.values:
                hint = nearest(name.name, special.values)
                raise Refusal("unknown-name", f"'{special.name}' has no leg or setting '{name.name}'.", hint)
        return arithmetic.evaluate(tree, special.values)
    except Refusal as refusal:
        raise Misfit(refusal, path) from None


def _values(graph: Graph, entry: Special, special: Graph, name: str) -> dict[str, WeightFormula]:
    values = {}
    for tensor in graph.tensors:
        if tensor.role not in ("weight", "state"):
            continue
        path = ("contains", name, "weights", tensor.name)
        written = entry.weights.get(tensor.name)
        if written is None and (tensor.name not in special.tensor or special.tensor[tensor.name].role == "input"):
            if tensor.role == "state":
                continue  # keeps its initial value
            hint = f"'{special.name}' has no tensor of that name: list its value under 'weights'."
            missing = Refusal("missing-value", f"the weight '{tensor.name}' has no value.", hint)
            raise Misfit(missing, path[:2], key=True)
        try:
            values[tensor.name] = parse_value(tensor.name if written is None else written, special)
        except Refusal as refusal:
            raise Misfit(refusal, path) from None
    if unknown := [weight for weight in entry.weights if weight not in values]:
        weights = [tensor.name for tensor in graph.tensors if tensor.role in ("weight", "state")]
        message = f"this design has no weight '{unknown[0]}'."
        raise Misfit(
            Refusal("unknown-name", message, nearest(unknown[0], weights)), ("contains", name, "weights", unknown[0])
        )
    return values


def _sizes(graph: Graph) -> dict[str, int]:
    return {leg.name: leg.stored for leg in graph.legs if leg.stored is not None}


def _check_names(embedded: Embedding, value: WeightFormula, path: Path) -> None:
    general, special = embedded.graph.values, embedded.special_graph.values
    for name in numbers_of(value):
        if name not in general and name not in special:
            message = f"neither design has a leg or setting '{name}'."
            raise Misfit(Refusal("unknown-name", message, nearest(name, [*general, *special])), path)
        if general.get(name, special.get(name)) != special.get(name, general.get(name)):
            message = f"'{name}' is {general[name]} in this design and {special[name]} in '{embedded.special.name}'."
            raise Misfit(Refusal("ambiguous", message, "list it under 'legs' or 'settings' to make both equal."), path)


def _check_shape(embedded: Embedding, weight: str, path: Path) -> None:
    try:
        shaped, shape = embedded.shaped(weight), stored(embedded.graph, weight)
    except Refusal as refusal:
        raise Misfit(refusal, path) from None
    source, graph = embedded.values[weight].source, embedded.graph
    if isinstance(source, Function):
        _check_start(source, embedded.numbers, shape, path)
    if shaped.legs is not None and prod(shaped.sizes) != prod(shape):
        legs = " ".join(f"{leg} {size}" for leg, size in shaped.legs) or "a scalar"
        weight_legs = " ".join(f"{leg} {size}" for leg, size in zip(graph.legs_of(weight), shape, strict=True))
        message = f"'{weight}' has the legs {weight_legs or 'of a scalar'}, its value {legs}."
        raise Misfit(
            Refusal("size", message, "legs may be merged or split, but the number of elements must agree."), path
        )


def _check_start(function: Function, numbers: Numbers, shape: tuple[int, ...], path: Path) -> None:
    try:
        value_shape = matrix_shape(function, numbers)
    except Refusal as refusal:
        raise Misfit(refusal, path) from None
    wanted = " x ".join(map(str, shape)) or "no legs"
    if value_shape is not None and value_shape != shape:
        message = f"'{function.name}' gives {value_shape[0]} x {value_shape[1]}, the weight has {wanted}."
        raise Misfit(Refusal("init-shape", message, "the sizes must agree."), path)
    if function.name == "eye" and len(shape) != 2:
        raise Misfit(Refusal("init-shape", f"'eye' needs two legs, the weight has {wanted}.", "see 'kron'."), path)
    if function.name == "full" and len(function.arguments) != 1:
        raise Misfit(Refusal("arguments", "'full' takes one number.", "e.g. 'full(0.5)'."), path)
