"""A core on the scores: a matrix that says how score components mix into the rows of attention."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Box, Contraction, Use
from tensornet_attn.search.moves.heads import Side, head_wire, mixed_scores, plain_product, set_scale, side, summed_legs
from tensornet_attn.search.roles import Map, reader
from tensornet_attn.search.sketch import Sketch
from tensornet_attn.search.wires import Wire, free, relabel, slot_of, wire
from tensornet_attn.spec.arithmetic import parse

FORMS = ("full", "left", "right", "low_rank")


def core(sketch: Sketch, at: Map, form: str, c: int) -> Sketch | None:
    """Q[n h d] K[m h d] -> h n m  becomes, with r and s of size h d each, or e of size d, or g of size h:

    full      C[r s] Q[n s] K[m s] -> r n m               values V[m r]
    low_rank  C2[c r] C3[c s] Q[n s] K[m s] -> r n m      values V[m r]
    left      C2[c d] C3[c e] Q[n h e] K[m h e] -> h d n m, d being the values' components
    right     C1[h g] Q[n g d] K[m g d] -> h n m

    The scale becomes (number of rows) ** -0.5, and cores start with scores of variance 1; `c` is the rank, of left and
    low_rank.
    """
    head, components = head_wire(sketch, at), summed_legs(sketch, at)
    kind = sketch.step[at.box].op.kind  # type: ignore[union-attr]
    if head is None or len(components) != 1 or kind != "softmax" or not plain_product(sketch, at):
        return None
    inner = side(sketch, at, components[0])
    if inner is None or {*sketch.step[at.scores].legs} != {head.leg, sketch.query, sketch.key}:
        return None
    if form == "right":
        return _right(sketch, at, head, inner)
    return _left(sketch, at, head, inner, c) if form == "left" else _merged(sketch, at, head, inner, form, c)


def _right(sketch: Sketch, at: Map, head: Side, inner: Side) -> Sketch | None:
    rows = parse(f"({head.leg} * {inner.leg}) ** -0.5")
    return mixed_scores(sketch, at, head, sketch.size(head.leg), f"head {head.leg}", "C", rows, "normal(1)")


def _left(sketch: Sketch, at: Map, head: Side, inner: Side, c: int) -> Sketch | None:
    """The map gets a row for each component of the values; the components of the scores are another leg."""
    values = _component(sketch, at, (head.leg,))
    if values is None:
        return None
    sketch, mine = sketch.new_leg("e", f"head {inner.leg}")
    changed = relabel(sketch, (inner.wire, (mine,)))
    if changed is None:
        return None
    if not sketch.is_head(values):
        changed = replace(changed, declared={**changed.declared, values: f"head {changed.declared[values]}"})
    changed, rank = changed.new_leg("c", c)
    changed, left = changed.new_weight("C2", (rank, values), f"normal({rank} ** -0.5)")
    changed, right = changed.new_weight("C3", (rank, mine), f"normal({head.leg} ** 0.5)")
    changed = _with_core(changed, at, (left, right), (head.leg, values))
    changed = _more_rows(changed, at, values)
    return set_scale(changed, at.box, parse(f"({head.leg} * {inner.leg}) ** -0.5"))


def _component(sketch: Sketch, at: Map, heads: tuple[str, ...]) -> str | None:
    """The one leg of the values that the map lacks, where the map goes straight to its reader."""
    found = reader(sketch, at.box)
    if found is None or found.map.name != at.box or found.map.legs[:1] != heads:
        return None
    own = [leg for leg in found.value.legs if leg not in (*found.map.legs, sketch.key)]
    return own[0] if len(own) == 1 else None


def _more_rows(sketch: Sketch, at: Map, leg: str) -> Sketch:
    """The map, and its use by the reader, with one more head leg after the first."""
    found = reader(sketch, at.box)
    assert found is not None
    step, box = sketch.step[found.step], sketch.step[at.box]
    inside = sketch.step[at.scores]

    def use(old: Use) -> Use:
        return Use(old.name, (old.legs[0], leg, *old.legs[1:])) if old.name == at.box else old

    assert isinstance(step.op, Contraction)
    assert isinstance(box.op, Box)
    terms = tuple(replace(term, factors=tuple(map(use, term.factors))) for term in step.op.terms)
    made = replace(box.op, operands=(("of", Use(inside.name, inside.legs)),))
    sketch = sketch.with_step(replace(box, legs=inside.legs, op=made))
    return sketch.with_step(replace(step, op=Contraction(terms)))


def _merged(sketch: Sketch, at: Map, head: Side, inner: Side, form: str, c: int) -> Sketch | None:
    """Heads and components become one leg s above the scores and one leg r below, and a core joins them."""
    below = _below(sketch, at, head, inner)
    if below is None or inner.wire.owners != head.wire.owners:
        return None
    whole = f"head {head.leg} * {inner.leg}"
    sketch, rows = sketch.new_leg("r", whole)
    sketch, parts = sketch.new_leg("s", whole)
    changed = relabel(sketch, (head.wire, (parts,)), (inner.wire, ()), (below[0], (rows,)), (below[1], ()))
    if changed is None:
        return None
    made: tuple[Use, ...]
    if form == "full":
        changed, weight = changed.new_weight("C", (rows, parts), "normal(1)")
        made = (weight,)
    else:
        changed, rank = changed.new_leg("c", c)
        changed, left = changed.new_weight("C2", (rank, rows), f"normal({rank} ** -0.5)")
        changed, right = changed.new_weight("C3", (rank, parts), "normal(1)")
        made = (left, right)
    return set_scale(_with_core(changed, at, made, (rows,)), at.box, parse(f"{rows} ** -0.5"))


def _below(sketch: Sketch, at: Map, head: Side, inner: Side) -> tuple[Wire, Wire] | None:
    """The wires of the heads and of the values' components, from the scores down; None where they do not go along."""
    found = reader(sketch, at.box)
    if found is None:
        return None
    components = [leg for leg in found.value.legs if leg not in (*found.map.legs, sketch.key)]
    if len(components) != 1 or head.leg not in sketch.step[at.scores].legs:
        return None
    cut = frozenset((at.scores, use.name) for use in sketch.step[at.scores].op.uses)
    place = sketch.step[at.scores].legs.index(head.leg)
    rows = wire(sketch, [(at.scores, place)], cut)
    values = wire(sketch, [slot_of(sketch, found.value, components[0])])
    apart = not rows.slots & head.wire.slots and not values.slots & inner.wire.slots
    good = apart and values.owners <= rows.owners and free(sketch, rows) and free(sketch, values)
    return (rows, values) if good and sketch.size(components[0]) == sketch.size(inner.leg) else None


def _with_core(sketch: Sketch, at: Map, weights: tuple[Use, ...], rows: tuple[str, ...]) -> Sketch:
    """The product of the scores with the core in it, and these rows in its result."""
    step = sketch.step[at.scores]
    assert isinstance(step.op, Contraction)
    term = step.op.terms[0]
    made = Contraction((replace(term, factors=(*weights, *term.factors)),))
    legs = (*rows, *(leg for leg in step.legs if leg in (sketch.query, sketch.key)))
    return sketch.with_step(replace(step, op=made, legs=legs))
