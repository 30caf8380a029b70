"""Moves that replace or accompany the softmax: a kernel, a near and a far field, fast weights beside the map."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Box, Contraction, Function, Step, Term, Use
from tensornet_attn.search.moves.heads import summed_legs
from tensornet_attn.search.roles import Map, chain, heads, projection, reader, source
from tensornet_attn.search.sketch import Sketch, mapped, product, rename_steps
from tensornet_attn.search.wires import relabel, slot_of, wire
from tensornet_attn.spec.arithmetic import ONE, Arith, parse

FEATURES = ("elu1", "elu1_neg", "exp", "softplus", "tanh")


def kernel(sketch: Sketch, at: Map, map: str) -> Sketch | None:
    """softmax(c Q K)  becomes  normalize(phi(Q) phi(K)); weights that mix the scores go through softplus."""
    if not kernelised(sketch, at):
        return None
    sketch, scores = features(sketch, at, map, "", at.scores)
    inside, box = sketch.step[at.scores], sketch.step[at.box]
    assert isinstance(box.op, Box)
    sketch = sketch.with_step(replace(inside, op=scores))
    return sketch.with_step(replace(box, op=normalise(box.op, box.op.operand("of"), map, box.op.masks)))


def normalise(like: Box, of: Use, map: str, masks: tuple[object, ...]) -> Box:
    """A normalize box; features of both signs get a small number in the denominator."""
    eps: Arith = parse(1e-6 if map == "tanh" else 0)
    return Box("normalize", like.leg, (("of", of),), (("eps", eps),), masks)  # type: ignore[arg-type]


def kernelised(sketch: Sketch, at: Map) -> bool:
    """Whether the scores are one product, right inside a softmax, that nothing with both sequences is part of."""
    box, step = sketch.step[at.box], sketch.step[at.scores]
    if not isinstance(box.op, Box) or box.op.kind != "softmax" or box.op.uses[0].name != at.scores:
        return False
    if not isinstance(step.op, Contraction) or len(step.op.terms) != 1:
        return False
    others = [use for use in step.op.terms[0].factors if use not in (at.query, at.key)]
    return not any({sketch.query, sketch.key} & set(use.legs) for use in others)


def features(sketch: Sketch, at: Map, map: str, number: str, before: str) -> tuple[Sketch, Contraction]:
    """The steps phi(Q) and phi(K) before a step, and the product of the scores with them."""
    step = sketch.step[at.scores]
    assert isinstance(step.op, Contraction)
    made: dict[Use, Use] = {}
    for use in step.op.terms[0].factors:
        name = {at.query: "phiQ", at.key: "phiK"}.get(use, "mixture")
        function = map if use in (at.query, at.key) else "softplus"
        source = Use(use.name, sketch.legs_of(use.name))
        sketch, one = sketch.new_step(f"{name}{number}", mapped(function, source), source.legs, before)
        made[use] = Use(one.name, use.legs)
    term = step.op.terms[0]
    return sketch, Contraction((replace(term, factors=tuple(made[use] for use in term.factors)),))


SIDES = ("both", "past")


def split(sketch: Sketch, at: Map, band: int, maps: str, side: str) -> Sketch | None:
    """A = softmax(Q K)  becomes  blend1[h] near + blend2[h] far1 + ..., each blend a learned sigmoid:

    near  the softmax among `band` diagonals, on both sides of the query or before it
    far1  normalize(phi(Q) phi(K)) over all keys, one for each of `maps`, which are separated by +
    """
    box = sketch.step[at.box]
    if not kernelised(sketch, at) or not isinstance(box.op, Box) or box.op.masks:
        return None
    sketch, k = sketch.new_setting("k", band)
    reach = f"({k} - 1) // 2" if side == "both" else f"{k} - 1"
    mask = Function("band", (parse(reach),)) if side == "both" else Function("window", (parse(reach), parse(0)))
    sketch, near = sketch.new_step("near", replace(box.op, masks=(mask,)), box.legs, at.box)
    terms = []
    sketch, blends = _blends(sketch, at)
    for count, map in enumerate(maps.split("+"), 1):
        sketch, scores = features(sketch, at, map, str(count), at.box)
        inside = sketch.step[at.scores].legs
        name = sketch.name(f"far{count}")
        sketch, of = sketch.new_step(f"{name}.of", scores, inside, at.box)
        sketch, far = sketch.new_step(name, normalise(box.op, of, map, ()), box.legs, at.box)
        terms.append(Term(ONE, (blends[1], far)))
    blended = Contraction((Term(ONE, (blends[0], near)), *terms))
    sketch = sketch.with_step(Step(at.box, blended, box.legs))
    return rename_steps(sketch, {at.scores: f"{near.name}.of"}) if at.scores == f"{at.box}.of" else sketch


def _blends(sketch: Sketch, at: Map) -> tuple[Sketch, list[Use]]:
    """The weights of the near and of the far field: sigmoids of one number a head, at first 1 / 2 and 0.73."""
    legs, uses = heads(sketch, at), []
    for count, init in ((1, "zeros"), (2, "ones")):
        sketch, weight = sketch.new_weight(f"w{count}", legs, init)
        sketch, blend = sketch.new_step(f"blend{count}", mapped("sigmoid", weight), legs, at.box)
        uses.append(blend)
    return sketch, uses


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
    sketch, blends = _fast_blends(sketch, heads, found.step)
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


def _fast_blends(sketch: Sketch, heads: tuple[str, ...], before: str) -> tuple[Sketch, list[Use]]:
    uses = []
    for count, init in ((1, "zeros"), (2, "ones")):
        sketch, weight = sketch.new_weight(f"w{count}", heads, init)
        sketch, blend = sketch.new_step(f"blend{count}", mapped("sigmoid", weight), heads, before)
        uses.append(blend)
    return sketch, uses
