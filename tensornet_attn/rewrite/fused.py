"""Softmax attention as one fused operation: the boxes that allow it, the reasons against others."""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.graph.attention import Attention, MapReader, SoftmaxOfScores, attentions
from tensornet_attn.graph.graph import Contraction, Function, Graph, Kernel, Step, Use
from tensornet_attn.ir.arithmetic import Arith, times
from tensornet_attn.ir.steps import without
from tensornet_attn.rewrite.change import leaf, with_steps


@dataclass(frozen=True)
class FusedAttention:
    """The form of a kernel of softmax attention, which never stores the scores in memory.

    softmax over `leg` of scale * (query . key), times value, summed over `leg`. Legs that query and key share and the
    scores lack are summed inside. `steps` names the steps of the diagram that it replaces. The softmax also runs over
    the legs `beside`, which the key has and the value lacks: several keys of one position. `logarithms`: a softmax of
    their logsumexp is written, to which float masks are added. `sink` is a further score without a value.
    """

    leg: str
    query: Use
    key: Use
    value: Use
    scores: tuple[str, ...]  # legs of the softmax box, in the order written
    scale: Arith
    dropout: Arith
    masks: tuple[Function, ...]
    steps: tuple[str, ...]
    beside: tuple[str, ...] = ()
    sink: Use | None = None
    logarithms: bool = False

    @property
    def uses(self) -> tuple[Use, ...]:
        return (self.query, self.key, self.value, *([self.sink] if self.sink else []))


def softmaxes(graph: Graph) -> list[str]:
    """The names of the softmax boxes over the key leg."""
    return [name for name, attention in attentions(graph).items() if isinstance(attention.weighting, SoftmaxOfScores)]


def operation(attention: Attention) -> FusedAttention | str:
    """The fused operation for a softmax, its scores and its reader, or the first reason why it cannot be fused."""
    if not attention.terms:
        return f"the scores are {attention.origin}, not a product of a query and a key tensor"
    if attention.shared:
        return "the scores or the attention map are also used elsewhere"
    term, reader = attention.terms[0], attention.reader("no values: it is mixed first")
    if len(attention.terms) > 1:
        return f"the scores sum {len(attention.terms)} products"
    if len(term.factors) != 2:
        return f"the scores are a product of {len(term.factors)} tensors, not two"
    if attention.unread:
        return attention.unread
    if not len(term.query) == len(term.key) == 1:
        return "the scores are not a product of a query tensor and a key tensor"
    (query,), (key,) = term.query, term.key
    if not {*query.legs} & {*key.legs} - {*attention.of.legs}:
        return "no leg is contracted between query and key"
    if isinstance(reader, str):
        return reader
    assert isinstance(attention.weighting, SoftmaxOfScores)
    (value,), (leg, *beside) = reader.values, attention.weighting.legs
    if {*beside} & {*value.legs, *query.legs, *reader.step.legs}:
        return "the values depend on the key's component"
    scale, dropout = times(term.coefficient, attention.weighting.scale), attention.weighting.dropout
    legs, steps, sink = attention.box.legs, (attention.of.name, attention.box.name), attention.weighting.sink
    return FusedAttention(leg, query, key, value, legs, scale, dropout, attention.written, steps, tuple(beside), sink)


def fuse(graph: Graph, box: str) -> Graph:
    """The graph with the box and its two products fused into one operation. Raises ValueError if that is impossible."""
    attention = attentions(graph)[box]
    op = operation(attention)
    if isinstance(op, str):
        raise ValueError(op)
    return placed(attention, op, "attention", op)


def placed(attention: Attention, op: FusedAttention, kind: str, form: object) -> Graph:
    """The graph with one kernel in place of a box, its scores and its product with the values."""
    reader, name = attention.reader(), f"{attention.box.name}.o"
    assert isinstance(reader, MapReader)
    heads_and_query = (leg for leg in op.scores if leg not in (op.leg, *op.beside))
    legs = (*heads_and_query, *without(op.value.legs, *op.scores))
    product = Contraction.of(attention.box.use, op.value)
    body = (attention.graph.step[attention.of.name], attention.box, Step(name, product, legs))
    uses = dict.fromkeys(leaf(attention.graph, use) for use in op.uses)
    steps = [Step(name, Kernel(kind, tuple(uses), body, form), legs), reader.reading(Use(name, legs))]
    return with_steps(attention.graph, {attention.of.name: [], attention.box.name: [], reader.step.name: steps})
