"""Moves on heads: score heads shared over global ones, keys and values in groups, maps mixed after the softmax."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensornet_attn.graph.model import Box, Contraction, Term, Use
from tensornet_attn.search.roles import Map, reader, shared
from tensornet_attn.search.sketch import Sketch, mapped, product
from tensornet_attn.search.wires import Cut, Wire, free, relabel, slot_of, wire
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


def share(sketch: Sketch, at: Map, g: int) -> Sketch | None:
    """Q[n h d] K[m h d] -> h n m  becomes  P[g h] Q[n g d] K[m g d] -> h n m, with g heads of queries and keys.

    Under a kernel's normaliser the mixture is softplus(P), which keeps every row's sum positive.
    """
    found = head_wire(sketch, at)
    if found is None:
        return None
    return mixed_scores(sketch, at, found, g, f"head {g}", "P")


def mixed_scores(
    sketch: Sketch,
    at: Map,
    found: Side,
    g: int,
    text: str,
    name: str,
    scale: Arith | None = None,
    init: str | None = None,
) -> Sketch | None:
    """The scores of `found.leg` as mixtures, by a new weight, of g scores of queries and keys."""
    sketch, new = sketch.new_leg("g", text)
    changed = relabel(sketch, (found.wire, (new,)))
    if changed is None:
        return None
    changed, weight = changed.new_weight(name, (new, found.leg), init)
    if isinstance(changed.step[at.box].op, Box) and changed.step[at.box].op.kind == "normalize":  # type: ignore[union-attr]
        changed, weight = changed.new_step("mixture", mapped("softplus", weight), weight.legs, at.scores)
    step = changed.step[at.scores]
    assert isinstance(step.op, Contraction)
    terms = tuple(_mixed(term, weight, new) for term in step.op.terms)
    changed = changed.with_step(replace(step, op=Contraction(terms)))
    return changed if scale is None else set_scale(changed, at.box, scale)


def _mixed(term: Term, weight: Use, leg: str) -> Term:
    """Terms with a global head are mixed; others, such as a prior of each local head, stay as they are."""
    carries = any(leg in use.legs for use in term.factors)
    return replace(term, factors=(weight, *term.factors)) if carries else term


def group(sketch: Sketch, at: Map, g: int) -> Sketch | None:
    """Q[n h d] K[m h d] V[m h d]  becomes  Q[n g j d] K[m g d] V[m g d]; with g = 1, Q[n h d] K[m d] V[m d]."""
    legs, found = head_legs(sketch, at), reader(sketch, at.box)
    if len(legs) != 1 or found is None or legs[0] not in found.value.legs or legs[0] not in found.map.legs:
        return None
    (leg,) = legs
    size = sketch.size(leg)
    if g >= size or size % g:
        return None
    cut = frozenset({(at.scores, at.key.name), (found.step, found.value.name)})
    above = wire(sketch, [slot_of(sketch, use, leg) for use in (at.key, found.value)], cut)
    below = wire(sketch, [(at.scores, sketch.step[at.scores].legs.index(leg))], cut)
    if above.slots & below.slots or not (free(sketch, above) and free(sketch, below)):
        return None
    return _one(sketch, above) if g == 1 else _several(sketch, above, below, leg, g)


def _one(sketch: Sketch, above: Wire) -> Sketch | None:
    return relabel(sketch, (above, ()))


def _several(sketch: Sketch, above: Wire, below: Wire, leg: str, g: int) -> Sketch | None:
    if any(sketch.tensors[name].role != "weights" for name in below.owners & sketch.tensors.keys()):
        return None  # a constant or a noise is of one head leg
    sketch, groups = sketch.new_leg("g", f"head {g}")
    sketch, each = sketch.new_leg("j", f"head {leg} / {groups}")
    return relabel(sketch, (above, (groups,)), (below, (groups, each)))


def mix(sketch: Sketch, at: Map, e: int) -> Sketch | None:
    """A[h n m] V[m h d]  becomes  U[e n m] V[m e d] with U = A[h n m] Pw[h e] -> e n m."""
    found = reader(sketch, at.box)
    own = [leg for leg in found.map.legs if leg in found.value.legs and leg != sketch.key] if found else []
    if found is None or len(own) != 1 or not set(own) <= {*sketch.step[at.box].legs, *head_legs(sketch, at)}:
        return None
    (leg,) = own
    cut = frozenset({(found.step, found.map.name)})
    below = wire(sketch, [slot_of(sketch, found.value, leg)], cut)
    if found.map.name in below.owners or at.box in below.owners or not free(sketch, below):
        return None
    sketch, new = sketch.new_leg("e", f"head {e}")
    changed = relabel(sketch, (below, (new,)))
    if changed is None:
        return None
    changed, weight = changed.new_weight("Pw", (leg, new))
    legs = tuple(new if one == leg else one for one in found.map.legs)
    changed, mixed = changed.new_step("U", product(found.map, weight), legs, found.step)
    return _swap(changed, found.step, found.map, mixed)


def _swap(sketch: Sketch, name: str, old: Use, new: Use) -> Sketch:
    step = sketch.step[name]
    assert isinstance(step.op, Contraction)
    terms = (replace(t, factors=tuple(new if use == old else use for use in t.factors)) for t in step.op.terms)
    return sketch.with_step(replace(step, op=Contraction(tuple(terms))))
