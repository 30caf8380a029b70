"""What moves on scores need: the part of a diagram that feeds a product of queries and keys, and its heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensornet_attn.graph.model import Box, Contraction
from tensornet_attn.search.roles import Map, shared
from tensornet_attn.search.sketch import Sketch
from tensornet_attn.search.wires import Cut, Wire, free, slot_of, wire
from tensornet_attn.spec.arithmetic import ONE, Arith


@dataclass(frozen=True)
class Side:
    """A leg of the scores' product, and its wire on the side of the queries and keys."""

    leg: str
    wire: Wire


def side(sketch: Sketch, at: Map, leg: str) -> Side | None:
    """The wire of a leg from the product of the scores upwards; None where it reaches the map by another way."""
    step = sketch.step[at.scores]
    cut: Cut = frozenset((step.name, use.name) for use in step.op.uses)
    starts = [slot_of(sketch, use, leg) for use in (at.query, at.key) if leg in use.legs]
    found = wire(sketch, starts, cut)
    beyond = {at.scores, at.box} & found.owners
    return None if beyond or not free(sketch, found) else Side(leg, found)


def head_legs(sketch: Sketch, at: Map) -> list[str]:
    """The legs that query, key and scores all have: one score matrix for each."""
    return [leg for leg in shared(at) if leg in sketch.step[at.scores].legs]


def summed_legs(sketch: Sketch, at: Map) -> list[str]:
    """The legs that the product of query and key sums."""
    return [leg for leg in shared(at) if leg not in sketch.step[at.scores].legs]


def head_wire(sketch: Sketch, at: Map) -> Side | None:
    """The one head leg of a map, with its wire above the scores."""
    legs = head_legs(sketch, at)
    return side(sketch, at, legs[0]) if len(legs) == 1 else None


def plain_product(sketch: Sketch, at: Map) -> bool:
    """Whether the box stands right around one product of query and key alone."""
    step = sketch.step[at.scores]
    direct = sketch.step[at.box].op.uses[0].name == at.scores
    return direct and isinstance(step.op, Contraction) and len(step.op.terms) == 1 and _two(step.op)


def _two(op: Contraction) -> bool:
    return len(op.terms[0].factors) == 2 and op.terms[0].coefficient == ONE


def set_scale(sketch: Sketch, box: str, scale: Arith) -> Sketch:
    """The sketch with another scale on a softmax; other boxes have none."""
    step = sketch.step[box]
    if not isinstance(step.op, Box) or step.op.kind != "softmax":
        return sketch
    numbers = tuple((name, scale if name == "scale" else value) for name, value in step.op.numbers)
    return sketch.with_step(replace(step, op=replace(step.op, numbers=numbers)))
