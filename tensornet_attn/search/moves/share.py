"""Score heads shared over g global ones: local heads read learned mixtures of a few global score matrices."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Box, Contraction, Term, Use
from tensornet_attn.search.moves.scores import Side, head_wire, set_scale
from tensornet_attn.search.roles import Map
from tensornet_attn.search.sketch import Sketch, mapped
from tensornet_attn.search.wires import relabel
from tensornet_attn.spec.arithmetic import Arith


def share(sketch: Sketch, at: Map, g: int) -> Sketch | None:
    """Q[n h d] K[m h d] -> h n m  becomes  P[g h] Q[n g d] K[m g d] -> h n m, with g heads of queries and keys.

    Under a kernel's normaliser the mixture is softplus(P), which keeps every row's sum positive.
    """
    found = head_wire(sketch, at)
    if found is None:
        return None
    return mixed_scores(sketch, at, found, g, f"head {g}", "P")


def mixed_scores(
    sketch: Sketch,
    at: Map,
    found: Side,
    g: int,
    text: str,
    name: str,
    scale: Arith | None = None,
    init: str | None = None,
) -> Sketch | None:
    """The scores of `found.leg` as mixtures, by a new weight, of g scores of queries and keys."""
    sketch, new = sketch.new_leg("g", text)
    changed = relabel(sketch, (found.wire, (new,)))
    if changed is None:
        return None
    changed, weight = changed.new_weight(name, (new, found.leg), init)
    if isinstance(changed.step[at.box].op, Box) and changed.step[at.box].op.kind == "normalize":  # type: ignore[union-attr]
        changed, weight = changed.new_step("mixture", mapped("softplus", weight), weight.legs, at.scores)
    step = changed.step[at.scores]
    assert isinstance(step.op, Contraction)
    terms = tuple(_mixed(term, weight, new) for term in step.op.terms)
    changed = changed.with_step(replace(step, op=Contraction(terms)))
    return changed if scale is None else set_scale(changed, at.box, scale)


def _mixed(term: Term, weight: Use, leg: str) -> Term:
    """Terms with a global head are mixed; others, such as a prior of each local head, stay as they are."""
    carries = any(leg in use.legs for use in term.factors)
    return replace(term, factors=(weight, *term.factors)) if carries else term
