"""The wires of a step: each connects the uses of tensors that share a leg.

A wire is a line of the drawn diagram. Leg names are local to a step, and legs of one name that are summed in different
terms are different wires.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.ir.steps import Step, Use

WHOLE = 0  # the part of a wire that is not local to a term


@dataclass(frozen=True)
class StepLeg:
    """A leg of a step; `term` is the number of the term that sums it, from 1, or WHOLE."""

    leg: str
    term: int = WHOLE


@dataclass(frozen=True)
class Joint:
    """A use in a step: its role (`factor` in a product), the number of its term (WHOLE outside of sums), its wires."""

    role: str
    term: int
    use: Use
    wires: tuple[StepLeg, ...]


def joints(step: Step) -> tuple[Joint, ...]:
    """The uses of a step in the order written."""
    if step.contraction is not None:
        uses = [(number, use) for number, term in enumerate(step.terms, 1) for use in term.factors]
        return tuple(_joint("factor", number, use, step.legs, number) for number, use in uses)
    if step.box is not None:
        return tuple(_joint(role, WHOLE, use, use.legs) for role, use in step.box.operands)
    return tuple(_joint("operand", WHOLE, use, use.legs) for use in step.uses)


def wires(step: Step) -> tuple[StepLeg, ...]:
    """The wires of a step: those of its result first, then the others in the order written."""
    result_wires = [StepLeg(leg) for leg in step.legs]
    box_wires = [StepLeg(leg) for leg in marks(step)]
    use_wires = [wire for joint in joints(step) for wire in joint.wires]
    return tuple(dict.fromkeys((*result_wires, *use_wires, *box_wires)))


def marks(step: Step) -> dict[str, str]:
    """The roles of legs in a box: `over` its leg, `to` the second leg of rope and rel_shift, `part` of a joined leg."""
    if step.box is None:
        return {}
    ends = ((step.box.leg, "over"), (step.box.other, "to"))
    parts = {leg: f"part {index}" for index, leg in enumerate(step.box.parts)}
    return {leg: mark for leg, mark in ends if leg is not None} | parts


def _joint(role: str, number: int, use: Use, kept: tuple[str, ...], inside: int = WHOLE) -> Joint:
    """A use whose legs in `kept` are wires of the whole step and whose other legs are wires of the part `inside`."""
    return Joint(role, number, use, tuple(StepLeg(leg, WHOLE if leg in kept else inside) for leg in use.legs))
