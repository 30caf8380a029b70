"""Moves on projections: experts, selected heads for each query, and keys and values from a latent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tensornet_attn.graph.graph import Box, Use
from tensornet_attn.ir.arithmetic import parse
from tensornet_attn.search.roles import AttentionMap, OperandPlace, heads, output, projection, reader, source
from tensornet_attn.search.sketch import Legs, Sketch, mapped, need, product, swapped

PROJECTIONS = ("v", "k", "q", "o")
_WIDEST = 64  # with more heads, all share one gate


def experts(sketch: Sketch, at: AttentionMap, of: str, e: int, k: int) -> None:
    """V: x[m f] Wv[f h d]  becomes  V: Gs[m h e] x[m f] Wv[h e f d], Gs the k largest of e sigmoid gates.

    `of` names the projections: keys and values share the gate of the key side, queries and output the gate of the query
    side. All weights without an initialiser get normal(fan-in ** -0.5), as in shipped designs with experts.
    """
    map_reader, readers = need(reader(sketch, at.box)), sketch.readers()
    weights = {name: projection(sketch, use) for name, use in (("v", map_reader.value), ("k", at.key), ("q", at.query))}
    weights["o"] = output(sketch, map_reader)
    single = {name: weight for name, weight in weights.items() if weight and readers[weight.use.name] == [weight.step]}
    need(k < e and {*of} & {*PROJECTIONS} <= single.keys())
    _init_by_fan_in(sketch)
    leg, setting = sketch.leg("e", e), sketch.setting("k", k)
    for side, name in (("kv", "Gs"), ("qo", "Gd")):
        chosen = [single[letter] for letter in PROJECTIONS if letter in of and letter in side]
        if chosen:
            source_use = source(sketch, need(single.get(side[0]) or single.get(side[1])))
            _choose(sketch, chosen, need(source_use), leg, setting, name)


def _choose(sketch: Sketch, weights: list[OperandPlace], source_use: Use, leg: str, setting: str, name: str) -> None:
    """Adds one gate for these projections, computed from a source that precedes them and has their sequence leg."""
    order = list(sketch.step)
    sequence = {sketch.query, sketch.key} & {*source_use.legs}
    first = min((weight.step for weight in weights), key=order.index)
    need(all(sequence <= {*sketch.step[weight.step].legs} for weight in weights))
    need(source_use.name not in order or order.index(source_use.name) < order.index(first))
    head_legs = [_head_legs(sketch, weight) for weight in weights]
    need(not any({*legs} & {*source_use.legs} for legs in head_legs))  # the source must not have heads
    sketch.grow([weight.use.name for weight in weights], leg)
    for legs in dict.fromkeys(head_legs):
        gate = _gate(sketch, source_use, (*legs, leg), setting, name, first)
        for weight in (weight for weight, weight_legs in zip(weights, head_legs, strict=True) if weight_legs == legs):
            _multiply(sketch, weight.step, weight.term, gate)


def _head_legs(sketch: Sketch, weight: OperandPlace) -> Legs:
    """The head legs of a projection; empty if there are too many for separate gates."""
    head_legs = tuple(leg for leg in weight.use.legs if sketch.is_head(leg))
    return head_legs if sketch.size(*head_legs) <= _WIDEST else ()


def _gate(sketch: Sketch, source_use: Use, legs: Legs, setting: str, name: str, before: str) -> Use:
    """topk of sigmoid(x S) along the last of `legs`, with a gate for each position and each of `legs`."""
    (sequence,) = {sketch.query, sketch.key} & {*source_use.legs}
    features = [leg for leg in source_use.legs if leg != sequence]
    weight = sketch.weight("S" + name[1:], (*features, *legs), _by_fan_in(features))

    def chosen(sure: Use) -> Box:
        return Box("topk", legs[-1], (("of", sure), ("by", sure)), (("k", parse(setting)),))

    return sketch.put(name, (str(sequence), *legs), before, product(source_use, weight), mapped("sigmoid"), chosen)


def _by_fan_in(summed: Sequence[str]) -> str:
    """The initialiser of a weight that sums these legs, such as `normal((h * d) ** -0.5)`."""
    fan = " * ".join(summed)
    return f"normal({fan if len(summed) == 1 else f'({fan})'} ** -0.5)"


def _multiply(sketch: Sketch, step: str, term: int, gate: Use) -> None:
    sketch.refactor(step, lambda factors: (gate, *factors), term)


def _init_by_fan_in(sketch: Sketch) -> None:
    """Gives weights with the default initialiser one by the fan-in of their first product."""
    readers = sketch.readers()
    for name, declared in sketch.tensors.items():
        if declared.role == "weights" and "init" not in declared.rest and len(declared.legs) > 1:
            step = sketch.step[readers[name][0]]
            use = next(use for use in step.uses if use.name == name)
            summed = [
                declared_leg for declared_leg, leg in zip(declared.legs, use.legs, strict=True) if leg not in step.legs
            ]
            if summed:
                sketch.tensors[name] = replace(declared, rest={**declared.rest, "init": _by_fan_in(summed)})


def gate(sketch: Sketch, at: AttentionMap, k: int) -> None:
    """A[h n m] V[m h d] Wo[h d f]  becomes  G[n h] A[h n m] V[m h d] Wo[h d f], G the k largest of the heads' gates."""
    map_reader, source_use = need(reader(sketch, at.box)), need(source(sketch, need(projection(sketch, at.query))))
    map_legs = heads(sketch, at)
    legs = tuple(leg for leg in map_reader.map.legs if leg in map_legs and sketch.is_head(leg))
    need(legs and sketch.query in source_use.legs and not {*legs} & {*source_use.legs})
    need(prod(map(sketch.size, legs)) <= _WIDEST and k < sketch.size(legs[-1]))
    _init_by_fan_in(sketch)
    gates = _gate(sketch, source_use, legs, sketch.setting("k", k), "Gh", map_reader.step)
    _multiply(sketch, map_reader.step, map_reader.term, gates)


def latent(sketch: Sketch, at: AttentionMap, c: int) -> None:
    """x[m f] Wk[f h d], x[m f] Wv[f h d]  becomes  C[m c] Wk[c h d], C[m c] Wv[c h d] with C: x[m f] Wc[f c] -> m c."""
    map_reader, readers = need(reader(sketch, at.box)), sketch.readers()
    weights = [need(projection(sketch, use)) for use in (at.key, map_reader.value)]
    key_source, value_source = (need(source(sketch, weight)) for weight in weights)
    need(key_source == value_source and weights[0].use.name != weights[1].use.name and sketch.key in key_source.legs)
    need(all(readers[weight.use.name] == [weight.step] for weight in weights))
    (leg, *more) = (leg for leg in key_source.legs if leg != sketch.key)
    need(not more and c < sketch.size(leg))
    rank = sketch.leg("c", c)
    first = min((weight.step for weight in weights), key=list(sketch.step).index)
    small = sketch.put("C", (str(sketch.key), rank), first, product(key_source, sketch.weight("Wc", (leg, rank))))
    slots = {(weight.use.name, weight.use.legs.index(leg)) for weight in weights}

    def from_rank(name: str, legs: Legs) -> Legs:
        return tuple(rank if (name, position) in slots else old for position, old in enumerate(legs))

    sketch.change_legs(from_rank)
    for weight in weights:
        sketch.refactor(weight.step, swapped(key_source, small), weight.term)
