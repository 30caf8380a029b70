"""Emits fused attention: operands with heads first, one call, and the legs of the result."""

from __future__ import annotations

from math import inf

from tensornet_attn.emit.layout import columns, split
from tensornet_attn.emit.masks import attention_keep
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Function, FusedAttention, Step
from tensornet_attn.graph.visibility import causal_up_to
from tensornet_attn.ir.values import Legs, Value

CAUSAL = Function("causal")


def emit_attention(writer: Writer, step: Step) -> None:
    """Emits one fused call."""
    assert step.attention is not None
    op, query, key = step.attention, str(writer.graph.query), str(step.attention.leg)
    q, k, v = (writer.value(use) for use in (op.query, op.key, op.value))
    heads = head_order(op, query)
    contracted = tuple(leg for leg in q.legs if leg in k.legs and leg not in op.scores)
    own = tuple(leg for leg in v.legs if leg not in op.scores)
    shared = tuple(leg for leg in heads if leg in k.legs or leg in v.legs)
    writer.line(f"# {op.steps[-1]} and {op.steps[-1]} {op.value.name}: one fused call; the scores are not materialised")
    names = [
        _tensor(writer, "q", q, heads, (query,), contracted),
        _tensor(writer, "k", k, shared, (*op.beside, key), contracted),
        _tensor(writer, "v", v, shared, (key,), own),
    ]
    text = writer.call("attend", *names, *options_of(writer, op, heads))
    _bind(writer, step, text, (*heads, query, *own), len(heads), len(own))


def head_order(op: FusedAttention, query: str) -> Legs:
    """The heads, those of key or value first, so that consecutive query heads share a key head."""
    heads = tuple(leg for leg in op.scores if leg not in (query, op.leg, *op.beside))
    shared = tuple(leg for leg in heads if leg in op.key.legs or leg in op.value.legs)
    return shared + tuple(leg for leg in heads if leg not in shared)


def masks_of(writer: Writer, op: FusedAttention) -> tuple[Function, ...]:
    """The masks of the box, plus `causal` if the design is causal."""
    return (*op.masks, CAUSAL) if writer.graph.causal and CAUSAL not in op.masks else op.masks


def options_of(writer: Writer, op: FusedAttention, heads: Legs) -> list[str]:
    """The arguments of the call after query, key and value."""
    masks = masks_of(writer, op)
    written = tuple(leg for leg in op.scores if leg not in (writer.graph.query, op.leg, *op.beside))
    longest = causal_up_to(masks, writer.graph.values)
    causal = str(longest == inf)
    if 0 < longest < inf:  # in a short call, the masks hide later keys only
        causal = writer.call("up_to", writer.length(op.leg), str(int(longest)))
    keep = attention_keep(writer, masks, tuple(written.index(leg) for leg in heads), causal)
    dropout = writer.number(op.dropout)
    options = [*keep, writer.scale(op.scale)]
    if dropout not in ("0", "0.0"):
        options.append(f"dropout={dropout} if self.training else 0.0")
    options += [f"causal={causal}"] if causal != "False" else []
    options += [f"keys={' * '.join(map(writer.size, op.beside))}"] if op.beside else []
    options += ["logarithms=True"] if op.logarithms else []
    return [*options, *sink_options(writer, op, heads)]


def sink_options(writer: Writer, op: FusedAttention, heads: Legs) -> list[str]:
    """The arguments for a sink, laid out as [heads, query leg, 1] with ones for missing legs."""
    if op.sink is None:
        return []
    query, value = str(writer.graph.query), writer.value(op.sink)
    own, along = {*heads} & {*value.legs}, (query,) if query in value.legs else ()
    if own in (set(), {*heads}):
        text = value.grouped((heads if own else (), along, ()))
    else:
        text = value.grouped((*((leg,) if leg in own else () for leg in heads), along, ()))
        text = writer.call("over_heads", text, *map(writer.size, heads))
    sink = writer.operand("sink", value, (heads if own else (), along, ()), text)
    writer.functions.add("attention_beside_sink")
    return [f"sink={sink}", "call=attention_beside_sink"]


def over_all_heads(writer: Writer, value: Value, heads: Legs, sequence: Legs, width: Legs) -> str:
    """An operand that has some of the heads, as [heads, sequence, width] of all of them; empty for others."""
    own = {*heads} & {*value.legs}
    if own in (set(), {*heads}):
        return ""
    text = value.grouped((*((leg,) if leg in own else () for leg in heads), sequence, width))
    return writer.call("over_heads", text, *map(writer.size, heads))


def _tensor(writer: Writer, name: str, value: Value, heads: Legs, sequence: Legs, width: Legs) -> str:
    """A line that lays an operand out as [heads, sequence, width]: one head if it has none of them, else all."""
    own, text = {*heads} & {*value.legs}, over_all_heads(writer, value, heads, sequence, width)
    return writer.operand(name, value, (heads if own else (), sequence, width), text)


def _bind(writer: Writer, step: Step, text: str, legs: Legs, heads: int, own: int) -> None:
    """Binds the result; its heads stay flattened until a reader needs them."""
    text += columns([*map(writer.size, legs[heads + 1 :])])
    unpack = split(-2 - own, [*map(writer.size, legs[:heads])])
    text, unpack = (text, unpack) if heads else (text + unpack, "")
    writer.named(step.name, text, legs, packed=max(heads, 1), unpack=unpack)
