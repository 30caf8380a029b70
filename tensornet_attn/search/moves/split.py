"""A near and a far field: softmax attention in a band, blended with kernels over all keys."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Box, Contraction, Function, Step, Term, Use
from tensornet_attn.search.moves.kernel import features, kernelised, normalise
from tensornet_attn.search.roles import Map, heads
from tensornet_attn.search.sketch import Sketch, mapped
from tensornet_attn.search.write import rename_steps
from tensornet_attn.spec.arithmetic import ONE, parse

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
