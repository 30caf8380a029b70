"""Emits boxes: the operation of each kind writes its lines, given what masks hide."""

from __future__ import annotations

from tensornet_attn.emit.layout import box_layout
from tensornet_attn.emit.masks import keep_and_bias, row_keep, seen_text
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.graph import Box, Step
from tensornet_attn.graph.hidden import left_out, visible_to
from tensornet_attn.ir.steps import without
from tensornet_attn.ops import OPS
from tensornet_attn.ops.conv import hides_rows


def emit_box(writer: Writer, step: Step) -> None:
    """Emits a dense box."""
    box = step.box
    assert box is not None
    if box.seen:
        _hidden(writer, step, box)
    elif writer.graph.masked(step):
        _masked(writer, step, box)
    elif hides_rows(writer.graph, box):
        operand = writer.value(box.of)
        operand = operand.arranged(box_layout(writer.graph, step, operand.legs))
        OPS[box.kind].emit_masked(writer, step, box, operand, row_keep(writer, operand.legs), "None")
    else:
        OPS[box.kind].emit(writer, step, box)


def _masked(writer: Writer, step: Step, box: Box) -> None:
    """A box over the key leg: its masks and those of the call apply, and name the other legs in written order."""
    use = box.of
    layout = box_layout(writer.graph, step, use.legs)
    operand = writer.value(use).arranged(layout)
    keep, bias = keep_and_bias(writer, step, layout)
    unseen_is_zero = visible_to(writer.graph, step) in writer.zero_outside[step.name]
    if OPS[box.kind].ignores_zeros == "always" and unseen_is_zero and bias == "None":
        keep = "None"  # nothing is added to hidden entries
    if OPS[box.kind].exponential and use.name in left_out(writer.graph):
        keep = writer.call("above_nothing", operand.text, keep)  # a row may have no other entries
    OPS[box.kind].emit_masked(writer, step, box, operand, keep, bias)


def _hidden(writer: Writer, step: Step, box: Box) -> None:
    """A value with the entries hidden that its readers do not see."""
    operand, pair = writer.value(box.of), (writer.graph.query, writer.graph.key)
    if {*pair} <= {*operand.legs}:
        operand = operand.arranged(without(operand.legs, *pair) + tuple(map(str, pair)))
    keep = seen_text(writer, box.seen, operand.legs, step.name in writer.batched)
    OPS[box.kind].emit_masked(writer, step, box, operand, keep, "None")
