"""Softmax attention as one fused operation: the boxes that allow it, the reasons against others, the lowering.

# A.of = Q K;  A = softmax over m of A.of;  y = A V Wo     ->     A.o = attention(Q, K, V);  y = A.o Wo
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tensornet_attn.graph.attention import Attention, Reader, Softmax, attentions
from tensornet_attn.graph.model import FusedAttention, Graph, Step, Use
from tensornet_attn.ir.arithmetic import times
from tensornet_attn.plan.figures import duration
from tensornet_attn.plan.implementation import Context, Cost, Lowered, OfBoxes
from tensornet_attn.plan.price import seconds_apart, where_of
from tensornet_attn.rewrite.change import with_steps
from tensornet_attn.rewrite.duplicate import STATE_APART
from tensornet_attn.rewrite.engine import Trace, everywhere, rewritten
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

    name, alone = "fused attention", True

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


def softmaxes(graph: Graph) -> list[str]:
    """The names of the softmax boxes over the key leg."""
    return [name for name, found in attentions(graph).items() if isinstance(found.weighting, Softmax)]


def operation(found: Attention) -> FusedAttention | str:
    """The fused operation for a softmax, its scores and its reader, or the first reason why it cannot be fused."""
    if not found.terms:
        return f"the scores are {found.origin}, not a product of a query and a key tensor"
    if found.shared:
        return "the scores or the attention map are also used elsewhere"
    term, reader = found.terms[0], found.reader("no values: it is mixed first")
    if len(found.terms) > 1:
        return f"the scores sum {len(found.terms)} products"
    if len(term.factors) != 2:
        return f"the scores are a product of {len(term.factors)} tensors, not two"
    if found.unread:
        return found.unread
    if not len(term.query) == len(term.key) == 1:
        return "the scores are not a product of a query tensor and a key tensor"
    (query,), (key,) = term.query, term.key
    if not {*query.legs} & {*key.legs} - {*found.of.legs}:
        return "no leg is contracted between query and key"
    if isinstance(reader, str):
        return reader
    assert isinstance(found.weighting, Softmax)
    (value,), (leg, *beside) = reader.values, found.weighting.legs
    if {*beside} & {*value.legs, *query.legs, *reader.step.legs}:
        return "the values depend on the key's component"
    scale, dropout = times(term.coefficient, found.weighting.scale), found.weighting.dropout
    legs, steps, sink = found.box.legs, (found.of.name, found.box.name), found.weighting.sink
    return FusedAttention(leg, query, key, value, legs, scale, dropout, found.written, steps, tuple(beside), sink)


def fuse(graph: Graph, box: str) -> Graph:
    """The graph with the box and its two products fused into one operation. Raises ValueError if that is impossible."""
    found = attentions(graph)[box]
    op = operation(found)
    if isinstance(op, str):
        raise ValueError(op)
    return placed(found, Step(f"{box}.o", op, result_legs(op)))


def placed(found: Attention, step: Step) -> Graph:
    """The graph with a step in place of a box, its scores and its product with the values."""
    reader = found.reader()
    assert isinstance(reader, Reader)
    new = {found.of.name: [], found.box.name: [], reader.step.name: [step, reader.reading(Use(step.name, step.legs))]}
    return with_steps(found.graph, new)


def result_legs(op: FusedAttention) -> tuple[str, ...]:
    """The legs of the fused operation's result in order: heads, query leg, then the value's own legs."""
    kept = tuple(leg for leg in op.scores if leg not in (op.leg, *op.beside))
    return kept + tuple(leg for leg in op.value.legs if leg not in op.scores)
