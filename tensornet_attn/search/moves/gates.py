"""Gates that pick: experts for projections, and a few heads for each query."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from tensornet_attn.graph.model import Box, Contraction, Use
from tensornet_attn.search.roles import Map, Place, heads, output, projection, reader, source
from tensornet_attn.search.sketch import Declared, Sketch, mapped, product
from tensornet_attn.search.wires import grown
from tensornet_attn.spec.arithmetic import parse

PROJECTIONS = ("v", "k", "q", "o")
_WIDEST = 64  # heads that each have a gate of their own; beyond that, all share one


def experts(sketch: Sketch, at: Map, of: str, e: int, k: int) -> Sketch | None:
    """V: x[m f] Wv[f h d]  becomes  V: Gs[m h e] x[m f] Wv[h e f d], Gs the k largest of e sigmoid gates.

    `of` names the projections: keys and values share the gate of the key side, queries and output that of the query
    side. All weights without an initialiser of their own get normal(fan-in ** -0.5), as designs with experts have it.
    """
    places = {name: _place(sketch, at, name) for name in PROJECTIONS}
    sides = [name for name in PROJECTIONS if name in of]
    if k >= e or any(places[name] is None for name in sides):
        return None
    sketch = _one_convention(sketch)
    sketch, leg = sketch.new_leg("e", e)
    sketch, setting = sketch.new_setting("k", k)
    for names, anchor, gate in (("kv", "k", "Gs"), ("qo", "q", "Gd")):
        own = [place for name in sides if name in names and (place := places[name])]
        if own:
            changed = _side(sketch, own, places[anchor] or places[names[1]], leg, setting, gate)
            if changed is None:
                return None
            sketch = changed
    return sketch


def _place(sketch: Sketch, at: Map, name: str) -> Place | None:
    """The weight of a projection; none where it is used twice."""
    found = reader(sketch, at.box)
    if found is None:
        return None
    place = (
        output(sketch, found)
        if name == "o"
        else projection(sketch, {"v": found.value, "k": at.key, "q": at.query}[name])
    )
    return place if place is not None and sketch.readers[place.use.name] == (place.step,) else None


def _side(
    sketch: Sketch, places: list[Place], anchor: Place | None, leg: str, setting: str, name: str
) -> Sketch | None:
    """One gate for these projections, made from the source of the anchor."""
    given = source(sketch, anchor) if anchor is not None else None
    if given is None or not _along(sketch, given, places):
        return None
    own = [_head_legs(sketch, place) for place in places]
    if any(set(legs) & set(given.legs) for legs in own):  # what is projected has heads already
        return None
    first = min((place.step for place in places), key=lambda step: list(sketch.step).index(step))
    sketch = grown(sketch, [place.use.name for place in places], leg)
    for legs in dict.fromkeys(own):
        sketch, gate = _gate(sketch, given, (*legs, leg), leg, setting, name, first)
        for place, mine in zip(places, own, strict=True):
            sketch = _gated(sketch, place, gate) if mine == legs else sketch
    return sketch


def _along(sketch: Sketch, given: Use, places: Iterable[Place]) -> bool:
    """Whether the gate's source has the sequence of every product that it gates, and comes before it."""
    order = list(sketch.step)
    sequence = {sketch.query, sketch.key} & set(given.legs)
    for place in places:
        if not sequence <= set(sketch.step[place.step].legs):
            return False
        if given.name in order and order.index(given.name) >= min(order.index(p.step) for p in places):
            return False
    return True


def _head_legs(sketch: Sketch, place: Place) -> tuple[str, ...]:
    """The head legs of a projecting weight, where they are few enough for gates of their own."""
    term = sketch.step[place.step]
    assert isinstance(term.op, Contraction)
    own = tuple(leg for leg in place.use.legs if sketch.is_head(leg))
    return own if prod(map(sketch.size, own)) <= _WIDEST else ()


def _gate(
    sketch: Sketch, given: Use, legs: tuple[str, ...], along: str, setting: str, name: str, before: str
) -> tuple[Sketch, Use]:
    """topk of sigmoid(x S): one gate for each sequence position and each of `legs`."""
    (sequence,) = {sketch.query, sketch.key} & set(given.legs)
    features = [leg for leg in given.legs if leg != sequence]
    fan = f"normal({' * '.join(features) if len(features) == 1 else '(' + ' * '.join(features) + ')'} ** -0.5)"
    sketch, weight = sketch.new_weight("S" + name[1:], (*features, *legs), fan)
    made = (str(sequence), *legs)
    name = sketch.name(name)
    sketch, score = sketch.new_step(f"{name}.of.of", product(given, weight), made, before)
    sketch, sure = sketch.new_step(f"{name}.of", mapped("sigmoid", score), made, before)
    box = Box("topk", along, (("of", sure), ("by", sure)), (("k", parse(setting)),))
    return sketch.new_step(name, box, made, before)


def _gated(sketch: Sketch, place: Place, gate: Use) -> Sketch:
    """The product of a place with a gate in it."""
    step = sketch.step[place.step]
    assert isinstance(step.op, Contraction)
    terms = list(step.op.terms)
    terms[place.term] = replace(terms[place.term], factors=(gate, *terms[place.term].factors))
    return sketch.with_step(replace(step, op=Contraction(tuple(terms))))


def _one_convention(sketch: Sketch) -> Sketch:
    """Weights that leave their initialiser to the default get one by what their first product sums."""
    for name, made in sketch.tensors.items():
        if made.role == "weights" and "init" not in dict(made.rest) and len(made.legs) > 1:
            step = sketch.step[sketch.readers[name][0]]
            use = next(use for use in step.op.uses if use.name == name)
            summed = [own for own, leg in zip(made.legs, use.legs, strict=True) if leg not in step.legs]
            if summed:
                fan = summed[0] if len(summed) == 1 else f"({' * '.join(summed)})"
                rest = (*made.rest, ("init", f"normal({fan} ** -0.5)"))
                sketch = sketch.with_tensor(name, Declared(made.role, made.legs, rest))
    return sketch


def gate(sketch: Sketch, at: Map, k: int) -> Sketch | None:
    """A[h n m] V[m h d] Wo[h d f]  becomes  G[n h] A[h n m] V[m h d] Wo[h d f], G the k largest of the heads' gates."""
    found, place = reader(sketch, at.box), projection(sketch, at.query)
    given = source(sketch, place) if place is not None else None
    own = heads(sketch, at)
    if found is None or given is None or sketch.query not in given.legs or not own:
        return None
    legs = tuple(leg for leg in found.map.legs if leg in own and sketch.is_head(leg))
    if not legs or set(legs) & set(given.legs) or prod(map(sketch.size, legs)) > _WIDEST or k >= sketch.size(legs[-1]):
        return None
    sketch = _one_convention(sketch)
    sketch, setting = sketch.new_setting("k", k)
    sketch, made = _gate(sketch, given, legs, legs[-1], setting, "Gh", found.step)
    return _gated(sketch, Place(found.step, found.term, found.value), made)
