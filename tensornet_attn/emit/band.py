"""Emits attention within a band: operands with the sequence first and heads next, then one call."""

from __future__ import annotations

from tensornet_attn.cost.band import Reach, band_of
from tensornet_attn.emit.attention import head_order, masks_of, over_all_heads, sink_options
from tensornet_attn.emit.layout import columns, split
from tensornet_attn.emit.masks import sees_text, takes_mask
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import FusedAttention, Step
from tensornet_attn.graph.visibility import interval
from tensornet_attn.ir.values import Legs, Value


def emit_band(writer: Writer, step: Step) -> None:
    """Emits one call."""
    op, query, key = band_of(step).attention, str(writer.graph.query), str(writer.graph.key)
    q, k, v = (writer.value(use) for use in (op.query, op.key, op.value))
    heads = head_order(op, query)
    contracted = tuple(leg for leg in q.legs if leg in k.legs and leg not in op.scores)
    own = tuple(leg for leg in v.legs if leg not in op.scores)
    shared = tuple(leg for leg in heads if leg in k.legs or leg in v.legs)
    writer.line(f"# {op.steps[-1]} and {op.steps[-1]} {op.value.name}: in blocks, only keys near the band")
    names = [
        _tensor(writer, "q", q, heads, (query,), contracted),
        _tensor(writer, "k", k, shared, (key,), contracted),
        _tensor(writer, "v", v, shared, (key,), own),
    ]
    text = writer.call("attend_band", *names, *_options(writer, op, band_of(step).reach, heads))
    text += columns([*map(writer.size, own)]) + split(-1 - len(own), [*map(writer.size, heads)])
    writer.named(step.name, text, (query, *heads, *own))


def _tensor(writer: Writer, name: str, value: Value, heads: Legs, sequence: Legs, width: Legs) -> str:
    """A line that lays an operand out as [sequence, heads, width]: one head if it has none of them, else all."""
    own, text = {*heads} & {*value.legs}, over_all_heads(writer, value, heads, sequence, width)
    text += ".transpose(-3, -2)" if text else ""
    return writer.operand(name, value, (sequence, heads if own else (), width), text)


def _options(writer: Writer, op: FusedAttention, reach: Reach, heads: Legs) -> list[str]:
    """The arguments of the call after query, key and value."""
    mask = "mask" if takes_mask(writer.graph) else "None"
    if mask == "mask" and len(heads) > 1:
        written = tuple(leg for leg in op.scores if leg not in (writer.graph.query, op.leg))
        order = ", ".join(str(written.index(leg)) for leg in heads)
        mask = writer.call("heads_together", mask, writer.batch_dims, f"({order})")
    options = [str(reach.left), str(reach.right), str(reach.block), mask, "key_mask", writer.batch_dims]
    options += [writer.scale(op.scale)]
    dropout = writer.number(op.dropout)
    options += [] if dropout in ("0", "0.0") else [f"dropout={dropout} if self.training else 0.0"]
    options += ["tied=True"] if writer.graph.tied else []
    masks = masks_of(writer, op)
    if not interval(masks, writer.graph.values):
        options += [f"sees={sees_text(writer, masks)}", *([f"prefix={reach.prefix}"] if reach.prefix else [])]
    return [*options, *sink_options(writer, op, heads)]
