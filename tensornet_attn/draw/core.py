"""The core of an attention design: the tensors that mix query features with key features inside the scores."""

from __future__ import annotations

from tensornet_attn.draw.words import KINDS, look_of
from tensornet_attn.graph.attention import UnnormalizedScores, ahead, attentions, behind
from tensornet_attn.graph.graph import Graph, Term, Use
from tensornet_attn.ir.steps import legs_in

_ROLES = ("weight", "constant", "state")


def core(graph: Graph) -> frozenset[str]:
    """Names of the core tensors, e.g. C in Tuformer's equation 2 and P of FiSHformer; empty for plain dot products.

    A core tensor is a factor of a product inside a softmax or normalize box over keys. The data factors of that product
    have the query and the key leg. The core tensor has no sequence leg and no leg of an input.
    """
    if graph.key is None:
        return frozenset()
    data = ahead(graph.steps, (tensor.name for tensor in graph.of_role("input")))
    normalised = [
        attention for attention in attentions(graph).values() if not isinstance(attention.weighting, UnnormalizedScores)
    ]
    inside = behind(graph, (attention.of.name for attention in normalised))
    sums = [step.contraction for step in graph.steps if step.name in inside and step.contraction is not None]
    return frozenset(
        use.name
        for term in (term for op in sums for term in op.terms)
        if {graph.query, graph.key} <= legs_in(use for use in term.factors if use.name in data)
        for use in term.factors
        if _mixes(graph, use, term)
    )


def core_words(graph: Graph) -> list[str]:
    """The core tensors with their kinds: `C (trainable)`, `C (constant)`."""
    return [f"{name} ({KINDS[look_of(graph.tensor[name])]})" for name in sorted(core(graph))]


def _mixes(graph: Graph, use: Use, term: Term) -> bool:
    inputs = {tensor.name for tensor in graph.of_role("input")}
    if use.name not in graph.tensor or graph.tensor[use.name].role not in _ROLES or not use.legs:
        return False
    return not set(use.legs) & (
        legs_in(factor for factor in term.factors if factor.name in inputs) | {graph.query, graph.key}
    )
