"""Joins several legs into one, and splits one into several, without reordering entries. A design writes `(h d)`.

x[n (h d)]            splits a leg of x:           split over h_d into h d
.. -> n (h d)         joins h and d:               join over h_d of h d
"""

from __future__ import annotations

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops.given import ForwardEmitter, Graph, ReferenceEvaluation, Tensor
from tensornet_attn.ops.operation import Operation, aligned


class Join(Operation):
    """Joins `parts`, legs of the operand, into the leg of the box."""

    kind = "join"
    linear = keeps_sign = True
    between = " of "

    def legs_mixed(self, box: Box) -> set[str | None]:
        return {box.leg, *box.parts}

    def legs_whole(self, graph: Graph, box: Box) -> tuple[str | None, ...]:
        return (box.leg, *box.parts)

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        use, apart = box.of, apart_of(step.legs, box)
        operand = aligned(run.values[use.name], use.legs, apart)
        batch = operand.shape[: operand.ndim - len(apart)]
        return operand.reshape(*batch, *map(run.size, step.legs)), step.legs

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        groups = tuple(box.parts if leg == box.leg else (leg,) for leg in step.legs)
        lines.bind(step.name, lines.value(box.of).grouped(groups), step.legs)

    def words(self, box: Box) -> str:
        return f"{' '.join(box.parts)} as one leg"


class Split(Join):
    """Splits the leg of the box into `parts`."""

    kind = "split"
    splits = True

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        use = box.of
        operand = run.values[use.name]
        legs, batch = apart_of(use.legs, box), operand.shape[: operand.ndim - len(use.legs)]
        return operand.reshape(*batch, *map(run.size, legs)), legs

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        operand = lines.value(box.of)
        dim = operand.legs.index(str(box.leg)) - len(operand.legs)
        sizes = ", ".join(map(lines.size, box.parts))
        lines.bind(step.name, f"{operand.atom}.unflatten({dim}, ({sizes}))", apart_of(operand.legs, box))

    def words(self, box: Box) -> str:
        return f"a leg as {' '.join(box.parts)}"


def apart_of(legs: Legs, box: Box) -> Legs:
    """The legs, with the leg of the box replaced by its parts."""
    return tuple(part for leg in legs for part in (box.parts if leg == box.leg else (leg,)))
