"""Moves on projections: experts, selected heads for each query, and keys and values from a latent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tensornet_attn.graph.model import Box, Use
from tensornet_attn.ir.arithmetic import parse
from tensornet_attn.search.roles import Map, Place, heads, output, projection, reader, source
from tensornet_attn.search.sketch import Legs, Sketch, mapped, need, product, swapped

PROJECTIONS = ("v", "k", "q", "o")
_WIDEST = 64  # with more heads, all share one gate


def experts(sketch: Sketch, at: Map, of: str, e: int, k: int) -> None:
    """V: x[m f] Wv[f h d]  becomes  V: Gs[m h e] x[m f] Wv[h e f d], Gs the k largest of e sigmoid gates.

    `of` names the projections: keys and values share the gate of the key side, queries and output the gate of the query
    side. All weights without an initialiser get normal(fan-in ** -0.5), as in shipped designs with experts.
    """
    found, readers = need(reader(sketch, at.box)), sketch.readers()
    places = {name: projection(sketch, use) for name, use in (("v", found.value), ("k", at.key), ("q", at.query))}
    places["o"] = output(sketch, found)
    single = {name: place for name, place in places.items() if place and readers[place.use.name] == [place.step]}
    need(k < e and {*of} & {*PROJECTIONS} <= single.keys())
    _one_convention(sketch)
    leg, setting = sketch.leg("e", e), sketch.setting("k", k)
    for side, name in (("kv", "Gs"), ("qo", "Gd")):
        own = [single[one] for one in PROJECTIONS if one in of and one in side]
        if own:
            given = source(sketch, need(single.get(side[0]) or single.get(side[1])))
            _choose(sketch, own, need(given), leg, setting, name)


def _choose(sketch: Sketch, places: list[Place], given: Use, leg: str, setting: str, name: str) -> None:
    """Adds one gate for these projections, computed from a source that precedes them and has their sequence leg."""
    order = list(sketch.step)
    sequence = {sketch.query, sketch.key} & {*given.legs}
    first = min((place.step for place in places), key=order.index)
    need(all(sequence <= {*sketch.step[place.step].legs} for place in places))
    need(given.name not in order or order.index(given.name) < order.index(first))
    own = [_head_legs(sketch, place) for place in places]
    need(not any({*legs} & {*given.legs} for legs in own))  # the source must not have heads
    sketch.grow([place.use.name for place in places], leg)
    for legs in dict.fromkeys(own):
        gate = _gate(sketch, given, (*legs, leg), setting, name, first)
        for place in (place for place, mine in zip(places, own, strict=True) if mine == legs):
            _multiply(sketch, place.step, place.term, gate)


def _head_legs(sketch: Sketch, place: Place) -> Legs:
    """The head legs of a projection; empty if there are too many for separate gates."""
    own = tuple(leg for leg in place.use.legs if sketch.is_head(leg))
    return own if sketch.size(*own) <= _WIDEST else ()


def _gate(sketch: Sketch, given: Use, legs: Legs, setting: str, name: str, before: str) -> Use:
    """topk of sigmoid(x S) along the last of `legs`, with a gate for each position and each of `legs`."""
    (sequence,) = {sketch.query, sketch.key} & {*given.legs}
    features = [leg for leg in given.legs if leg != sequence]
    weight = sketch.weight("S" + name[1:], (*features, *legs), _by_fan_in(features))

    def chosen(sure: Use) -> Box:
        return Box("topk", legs[-1], (("of", sure), ("by", sure)), (("k", parse(setting)),))

    return sketch.put(name, (str(sequence), *legs), before, product(given, weight), mapped("sigmoid"), chosen)


def _by_fan_in(summed: Sequence[str]) -> str:
    """The initialiser of a weight that sums these legs, such as `normal((h * d) ** -0.5)`."""
    fan = " * ".join(summed)
    return f"normal({fan if len(summed) == 1 else f'({fan})'} ** -0.5)"


def _multiply(sketch: Sketch, step: str, term: int, gate: Use) -> None:
    sketch.refactor(step, lambda factors: (gate, *factors), term)


def _one_convention(sketch: Sketch) -> None:
    """Gives weights with the default initialiser one by the fan-in of their first product."""
    readers = sketch.readers()
    for name, made in sketch.tensors.items():
        if made.role == "weights" and "init" not in made.rest and len(made.legs) > 1:
            step = sketch.step[readers[name][0]]
            use = next(use for use in step.op.uses if use.name == name)
            summed = [own for own, leg in zip(made.legs, use.legs, strict=True) if leg not in step.legs]
            if summed:
                sketch.tensors[name] = replace(made, rest={**made.rest, "init": _by_fan_in(summed)})


def gate(sketch: Sketch, at: Map, k: int) -> None:
    """A[h n m] V[m h d] Wo[h d f]  becomes  G[n h] A[h n m] V[m h d] Wo[h d f], G the k largest of the heads' gates."""
    found, given = need(reader(sketch, at.box)), need(source(sketch, need(projection(sketch, at.query))))
    own = heads(sketch, at)
    legs = tuple(leg for leg in found.map.legs if leg in own and sketch.is_head(leg))
    need(legs and sketch.query in given.legs and not {*legs} & {*given.legs})
    need(prod(map(sketch.size, legs)) <= _WIDEST and k < sketch.size(legs[-1]))
    _one_convention(sketch)
    made = _gate(sketch, given, legs, sketch.setting("k", k), "Gh", found.step)
    _multiply(sketch, found.step, found.term, made)


def latent(sketch: Sketch, at: Map, c: int) -> None:
    """x[m f] Wk[f h d], x[m f] Wv[f h d]  becomes  C[m c] Wk[c h d], C[m c] Wv[c h d] with C: x[m f] Wc[f c] -> m c."""
    found, readers = need(reader(sketch, at.box)), sketch.readers()
    places = [need(projection(sketch, use)) for use in (at.key, found.value)]
    given, other = (need(source(sketch, place)) for place in places)
    need(given == other and places[0].use.name != places[1].use.name and sketch.key in given.legs)
    need(all(readers[place.use.name] == [place.step] for place in places))
    (leg, *more) = (leg for leg in given.legs if leg != sketch.key)
    need(not more and c < sketch.size(leg))
    rank = sketch.leg("c", c)
    first = min((place.step for place in places), key=list(sketch.step).index)
    small = sketch.put("C", (str(sketch.key), rank), first, product(given, sketch.weight("Wc", (leg, rank))))
    slots = {(place.use.name, place.use.legs.index(leg)) for place in places}

    def from_rank(name: str, legs: Legs) -> Legs:
        return tuple(rank if (name, place) in slots else one for place, one in enumerate(legs))

    sketch.change_legs(from_rank)
    for place in places:
        sketch.refactor(place.step, swapped(given, small), place.term)
