"""Cumulative sums along the key leg: of the visible entries up to each key, or from each key on."""

from __future__ import annotations

from typing import ClassVar

from tensornet_attn.ir.steps import Box, Contraction, Function, Step, Tensor, Use
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import Checker, ForwardEmitter, KernelTiles, ReferenceEvaluation, Tile
from tensornet_attn.ops.given import Tensor as Values
from tensornet_attn.ops.operation import Operation, check_key_leg
from tensornet_attn.ops.schema import BoxModel, LegName, Masks, Operand


class CumSum(BoxModel):
    """The sum of the visible entries up to each key; without a query leg, up to each query's own position."""

    cumsum: LegName
    mask: Masks = ()
    of: Operand


class ReverseCumSum(BoxModel):
    """The sum of the visible entries from each key on."""

    reverse_cumsum: LegName
    mask: Masks = ()
    of: Operand


class CumSumOperation(Operation):
    """The cumulative sum of queries x keys. `written_out` handles operands without the query leg."""

    kind = "cumsum"
    model: type[BoxModel] | None = CumSum
    masked = runs_along = linear = keeps_sign = accumulates = True
    keeps_zeros = takes_float_mask = False
    ignores_zeros = "always"
    per_element = 1
    reverse: ClassVar[bool] = False

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        legs, query = box.legs or (), box.query
        check_key_leg(box, self.kind, leg)
        if query in legs:
            return legs
        if query is None or self.reverse:
            box.written(self.kind)
            message = f"the operand of '{self.kind}' has no query leg; its legs are {' '.join(legs)}."
            hint = f"use an operand with the query leg: '{self.kind}' sums queries x keys."
            raise Refusal("box-leg", message, hint if self.reverse else "declare a query leg, e.g. 'n: query'.")
        return tuple(query if name == leg else name for name in legs)

    def written_out(self, step: Step, box: Box, query: str | None) -> tuple[list[Step], list[Tensor]]:
        """# c = cumsum over m of g[m h]   ->   c = sum over m, causal, of g[m h] ones[n]"""
        of = box.of
        if query is None or query in of.legs:
            return [step], []
        ones = Tensor(f"{step.name}.ones", "constant", (query,), Function("ones"))
        position = of.legs.index(str(box.leg))
        legs = (*of.legs[:position], query, *of.legs[position:])
        each = Step(f"{step.name}.each", Contraction.of(of, ones.use), legs)
        sums = Box("sum", box.leg, (("of", Use(each.name, legs)),), masks=(Function("causal"),))
        return [each, Step(step.name, sums, step.legs)], [ones]

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Values, Legs]:
        entries, keep, legs, axis = run.masked(step)
        entries = entries.where(keep, 0)
        sums = entries.flip(axis).cumsum(axis).flip(axis) if self.reverse else entries.cumsum(axis)
        return sums, legs

    def emit_masked(
        self, lines: ForwardEmitter, step: Step, box: Box, operand: TensorText, keep: str, bias: str
    ) -> None:
        expression = lines.call(f"masked_{self.kind}", operand.text, *([] if keep == "None" else [keep]))
        lines.bind(step.name, expression, operand.legs)

    def tile_masked(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        x, visible = tiles.masked(box.of)
        kept = tiles.nodes.node("keep", (x, visible), x.axes, step.name)
        return tiles.nodes.node("running", (kept,), x.axes, step.name, (self.reverse,))


class ReverseCumSumOperation(CumSumOperation):
    kind = "reverse_cumsum"
    model = ReverseCumSum
    reverse = True
