"""Finds the parts of a diagram by its wires: maps, scores, projections, readers of maps, and the output projection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tensornet_attn.graph.attention import NormalizedScores, SoftmaxOfScores, weighting_of
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Step, Use
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ops import OPS
from tensornet_attn.search.sketch import Legs, Sketch, T


@dataclass(frozen=True)
class OperandPlace:
    """A use inside a product: the step, the index of the term, and the use."""

    step: str
    term: int
    use: Use


@dataclass(frozen=True)
class AttentionMap:
    """An attention map: a box over the key leg, and the product of queries and keys inside it.

    `box`: the softmax or normalize step. `scores`: the contraction inside it. `term`: the index of the product.
    """

    box: str
    scores: str
    term: int
    query: Use
    key: Use

    @property
    def shared(self) -> Legs:
        """The common legs of query and key: heads, and the summed legs."""
        return within(self.query.legs, self.key.legs)


@dataclass(frozen=True)
class ValueProduct:
    """The product of a map and the value; `map` is its use there, possibly after mixing or blending."""

    step: str
    term: int
    map: Use
    value: Use


def only(candidates: Iterable[T]) -> T | None:
    """The only item; None if there are none or several."""
    listed = list(candidates)
    return listed[0] if len(listed) == 1 else None


def maps(sketch: Sketch) -> list[AttentionMap]:
    """The maps whose scores have a product of a factor on the query leg and a factor on the key leg."""
    steps = (step for step in sketch.step.values() if sketch.query in step.legs)
    over_keys = (
        step for step in steps if isinstance(weighting_of(step, sketch.key), SoftmaxOfScores | NormalizedScores)
    )
    return [attention_map for step in over_keys if (attention_map := _map(sketch, step)) is not None]


def keeps_legs(step: Step) -> bool:
    """Whether a box has one operand and its legs, and is not a map."""
    box = step.box
    return box is not None and [{*use.legs} for use in box.uses] == [{*step.legs}] and not OPS[box.kind].masked


def _map(sketch: Sketch, step: Step) -> AttentionMap | None:
    """Follows the operands of a normaliser to the product of its scores."""
    at: Step | None = sketch.step.get(step.uses[0].name)
    while at is not None:
        if at.box is not None:
            at = sketch.step.get(at.uses[0].name) if keeps_legs(at) or operation_of(at).reduces else None
            continue
        product = only(_products(sketch, at))
        if product is not None:
            return AttentionMap(step.name, at.name, *product)
        pairs = {use.name for use in at.uses if {sketch.query, sketch.key} <= {*use.legs}}
        name = only(pairs & sketch.step.keys())
        at = None if name is None else sketch.step[name]
    return None


def _products(sketch: Sketch, step: Step) -> Iterator[tuple[int, Use, Use]]:
    """(term, query, key) of the products of one query and one key in a step."""
    for number, term in enumerate(sketch.step[step.name].terms):
        query = only(use for use in term.factors if sketch.query in use.legs and sketch.key not in use.legs)
        key = only(use for use in term.factors if sketch.key in use.legs and sketch.query not in use.legs)
        if query is not None and key is not None:
            yield number, query, key


def heads(sketch: Sketch, at: AttentionMap) -> Legs:
    """The legs of the map other than the sequence legs."""
    return without(sketch.step[at.box].legs, sketch.query, sketch.key)


def reader(sketch: Sketch, box: str) -> ValueProduct | None:
    """The only product that sums a map, possibly mixed or blended, with a value over the keys, or None."""
    forms, candidates, readers = [box], list[ValueProduct](), sketch.readers()
    for form in forms:  # the list grows during the loop
        for name in readers.get(form, ()):
            if not sketch.step[name].terms:
                return None
            if sketch.key not in sketch.step[name].legs:
                candidates += _reads(sketch, name, form)
            elif name not in forms:
                forms.append(name)
    return only(candidates)


def _reads(sketch: Sketch, step: str, form: str) -> Iterator[ValueProduct]:
    for number, term in enumerate(sketch.step[step].terms):
        use = only(use for use in term.factors if use.name == form)
        value = only(use for use in term.factors if sketch.key in use.legs and use.name != form)
        if use is not None and value is not None and sketch.query not in value.legs:
            yield ValueProduct(step, number, use, value)


def chain(sketch: Sketch, use: Use) -> list[str]:
    """The steps from a use to its projection, which is last, through boxes that keep legs; empty if there is none."""
    names, name = list[str](), use.name
    while name in sketch.step:
        names.append(name)
        step = sketch.step[name]
        if step.box is not None and not keeps_legs(step):
            return []
        if step.box is None and not len(step.uses) == len(sketch.step[name].terms) == 1:
            return names
        name = step.uses[0].name
    return []


def projection(sketch: Sketch, use: Use) -> OperandPlace | None:
    """The weight that projects a source on a sequence leg to a use; None if there is none."""
    weights = (weight for step in chain(sketch, use)[-1:] for weight in weights_in(sketch, step))
    return only(weight for weight in weights if source(sketch, weight) is not None)


def weights_in(sketch: Sketch, step: str) -> Iterator[OperandPlace]:
    """The weights in the products of a step."""
    for number, term in enumerate(sketch.step[step].terms):
        for use in term.factors:
            if use.name in sketch.tensors and sketch.tensors[use.name].role == "weights":
                yield OperandPlace(step, number, use)


def source(sketch: Sketch, weight: OperandPlace) -> Use | None:
    """The input of a projection: the factor on a sequence leg with which the weight shares a summed leg."""
    factors = sketch.step[weight.step].terms[weight.term].factors
    summed, sequences = {*weight.use.legs} - {*sketch.step[weight.step].legs}, {sketch.query, sketch.key}
    factor = only(use for use in factors if use != weight.use and summed & {*use.legs} and sequences & {*use.legs})
    return factor if len(factors) == 2 else None


def output(sketch: Sketch, at: ValueProduct) -> OperandPlace | None:
    """The output projection: the first weight after a reader that sums legs of the map or value, or None."""
    legs, name, readers = {*at.map.legs, *at.value.legs}, at.step, sketch.readers()
    while True:
        step_legs = {*sketch.step[name].legs}
        for weight in weights_in(sketch, name):
            if (legs & {*weight.use.legs}) - step_legs and {*weight.use.legs} & step_legs:
                return weight
        after = only(readers.get(name, ()))
        if after is None:
            return None
        name, legs = after, step_legs
