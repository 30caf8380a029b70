"""Where the legs of a step meet: each use of a tensor with the wires it hangs on.

A wire is what the diagram draws: legs of one step that are glued. A leg's name has no meaning outside the step, and
inside it a leg that is summed in one term is another wire than the same name summed in the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.ir.steps import Step, Use

WHOLE = 0  # the part of a wire that is not confined to a term


@dataclass(frozen=True)
class Wire:
    """A leg of a step; `part` is the number of the term that it is summed in, from 1, or WHOLE."""

    leg: str
    part: int = WHOLE


@dataclass(frozen=True)
class Joint:
    """A use in a step: its role (`factor` in a product), the number of its term (WHOLE outside sums), and its wires."""

    role: str
    part: int
    use: Use
    wires: tuple[Wire, ...]


def joints(step: Step) -> tuple[Joint, ...]:
    """The uses of a step in written order."""
    if step.contraction is not None:
        parts = [(part, use) for part, term in enumerate(step.contraction.terms, 1) for use in term.factors]
        return tuple(_joint("factor", part, use, step.legs, part) for part, use in parts)
    if step.box is not None:
        return tuple(_joint(role, WHOLE, use, use.legs) for role, use in step.box.operands)
    op = step.attention
    if op is None:
        return tuple(_joint("operand", WHOLE, use, use.legs) for use in step.op.uses)
    scores = [_joint(role, WHOLE, use, op.scores, 1) for role, use in (("query", op.query), ("key", op.key))]
    return (*scores, _joint("value", WHOLE, op.value, op.value.legs))


def wires(step: Step) -> tuple[Wire, ...]:
    """The wires of a step: those of its result first, then the others in written order."""
    own = [Wire(leg) for leg in step.legs]
    named = [Wire(leg) for leg in marks(step)]
    used = [wire for joint in joints(step) for wire in joint.wires]
    return tuple(dict.fromkeys((*own, *used, *named)))


def marks(step: Step) -> dict[str, str]:
    """What a box does to which leg: `over` the one it acts along, `to` the second leg of rope and rel_shift."""
    if step.attention is not None:
        return dict.fromkeys(step.attention.scores, "score") | {step.attention.leg: "over"}
    ends = () if step.box is None else ((step.box.leg, "over"), (step.box.other, "to"))
    return {leg: mark for leg, mark in ends if leg is not None}


def _joint(role: str, part: int, use: Use, kept: tuple[str, ...], inside: int = WHOLE) -> Joint:
    """A use whose legs are wires of the whole step where they are kept, else of a part of it."""
    return Joint(role, part, use, tuple(Wire(leg, WHOLE if leg in kept else inside) for leg in use.legs))
