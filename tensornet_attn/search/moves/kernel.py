"""A kernel in place of the softmax: normalised products of feature maps, whose cost is linear in the length."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Box, Contraction, Use
from tensornet_attn.search.roles import Map
from tensornet_attn.search.sketch import Sketch, mapped
from tensornet_attn.spec.arithmetic import Arith, parse

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
