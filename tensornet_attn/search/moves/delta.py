"""Fast weights beside a map: a delta rule writes values under keys, and queries read them."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Box, Contraction, Term, Use
from tensornet_attn.search.moves.scores import summed_legs
from tensornet_attn.search.roles import Map, chain, projection, reader, source
from tensornet_attn.search.sketch import Sketch, mapped, product
from tensornet_attn.search.wires import relabel, slot_of, wire
from tensornet_attn.spec.arithmetic import ONE, parse


def delta(sketch: Sketch, at: Map, map: str) -> Sketch | None:
    """O: A[h n m] V[m h e]  becomes  O: blend1[h] near[n h e] + blend2[h] far[n h e], far read from fast weights.

    Keys and queries are the map's, through a feature map and divided by their sum; the rate is a sigmoid of the keys'
    source. The values get a leg of their own where they share its name with the keys. The design becomes causal, as
    fast weights are.
    """
    found, place = reader(sketch, at.box), projection(sketch, at.key)
    given = source(sketch, place) if place is not None else None
    summed = summed_legs(sketch, at)
    if found is None or given is None or len(summed) != 1 or sketch.head.get("causal") is False:
        return None
    heads = tuple(leg for leg in found.map.legs if leg not in (sketch.query, sketch.key))
    if {*at.query.legs} != {str(sketch.query), *heads, *summed} or {*at.key.legs} != {str(sketch.key), *heads, *summed}:
        return None
    if not {*heads} <= {*found.value.legs} or chain(sketch, found.value) == []:
        return None
    apart = _own_leg(sketch, at, summed[0])
    return _written(apart, at, given, heads, summed[0], map) if apart is not None else None


def _own_leg(sketch: Sketch, at: Map, leg: str) -> Sketch | None:
    """The sketch with the values' components on a leg of their own, where they have the keys'."""
    found = reader(sketch, at.box)
    assert found is not None
    if leg not in found.value.legs:
        return sketch
    values = wire(sketch, [slot_of(sketch, found.value, leg)])
    if at.key.name in values.owners or at.query.name in values.owners:
        return None
    sketch, new = sketch.new_leg("e", leg)
    return relabel(sketch, (values, (new,)))


def _written(sketch: Sketch, at: Map, given: Use, heads: tuple[str, ...], leg: str, map: str) -> Sketch | None:
    found = reader(sketch, at.box)
    assert found is not None
    step = sketch.step[found.step]
    components = tuple(one for one in found.value.legs if one not in (*heads, sketch.key))
    if not isinstance(step.op, Contraction) or len(components) != 1:
        return None
    legs = (str(sketch.query), *heads, *components)
    sketch, near = sketch.new_step("near", product(found.map, found.value), legs, found.step)
    sketch, far = _fast(sketch, at, given, heads, leg, found.value, map, found.step)
    sketch, blends = _blends(sketch, heads, found.step)
    both = Contraction((Term(ONE, (blends[0], near)), Term(ONE, (blends[1], far))))
    sketch, read = sketch.new_step("O", both, legs, found.step)
    terms = list(step.op.terms)
    rest = tuple(use for use in terms[found.term].factors if use not in (found.map, found.value))
    terms[found.term] = replace(terms[found.term], factors=(read, *rest))
    return replace(sketch.with_step(replace(step, op=Contraction(tuple(terms)))), head={**sketch.head, "causal": True})


def _fast(
    sketch: Sketch, at: Map, given: Use, heads: tuple[str, ...], leg: str, value: Use, map: str, before: str
) -> tuple[Sketch, Use]:
    """The delta rule and what goes into it."""
    uses: dict[str, Use] = {}
    for role, use in (("query", at.query), ("key", at.key)):
        name = sketch.name(f"fast{role[0].upper()}")
        sketch, features = sketch.new_step(f"{name}.of", mapped(map, use), use.legs, before)
        box = Box("l1norm", leg, (("of", features),), (("eps", parse(0)),))
        sketch, uses[role] = sketch.new_step(name, box, use.legs, before)
    inputs = [one for one in given.legs if one != sketch.key]
    sketch, weight = sketch.new_weight("Wb", (*inputs, *heads))
    name = sketch.name("rate")
    sketch, raw = sketch.new_step(f"{name}.of", product(given, weight), (str(sketch.key), *heads), before)
    sketch, rate = sketch.new_step(name, mapped("sigmoid", raw), raw.legs, before)
    operands = (*uses.items(), ("value", value), ("rate", rate))
    numbers = (("eps", parse(0)),)
    rule = Box("delta_rule", sketch.key, operands, numbers, mode="read")
    legs = tuple(str(sketch.query) if one == sketch.key else one for one in value.legs)
    return sketch.new_step("far", rule, legs, before)


def _blends(sketch: Sketch, heads: tuple[str, ...], before: str) -> tuple[Sketch, list[Use]]:
    uses = []
    for count, init in ((1, "zeros"), (2, "ones")):
        sketch, weight = sketch.new_weight(f"w{count}", heads, init)
        sketch, blend = sketch.new_step(f"blend{count}", mapped("sigmoid", weight), heads, before)
        uses.append(blend)
    return sketch, uses
