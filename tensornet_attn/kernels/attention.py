"""Softmax attention as one fused operation: the boxes that allow it, the reasons against others, the lowering.

# A.of = Q K;  A = softmax over m of A.of;  y = A V Wo     ->     A.o = attention(Q, K, V);  y = A.o Wo
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

from tensornet_attn.cost.figures import duration
from tensornet_attn.emit.layout import columns, split
from tensornet_attn.emit.masks import attention_keep
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import Softmax, attentions
from tensornet_attn.graph.model import Function, FusedAttention, Graph, Step
from tensornet_attn.graph.visibility import causal_up_to
from tensornet_attn.ir.values import Legs, Value
from tensornet_attn.kernels.apart import seconds_apart, where_of
from tensornet_attn.kernels.implementation import Context, Cost, Lowered, OfBoxes
from tensornet_attn.rewrite.duplicate import STATE_APART
from tensornet_attn.rewrite.engine import Trace, everywhere, rewritten
from tensornet_attn.rewrite.fused import fuse, operation, softmaxes
from tensornet_attn.rewrite.scores import RULES


@dataclass(frozen=True)
class Scored:
    """A softmax box in its graph, and after the rewriting of its scores that fused attention may need."""

    graph: Graph
    made: Graph
    trace: Trace
    box: str

    @cached_property
    def op(self) -> FusedAttention | str:
        """The fused operation, or why the box cannot be fused."""
        return operation(attentions(self.made)[self.box])


class Fused(OfBoxes[Scored]):
    """Fused attention wherever possible. If this enables it, scores for states and losses are computed separately."""

    name, kind, alone = "fused attention", "attention", True

    def places(self, graph: Graph) -> list[str]:
        return softmaxes(graph)

    def form(self, graph: Graph, place: str) -> Scored | None:
        found = attentions(graph).get(place)
        if found is None or not isinstance(found.weighting, Softmax):
            return None
        made, trace = rewritten(graph, place, RULES)
        return Scored(graph, made, trace, place)

    def unsupported(self, form: Scored, context: Context) -> tuple[str, ...]:
        return (form.op,) if isinstance(form.op, str) else ()

    def cost(self, form: Scored, context: Context) -> Cost | None:
        assert not isinstance(form.op, str)
        width, value = _widths(form.op, form.made, context.sizes)
        return _of_rewritten(form, context) if form.trace or width >= PADDED * value else None

    def judged(self, form: Scored, context: Context) -> tuple[tuple[str, ...], Cost | None]:
        reasons, cost = super().judged(form, context)
        plain = operation(attentions(form.graph)[form.box]) if reasons and form.trace else None
        return tuple(dict.fromkeys((plain, *reasons))) if isinstance(plain, str) else reasons, cost

    def lower(self, form: Scored, context: Context) -> Lowered:
        name = f"{form.box}.o"
        fused = _covering(fuse(form.made, form.box), name, form.graph)
        how = f", after {', '.join(dict.fromkeys(firing.rule.name for firing in form.trace))}" if form.trace else ""
        chosen = {name: f"{self.name}: scaled_dot_product_attention, the scores are never stored{how}"}
        made_before = {step.name for step in fused.steps if step.fused and step.name not in form.graph.step} - {name}
        return Lowered(fused, chosen | dict.fromkeys(made_before, "features side by side"))

    def takes(self, graph: Graph, place: str, context: Context) -> bool:
        return super().takes(graph, place, context) or super().takes(_apart(graph) or graph, place, context)

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        plain, separate = super().lowered(graph, context), _apart(graph)
        other = plain if separate is None else super().lowered(separate, context)
        return other if len(other.chosen) > len(plain.chosen) else plain

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits one fused call."""
        assert step.attention is not None
        op, query, key = step.attention, str(writer.graph.query), str(step.attention.leg)
        q, k, v = (writer.value(use) for use in (op.query, op.key, op.value))
        heads = head_order(op, query)
        contracted = tuple(leg for leg in q.legs if leg in k.legs and leg not in op.scores)
        own = tuple(leg for leg in v.legs if leg not in op.scores)
        shared = tuple(leg for leg in heads if leg in k.legs or leg in v.legs)
        writer.line(
            f"# {op.steps[-1]} and {op.steps[-1]} {op.value.name}: one fused call; the scores are not materialised"
        )
        names = [
            _tensor(writer, "q", q, heads, (query,), contracted),
            _tensor(writer, "k", k, shared, (*op.beside, key), contracted),
            _tensor(writer, "v", v, shared, (key,), own),
        ]
        alike = contracted == own and all({*heads} <= {*value.legs} for value in (q, k, v))
        options = options_of(writer, op, heads)
        text = writer.call(_function(writer, op, alike, options), *names, *options)
        _bind(writer, step, text, (*heads, query, *own), len(heads), len(own))


TIE = 1.1  # within the error of predictions, the fused call is taken, which gains with the length
PADDED = 16  # keys so many times as wide as values: most of the fused call's work is on zeros, so it has a price
FUSED = Fused()


def _apart(graph: Graph) -> Graph | None:
    """The graph in which scores for states and losses are computed separately; None if there are none."""
    separate, trace = everywhere(graph, (STATE_APART,))
    return separate if trace else None


def _covering(fused: Graph, name: str, before: Graph) -> Graph:
    """Adds to the attention all steps of the diagram that it replaces, and whether logarithms are among them."""
    step = fused.step[name]
    assert step.attention is not None
    *_, box = step.attention.steps
    removed = [own.name for own in before.steps if own.name not in fused.step and own.name != box]
    written = before.step[box].box
    logarithms = bool(step.attention.beside) and written is not None and written.other is None
    new = replace(step, op=replace(step.attention, steps=(*removed, box), logarithms=logarithms))
    return replace(fused, steps=tuple(new if own.name == name else own for own in fused.steps))


def _of_rewritten(form: Scored, context: Context) -> Cost:
    """The seconds of rewritten scores in fused attention, and those of the original scores in blocks of queries.

    The original scores mix heads on the scores, and are recomputed; rewritten scores of every head have the full width.
    """
    op = form.op
    assert not isinstance(op, str)
    own, other = seconds_apart(fuse(form.made, form.box), form.graph, context.sizes, context.target)
    width, _ = _widths(op, form.made, context.sizes)
    what = (
        f"its scores as one product of width {width}" if form.trace else f"values padded to the width {width} of keys"
    )
    return Cost(
        own,
        other,
        duration,
        f"with {what}, attention would take",
        TIE,
        "as near as predictions are: it gains with the length",
        where_of(form.graph, context.sizes, context.target),
    )


def _widths(op: FusedAttention, made: Graph, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The widths of a query and of a value; the fused call pads the narrower one with zeros."""
    query, value = ({*use.legs} - {*op.scores} for use in (op.query, op.value))
    width, other = (prod(made.leg[leg].size or sizes[leg] for leg in legs) for legs in (query, value))
    return width, other


CAUSAL = Function("causal")


def _function(writer: Writer, op: FusedAttention, alike: bool, options: list[str]) -> str:
    """The function to call; `alike`: query, key and value have the same heads and one width."""
    if not writer.plain or (alike and all("=" not in option or "dropout=" in option for option in options)):
        return "attend"
    return "attend_joined" if op.logarithms else "attend_heads"


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
    options += ["logarithms=True"] if op.logarithms and not writer.plain else []
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
    if writer.plain:
        return [f"sink={sink}"]
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
