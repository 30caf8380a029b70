"""Keys and values from one small latent per position, which is all that decoding has to keep."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Contraction, Use
from tensornet_attn.search.roles import Map, Place, projection, reader, source
from tensornet_attn.search.sketch import Declared, Sketch, product


def latent(sketch: Sketch, at: Map, c: int) -> Sketch | None:
    """x[m f] Wk[f h d], x[m f] Wv[f h d]  becomes  C[m c] Wk[c h d], C[m c] Wv[c h d] with C: x[m f] Wc[f c] -> m c."""
    found = reader(sketch, at.box)
    places = [projection(sketch, use) for use in (at.key, found.value)] if found else []
    if len(places) != 2 or None in places:
        return None
    key, value = (place for place in places if place is not None)
    one, other = source(sketch, key), source(sketch, value)
    if one is None or one != other or key.use.name == value.use.name or sketch.key not in one.legs:
        return None
    if any(sketch.readers[place.use.name] != (place.step,) for place in (key, value)):
        return None
    summed = [leg for leg in one.legs if leg != sketch.key]
    if len(summed) != 1 or c >= sketch.size(summed):
        return None
    sketch, rank = sketch.new_leg("c", c)
    sketch, weight = sketch.new_weight("Wc", (summed[0], rank))
    first = (
        key.step
        if sketch.steps.index(sketch.step[key.step]) < sketch.steps.index(sketch.step[value.step])
        else value.step
    )
    sketch, small = sketch.new_step("C", product(one, weight), (str(sketch.key), rank), first)
    for place in (key, value):
        sketch = _read_from(sketch, place, one, small, summed[0], rank)
    return sketch


def _read_from(sketch: Sketch, place: Place, old: Use, new: Use, leg: str, rank: str) -> Sketch:
    """A projection that reads the latent in the place of its source."""
    step, made = sketch.step[place.step], sketch.tensors[place.use.name]
    position = place.use.legs.index(leg)
    legs = (*made.legs[:position], rank, *made.legs[position + 1 :])
    weight = Use(place.use.name, (*place.use.legs[:position], rank, *place.use.legs[position + 1 :]))
    assert isinstance(step.op, Contraction)
    term = step.op.terms[place.term]
    factors = tuple({old: new, place.use: weight}.get(use, use) for use in term.factors)
    terms = list(step.op.terms)
    terms[place.term] = replace(term, factors=factors)
    sketch = sketch.with_tensor(place.use.name, Declared(made.role, legs, made.rest))
    return sketch.with_step(replace(step, op=Contraction(tuple(terms))))
