"""What the parts of a diagram do, read off its wires: maps, their scores, projections, readers, the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensornet_attn.graph.model import Box, Contraction, Step, Term, Use
from tensornet_attn.search.sketch import Sketch

NORMALISERS = ("softmax", "normalize")
KEEP_LEGS = ("map", "rope", "rmsnorm", "layernorm", "l1norm", "l2norm", "dropout")
BETWEEN = (*KEEP_LEGS, "logsumexp", "max", "sum")  # boxes that may stand between the scores and their normaliser


@dataclass(frozen=True)
class Place:
    """A use inside a product: the step, the number of its term, the use."""

    step: str
    term: int
    use: Use


@dataclass(frozen=True)
class Map:
    """An attention map: the box over the key leg, and the product of queries and keys inside.

    `box` is the softmax or normalize step, `scores` the contraction inside it, `term` the number of the product there.
    """

    box: str
    scores: str
    term: int
    query: Use
    key: Use


@dataclass(frozen=True)
class Reader:
    """The product that reads a map: `map` as it is used there (mixed or blended on the way), and the value."""

    step: str
    term: int
    map: Use
    value: Use


def contraction(step: Step) -> Contraction | None:
    return step.op if isinstance(step.op, Contraction) else None


def term_of(sketch: Sketch, step: str, term: int) -> Term:
    op = sketch.step[step].op
    assert isinstance(op, Contraction)
    return op.terms[term]


def maps(sketch: Sketch) -> list[Map]:
    """The maps whose scores hold a product of something on the query leg and something on the key leg."""
    query, key = sketch.query, sketch.key
    if query is None or key is None:
        return []
    found = (_map(sketch, step) for step in sketch.steps if _normaliser(step, query, key))
    return [one for one in found if one is not None]


def _normaliser(step: Step, query: str, key: str) -> bool:
    box = step.op
    return isinstance(box, Box) and box.kind in NORMALISERS and box.leg == key and query in step.legs


def _map(sketch: Sketch, step: Step) -> Map | None:
    """Walks from the normaliser down to the product of its scores."""
    at: Step | None = sketch.step.get(step.op.uses[0].name)
    while at is not None:
        if isinstance(at.op, Box):
            at = sketch.step.get(at.op.uses[0].name) if at.op.kind in BETWEEN else None
            continue
        product = _product(sketch, at)
        if product is not None:
            return Map(step.name, at.name, *product)
        pairs = {use.name for use in at.op.uses if {sketch.query, sketch.key} <= set(use.legs)} & sketch.step.keys()
        at = sketch.step[pairs.pop()] if len(pairs) == 1 else None
    return None


def _product(sketch: Sketch, step: Step) -> tuple[int, Use, Use] | None:
    """(term, query, key) of the only product of one query and one key in a step."""
    op = contraction(step)
    found = []
    for number, term in enumerate(op.terms if op else ()):
        queries = [use for use in term.factors if sketch.query in use.legs and sketch.key not in use.legs]
        keys = [use for use in term.factors if sketch.key in use.legs and sketch.query not in use.legs]
        if len(queries) == 1 and len(keys) == 1:
            found.append((number, queries[0], keys[0]))
    return found[0] if len(found) == 1 else None


def shared(one: Map) -> tuple[str, ...]:
    """The legs that query and key have in common: heads, and what the product sums."""
    return tuple(leg for leg in one.query.legs if leg in one.key.legs)


def heads(sketch: Sketch, one: Map) -> tuple[str, ...]:
    """The legs of the map besides the sequences."""
    return tuple(leg for leg in sketch.step[one.box].legs if leg not in (sketch.query, sketch.key))


def reader(sketch: Sketch, box: str) -> Reader | None:
    """The one product that sums a map over the keys, with a value; the map may be mixed or blended before."""
    forms, found = [box], list[Reader]()
    for form in forms:  # grows while it is walked
        for name in sketch.readers.get(form, ()):
            step = sketch.step[name]
            op = contraction(step)
            if op is None:
                return None
            if sketch.key in step.legs:
                forms += [] if name in forms else [name]
                continue
            found += _reads(sketch, step, op, form)
    return found[0] if len(found) == 1 else None


def _reads(sketch: Sketch, step: Step, op: Contraction, form: str) -> Iterator[Reader]:
    for number, term in enumerate(op.terms):
        uses = [use for use in term.factors if use.name == form]
        values = [use for use in term.factors if sketch.key in use.legs and use.name != form]
        if len(uses) == 1 and len(values) == 1 and sketch.query not in values[0].legs:
            yield Reader(step.name, number, uses[0], values[0])


def chain(sketch: Sketch, use: Use) -> list[str]:
    """The steps from a use down to its projection, the projection last: boxes that keep legs stand between."""
    names = []
    name: str | None = use.name
    while name in sketch.step:
        names.append(str(name))
        op = sketch.step[str(name)].op
        if isinstance(op, Box):
            name = op.uses[0].name if op.kind in KEEP_LEGS else None
        elif isinstance(op, Contraction) and len(op.uses) == len(op.terms) == 1:
            name = op.uses[0].name
        else:
            return names
    return []


def projection(sketch: Sketch, use: Use) -> Place | None:
    """Where a use comes from a source on a sequence leg through a weight; None where it does not."""
    names = chain(sketch, use)
    if not names:
        return None
    found = [place for place in weights_in(sketch, names[-1]) if source(sketch, place) is not None]
    return found[0] if len(found) == 1 else None


def weights_in(sketch: Sketch, step: str) -> Iterator[Place]:
    """The weights in the products of a step."""
    op = contraction(sketch.step[step])
    for number, term in enumerate(op.terms if op else ()):
        for use in term.factors:
            if use.name in sketch.tensors and sketch.tensors[use.name].role == "weights":
                yield Place(step, number, use)


def source(sketch: Sketch, place: Place) -> Use | None:
    """What a projecting weight is applied to: the factor on a sequence leg that it shares a summed leg with."""
    step, term = sketch.step[place.step], term_of(sketch, place.step, place.term)
    summed = set(place.use.legs) - set(step.legs)
    fit = [
        use
        for use in term.factors
        if use != place.use and summed & set(use.legs) and {sketch.query, sketch.key} & set(use.legs)
    ]
    return fit[0] if len(fit) == 1 and len(term.factors) == 2 else None


def output(sketch: Sketch, at: Reader) -> Place | None:
    """The output projection: the first weight after a reader that sums legs of the map or the value."""
    legs, name = {*at.map.legs, *at.value.legs}, at.step
    while True:
        step = sketch.step[name]
        for place in weights_in(sketch, name):
            if (legs & set(place.use.legs)) - set(step.legs) and set(place.use.legs) & set(step.legs):
                return place
        after = sketch.readers.get(name, ())
        if len(after) != 1:
            return None
        name, legs = after[0], set(step.legs)
