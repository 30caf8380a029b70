"""Boxes as Python: the lines of each kind are written by its operation, from values and masks that stand here."""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.emit.contract import scaled
from tensornet_attn.emit.layout import box_layout
from tensornet_attn.emit.masks import keep_and_bias, seen_text
from tensornet_attn.emit.values import ATOM, PRODUCT, Legs, Value
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.hidden import visible_to
from tensornet_attn.graph.model import Box, Graph, Step
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ops import OPS

_BINDS = {"atom": ATOM, "product": PRODUCT}


def emit_box(writer: Writer, step: Step) -> None:
    """The lines of a dense box."""
    box = step.box
    assert box is not None
    op, lines = OPS[box.kind], BoxLines(writer, step, box)
    if not writer.graph.masked(step):
        op.write(lines, box)
        return
    layout = box_layout(writer.graph, step, box.operand("of").legs)  # masks name the other legs in written order
    value = lines.value().arranged(layout)
    keep, bias = keep_and_bias(writer, step, layout)
    if op.ignores_zeros == "always" and visible_to(writer.graph, step) in writer.zero_outside[step.name]:
        keep = "None"  # what is hidden is zero already
    op.write_masked(lines, box, value, keep, bias)


@dataclass
class BoxLines:
    """The writer, as the operation of one box sees it."""

    writer: Writer
    step: Step
    box: Box

    @property
    def graph(self) -> Graph:
        return self.writer.graph

    def value(self, role: str = "of") -> Value:
        return self.writer.value(self.box.operand(role))

    def layout(self, value: Value) -> Value:
        """A value with the box's leg last, and the query leg before it where masks act."""
        return value.arranged(box_layout(self.graph, self.step, value.legs))

    def bind(self, text: str, legs: Legs, binds: int | str = "atom") -> None:
        self.writer.bind(self.step.name, text, legs, _BINDS[binds] if isinstance(binds, str) else binds)

    def is_operand(self, value: Value) -> None:
        """The step is its operand, under the name that this has."""
        self.writer.values[self.step.name] = value

    def call(self, function: str, *arguments: str) -> str:
        return self.writer.call(function, *arguments)

    def argument(self, tree: Arith) -> str:
        return self.writer.number(tree)

    def number(self, name: str) -> str:
        return self.writer.number(self.box.number(name))

    def factor(self, name: str) -> str:
        return self.writer.factor(self.box.number(name))

    def integer(self, name: str) -> str:
        return self.writer.integer(self.box.number(name))

    def size(self, leg: str) -> str:
        return self.writer.size(leg)

    def length(self, leg: str | None) -> str:
        return self.writer.length(leg)

    def positions(self, leg: str) -> str:
        return self.writer.positions(leg)

    def scaled(self, value: Value) -> Value:
        return scaled(self.writer, self.box.number("scale"), value)

    def dropped(self, text: str) -> str:
        number = self.number("dropout")
        return text if number in ("0", "0.0") else f"F.dropout({text}, {number}, self.training)"

    def eps(self, usual: float = 0) -> list[str]:
        """The argument eps, left out where it is what the function has anyway."""
        text = self.number("eps")
        return [] if text in (str(usual), str(float(usual))) else [text]

    def seen(self, layout: Legs, batched: bool) -> str:
        return seen_text(self.writer, self.box.seen, layout, batched)
