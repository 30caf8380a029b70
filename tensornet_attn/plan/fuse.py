"""Softmax attention as one fused operation: the boxes that allow it, the reasons against others, the lowering.

# A.of = Q K;  A = softmax over m of A.of;  y = A V Wo     ->     A.o = attention(Q, K, V);  y = A.o Wo
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.sizes import human
from tensornet_attn.graph.attention import Attention, Reader, Softmax, attentions
from tensornet_attn.graph.model import FusedAttention, Graph, Step, Use
from tensornet_attn.ir.arithmetic import times
from tensornet_attn.plan.implementation import Context, Cost, Lowered, OfBoxes
from tensornet_attn.plan.order import order
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


FUSED = Fused()


def _apart(graph: Graph) -> Graph | None:
    """The graph in which scores for states and losses are computed separately; None if there are none."""
    separate, trace = everywhere(graph, (STATE_APART,))
    return separate if trace else None


def _covering(fused: Graph, name: str, before: Graph) -> Graph:
    """Adds to the attention's steps all steps of the diagram that it replaces."""
    step = fused.step[name]
    assert step.attention is not None
    *_, box = step.attention.steps
    removed = [own.name for own in before.steps if own.name not in fused.step and own.name != box]
    new = replace(step, op=replace(step.attention, steps=(*removed, box)))
    return replace(fused, steps=tuple(new if own.name == name else own for own in fused.steps))


def _of_rewritten(form: Scored, context: Context) -> Cost:
    """The cost of rewritten scores in fused attention, and that of the original scores in blocks of queries.

    FLOPs per query-key pair, forward and backward, including the product with the values; memory passes count as FLOPs.
    The fused call computes every head's scores at full width, and again in the backward. Blocks of queries mix heads on
    the scores, are recomputed, and move each score through memory. Queries that the rewriting computes, and keys or
    values that are expanded to heads they lack, are moved too; this cost is divided by the other sequence's length.
    """
    op, plain, made, sizes, device = form.op, form.graph, form.made, context.sizes, context.device
    assert not isinstance(op, str)
    scores = _numbers(made, sizes, {*op.scores} - {made.query, made.key})
    width, value = _widths(op, made, sizes)
    moved = 4 * device.rate / (device.bandwidth or device.rate)
    fused = scores * (2 * 3.5 * 2 * max(width, value) + FUSED_PASSES * moved)
    macs, passes = _of_a_pair(plain, attentions(plain)[form.box].of.name, sizes, device)
    dense = WORK * 3 * 2 * (macs + scores * value) + (passes + scores * PASSES) * moved
    keys = _side(plain, made, made.key, sizes) + SPREAD_PASSES * _spread(made, op, width, sizes)
    queries = _side(plain, made, made.query, sizes)
    fused += moved * (keys / max(1, sizes[str(made.query)]) + queries / max(1, sizes[str(made.key)]))
    what = (
        f"its scores as one product of width {width}" if form.trace else f"values padded to the width {width} of keys"
    )
    but = f"with {what}, a query and a key would take"
    return Cost(fused, dense, lambda flops, digits: f"{human(round(flops), digits)} FLOPs", but)


def _widths(op: FusedAttention, made: Graph, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The widths of a query and of a value; the fused call pads the narrower one with zeros."""
    query, value = ({*use.legs} - {*op.scores} for use in (op.query, op.value))
    return _numbers(made, sizes, query), _numbers(made, sizes, value)


def _side(plain: Graph, made: Graph, own: str | None, sizes: Mapping[str, int]) -> float:
    """Elements per position that the rewriting computes, times their passes through memory."""
    pair = {made.query, made.key}
    anew = [step for step in made.steps if step.name not in plain.step and {*step.legs} & pair == {own}]
    return NEW_PASSES * sum(_numbers(made, sizes, {*step.legs} - {own}) for step in anew)


def _spread(made: Graph, op: FusedAttention, width: int, sizes: Mapping[str, int]) -> int:
    """Elements per position of the expanded keys and values."""
    uses = (op.key, op.value)
    shared = {*op.scores} - {made.query, made.key} & {leg for use in uses for leg in use.legs}
    if all(shared & {*use.legs} in (set(), shared) for use in uses):
        return 0
    return len(uses) * width * _numbers(made, sizes, shared)


def _of_a_pair(graph: Graph, name: str, sizes: Mapping[str, int], device: Device) -> tuple[float, float]:
    """The cost of the original scores per query-key pair: MACs in the best order, and elements times memory passes."""
    scores, pair = graph.step[name], {graph.query, graph.key}
    before = {use.name for use in scores.op.uses if use.name in graph.step and pair <= {*use.legs}}
    found = [_of_a_pair(graph, one, sizes, device) for one in sorted(before)]
    macs, passes = sum(own[0] for own in found), sum(own[1] for own in found)
    if scores.contraction is None:
        read = sum(_numbers(graph, sizes, {*use.legs} - pair) for use in scores.op.uses if pair <= {*use.legs})
        return macs, passes + BOX_PASSES * read
    factors = [[use.legs for use in term.factors] for term in scores.contraction.terms]
    met = {leg for own in factors for legs in own for leg in legs}
    known = {leg: _numbers(graph, sizes, {leg}) for leg in {*met, *scores.legs}}
    flops = sum(order(own, scores.legs, known, device).flops for own in factors if len(own) > 1)
    more = TERM_PASSES * (len(factors) - 1) + MIX_PASSES * sum(len(own) > 2 for own in factors)
    return (
        macs + flops / 2 / (known[str(graph.query)] * known[str(graph.key)]),
        passes + more * _numbers(graph, sizes, {*scores.legs} - pair),
    )


def _numbers(graph: Graph, sizes: Mapping[str, int], legs: Iterable[str | None]) -> int:
    return prod(sizes.get(leg) or graph.leg[leg].size or 1 for leg in legs if leg)


# Passes of an element through memory, forward and backward, and the cost of work, as measured on one core.
PADDED = 16  # keys so many times as wide as values: most of the fused call's work is on zeros, so it has a price
FUSED_PASSES = 6  # a score in the fused call
PASSES = 14.5  # a score of a softmax in blocks of queries
TERM_PASSES = 16  # a score, for each term after the first
MIX_PASSES = 4  # a score of a product of more than two factors
BOX_PASSES = 8  # an operand of a box before the softmax
WORK = 1.8  # FLOPs relative to the fused call's: recomputation, and smaller products
NEW_PASSES = 10  # an element of a query or key that the rewriting computes
SPREAD_PASSES = 11  # an element of a key or value that is expanded to heads it lacks


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
        return "no factor of the scores has the query leg alone and the other the key leg alone"
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
