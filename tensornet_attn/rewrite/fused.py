"""Softmax attention as one fused operation: the boxes that allow it, the reasons against others."""

from __future__ import annotations

from tensornet_attn.graph.attention import Attention, Reader, Softmax, attentions
from tensornet_attn.graph.model import FusedAttention, Graph, Step, Use
from tensornet_attn.ir.arithmetic import times
from tensornet_attn.rewrite.change import with_steps


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
