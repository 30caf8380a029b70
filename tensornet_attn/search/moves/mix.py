"""Heads mixed after the softmax: each value head reads a learned mixture of the maps."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Contraction, Use
from tensornet_attn.search.moves.scores import head_legs
from tensornet_attn.search.roles import Map, reader
from tensornet_attn.search.sketch import Sketch, product
from tensornet_attn.search.wires import free, relabel, slot_of, wire


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
