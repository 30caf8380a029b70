"""Rotary embedding by the position on a sequence leg."""

from __future__ import annotations

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops.given import Checker, Graph, Lines, Run, Scene, Tensor
from tensornet_attn.ops.model import Arithmetic, BoxModel, LegName, Operand
from tensornet_attn.ops.operation import Operation, aligned, dim_of, without


class Rope(BoxModel):
    """Rotary embedding by the position on a sequence leg."""

    key = "rope"
    numbers = ("base", "fraction", "blocks")
    second = "along"
    rope: LegName
    along: LegName
    base: Arithmetic = 10000
    fraction: Arithmetic = 1
    blocks: Arithmetic = 1
    of: Operand


class RopeOperation(Operation):
    kind = "rope"
    model = Rope
    linear = True
    per_element = 3  # two products and a sum, of the fraction that turns
    between = " along "

    def check(self, box: Checker, name: str, value: int | float, leg: str, along: str) -> None:
        """Blocks, which are read last, must be equal, and of each an even number of entries turns."""
        if name != "blocks":
            return
        given = box.number("fraction")
        fraction, blocks = 1 if given is None else given, value
        if not box.declared[leg].sequence and not box.broken(leg):
            box.written("rope")
            hint = "rope turns by the position on one, e.g. 'rope: n'."
            raise Refusal("box-leg", f"'{leg}' is no query or key leg.", hint)
        width = box.declared[along].size
        if width is None and not box.broken(along):
            box.written("along")
            raise Refusal("box-leg", f"leg '{along}' is sized at run time.", "turn along a feature leg.")
        if not isinstance(blocks, int) or blocks < 1 or (width or blocks) % blocks:
            box.written("blocks")
            message = f"the {width} entries of '{along}' do not make {blocks} equal blocks."
            raise Refusal("number", message, f"'blocks' divides the size of '{along}'.")
        block = (width or 2 * blocks) // blocks
        part = fraction * block
        if not 0 < part <= block or part % 2:
            box.written("fraction" if fraction != 1 else "along" if blocks == 1 else "blocks")
            whole = f"entries of '{along}'" if blocks == 1 else f"entries of a block of '{along}'"
            message = f"{fraction} of the {block} {whole} is {part:g}; they are turned in pairs."
            raise Refusal("number", message, f"an even number of entries, at most {block}.")

    def legs_mixed(self, box: Box) -> set[str | None]:
        return {box.other}

    def legs_whole(self, graph: Graph, box: Box) -> tuple[str | None, ...]:
        """A block knows where its queries stand, and of no other leg."""
        return (box.other,) if box.leg == graph.query else (box.leg, box.other)

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        """(a cos - b sin, b cos + a sin) on the first and second half of the rotated entries, block by block."""
        import torch

        legs = (*without(step.legs, box.leg, box.other), str(box.leg), str(box.other))
        blocks = aligned(run.operand(step), step.legs, legs).chunk(run.number(box.number("blocks")), -1)
        return torch.cat([self.rotated(run, box, block) for block in blocks], -1), legs

    def rotated(self, run: Run, box: Box, x: Tensor) -> Tensor:
        """One block, [batch..., legs..., n, d]."""
        import torch

        width = round(run.number(box.number("fraction")) * x.shape[-1])
        pairs = torch.arange(width // 2, device=run.device, dtype=torch.float64)
        angles = run.positions(str(box.leg))[:, None] * run.number(box.number("base")) ** (-2 * pairs / width)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # n pairs
        a, b, rest = x.split([width // 2, width // 2, x.shape[-1] - 2 * (width // 2)], -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

    def operations(self, scene: Scene, step: Step, box: Box) -> int:
        return int(super().operations(scene, step, box) * scene.number(box.number("fraction")))

    def emit(self, lines: Lines, step: Step, box: Box) -> None:
        value = lines.value(box.operand("of"))
        blocks, width = lines.number(box.number("blocks")), lines.size(str(box.other))
        text, place, along = value.text, dim_of(value, box.leg), dim_of(value, box.other)
        if blocks != "1":  # one more dim: blocks, before the entries of a block
            text, width = f"{value.text}.unflatten({along}, ({blocks}, -1))", f"({width} // {blocks})"
            place -= place < along
        if lines.number(box.number("fraction")) not in ("1", "1.0"):
            width = f"round({lines.factor(box.number('fraction'))} * {width})"
        positions, base = lines.positions(str(box.leg)), lines.number(box.number("base"))
        text = lines.call("rotate", text, positions, str(place), str(along), base, width)
        lines.bind(step.name, text if blocks == "1" else f"{text}.flatten({along - 1}, {along})", value.legs)
