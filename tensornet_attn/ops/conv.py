"""Convolution along a sequence leg: the sum along a leg of taps, each shifted by another number of positions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from tensornet_attn.ir.steps import Box, Step, within, without
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import Checker, ForwardEmitter, Graph, ReferenceEvaluation, Scene, Tensor
from tensornet_attn.ops.operation import Operation, aligned
from tensornet_attn.ops.schema import BoxModel, Masks, Operand

MOST = 4096  # taps; attention covers longer ranges


def _legs(value: object) -> object:
    two_legs = isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(leg, str) for leg in value)
    if not (two_legs or isinstance(value, str)):
        raise PydanticCustomError("one or two", "expected a leg or a list of two legs")
    return tuple(value) if isinstance(value, list) else value


def _widths(value: object, info: ValidationInfo) -> object:
    widths, legs = _legs(value), info.data.get("conv")
    if legs is not None and isinstance(legs, str) != isinstance(widths, str):
        raise PydanticCustomError("as many", "expected a width for each leg")
    return widths


LEGS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}]}
OneOrTwo = Annotated[Any, BeforeValidator(_legs), WithJsonSchema(LEGS)]
Widths = Annotated[Any, BeforeValidator(_widths), WithJsonSchema(LEGS)]


class Conv(BoxModel):
    """The sum along `width` of entries at neighbouring positions; two legs have two widths."""

    second = "width"
    conv: OneOrTwo
    width: Widths
    mask: Masks = ()
    of: Operand

    def apart(self, keys: Collection[str]) -> BoxModel:
        """A convolution along the keys, where masks apply, inside one along the other leg."""
        if isinstance(self.conv, str):
            return self
        pairs = sorted(zip(self.conv, self.width, strict=True), key=lambda pair: pair[0] in keys)
        (other_leg, other_width), (key, width) = pairs
        for parameter, leg, leg_of_keys in (("conv", other_leg, key), ("width", other_width, width)):
            if leg == leg_of_keys:
                hint = "a convolution of scores runs along both sequence legs, e.g. 'conv: [n, m]' and 'width: [i, j]'."
                raise Refusal("leg-twice", f"leg '{leg}' stands twice in '{parameter}'.", hint)
        return Conv(conv=other_leg, width=other_width, of=Conv(conv=key, width=width, mask=self.mask, of=self.of))


class ConvOperation(Operation):
    """result[i] = sum over j of of[i + j - left, j]; entries beyond the ends and masked entries count as zero.

    Along the queries, rows that the key mask hides count as zero too, if queries and keys are the same sequence.

    A box of the planner also has a `weight`, and sums of * weight[j] for an operand without a leg of taps. A box of a
    decoding cache has an operand on the key leg, and its result has only the last positions.
    """

    kind = "conv"
    model = Conv
    masked = runs_along = looks_back = keeps_sign = linear = True
    takes_float_mask = False
    ignores_zeros = "always"
    per_element = 1
    between = " with "

    @property
    def multiplies(self) -> bool:
        return False  # masked entries of its operand are removed before

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        declared, legs = box.declared, box.legs or ()
        if not declared[leg].sequence and not box.broken(leg):
            box.written("conv")
            raise Refusal(
                "box-leg", f"'{leg}' is not a query or key leg.", "name the leg to convolve along, e.g. 'conv: n'."
            )
        size = declared[other].size
        if (size is None or size > MOST) and not box.broken(other):
            box.written("width")
            reason = f"has size {size}" if size else "is sized at run time"
            raise Refusal("box-leg", f"leg '{other}' {reason}.", f"use a leg with a size of at most {MOST:,} taps.")
        return without(legs, other)

    def legs_whole(self, graph: Graph, box: Box) -> tuple[str | None, ...]:
        return (box.leg, box.other)

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        import torch

        operand_legs, source = box.of.legs, source_of(run.graph, box)
        operand = run.values[box.of.name]
        if run.graph.masked(step):
            operand, keep, *_ = run.masked(step)
            operand = torch.where(keep, operand, 0)
        elif hides_rows(run.graph, box):
            operand = torch.where(aligned(run.visible_keys(source), (source,), operand_legs), operand, 0)
        width = run.size(str(box.other))
        left = left_of(run.graph, box, width)
        legs = (*without(operand_legs, source, box.other), str(box.other), source)
        operand = aligned(operand, operand_legs, legs)  # ... w n
        length = operand.shape[-1]
        total = torch.zeros_like(operand[..., 0, :])
        for position in range(length):
            for tap in range(width):
                if 0 <= position + tap - left < length:
                    total[..., position] = total[..., position] + operand[..., tap, position + tap - left]
        result_leg = str(box.leg) if box.leg in step.legs else run.graph.query
        return total[..., length - run.size(result_leg) :], (*legs[:-2], result_leg)

    def products(self, scene: Scene, step: Step, box: Box) -> dict[Legs, int]:
        weight = dict(box.operands).get("weight")
        if weight is None:
            return {}
        return {scene.ordered((*weight.legs, *step.legs)): 1}

    def operations(self, scene: Scene, step: Step, box: Box) -> int:
        return 0 if box.joins else super().operations(scene, step, box)

    def saved(self, box: Box) -> tuple[str, ...]:
        return tuple(role for role, _ in box.operands if role != "of") if box.joins else ()

    def also_saved(self, scene: Scene, step: Step, box: Box) -> dict[str, int]:
        """The operand is padded at both ends."""
        if not box.joins:
            return {}
        length = scene.sizes[source_of(scene.graph, box)]
        rows = scene.elements(box.of) // length
        return {f"{step.name}: padded": rows * (length + scene.sizes[str(box.other)] - 1)}

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        operand, source = lines.value(box.of), source_of(lines.graph, box)
        self.emit_masked(lines, step, box, operand.arranged((*without(operand.legs, source), source)), "None", "None")

    def emit_masked(
        self, lines: ForwardEmitter, step: Step, box: Box, operand: TensorText, keep: str, bias: str
    ) -> None:
        width = int(lines.graph.leg[str(box.other)].size)
        left, source, result_leg = (
            left_of(lines.graph, box, width),
            source_of(lines.graph, box),
            result_of(lines, step, box),
        )
        expression = operand.text if keep == "None" else lines.call("kept", operand.text, keep)
        tail = [f"tail={lines.length(result_leg)}"] if result_leg != source else []
        if not box.joins:
            expression = lines.call(
                "shifted_sum", expression, str(operand.legs.index(str(box.other)) - len(operand.legs)), str(left), *tail
            )
            lines.bind(step.name, expression, (*without(operand.legs, box.other, source), result_leg))
            return
        weight = lines.value(box.operand("weight"))
        operand_legs = without(operand.legs, source)
        rows = without(operand_legs, *weight.legs)
        groups = tuple(leg for leg in operand_legs if leg in weight.legs and leg in step.legs)
        summed = within(without(operand_legs, *step.legs), weight.legs)
        weight_only = without(weight.legs, box.other, *groups, *summed)
        x = TensorText(expression, operand.legs, operand.batched).arranged((*rows, *groups, *summed, source))
        x_text = x.grouped((*((leg,) for leg in rows), groups + summed, (source,)))
        count = " * ".join(lines.size(leg) for leg in groups) or "1"
        expression = lines.call(
            "convolve",
            x_text,
            weight.grouped((groups + weight_only, summed, (str(box.other),))),
            str(left),
            count,
            *tail,
        )
        kept_legs = groups + weight_only
        if len(kept_legs) != 1:
            sizes = ", ".join(lines.size(leg) for leg in kept_legs)
            expression += f".unflatten(-2, ({sizes}))" if kept_legs else "[..., 0, :]"
        lines.bind(step.name, expression, (*rows, *kept_legs, result_leg))


def convolves(box: Box | None) -> bool:
    """Whether a step is a convolution."""
    return box is not None and box.kind == Conv.key


def hides_rows(graph: Graph, box: Box | None) -> bool:
    """Whether a step is a convolution along the queries whose rows the key mask hides, because they are the keys."""
    if box is None or not convolves(box) or box.leg != graph.query or box.leg not in box.of.legs:
        return False
    return graph.key is None or bool(graph.tied)


def source_of(graph: Graph, box: Box) -> str:
    """The leg of the input positions: the leg of the box or, with a decoding cache, the key leg."""
    return str(box.leg) if box.leg in box.of.legs else str(graph.key)


def result_of(lines: ForwardEmitter, step: Step, box: Box) -> str:
    """The leg of the output positions."""
    return str(box.leg) if box.leg in step.legs else lines.graph.query


def left_of(graph: Graph, box: Box, width: int) -> int:
    """The number of taps at earlier positions: all but one in a causal design, otherwise the smaller half.

    Along the keys of queries x keys, where masks hide later keys, taps are on both sides in a causal design too.
    """
    operand_legs = box.of.legs
    of_pairs = graph.query in operand_legs and graph.key in operand_legs
    return width - 1 if graph.causal and not (of_pairs and box.leg == graph.key) else (width - 1) // 2
