"""Keys and values in groups: the queries of a group share one key head and one value head."""

from __future__ import annotations

from tensornet_attn.search.moves.scores import head_legs
from tensornet_attn.search.roles import Map, reader
from tensornet_attn.search.sketch import Sketch
from tensornet_attn.search.wires import Wire, free, relabel, slot_of, wire


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
