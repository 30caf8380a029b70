"""The core of an attention design: the tensors that mix query features with key features inside the scores."""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.draw.words import KINDS, look_of
from tensornet_attn.graph.attention import Masked, attentions, behind
from tensornet_attn.graph.model import Graph, Step, Term, Use

_ROLES = ("weight", "constant", "state")


def core(graph: Graph) -> frozenset[str]:
    """Names of the core tensors: C of Tuformer's equation 2, P of FiSHformer; empty where scores are plain products.

    A core tensor is a factor of a product inside a softmax or normalize box over keys, the data of that product covers
    the query and the key leg, and no leg of the tensor is a sequence leg or joins an input.
    """
    if graph.query is None or graph.key is None:
        return frozenset()
    data = _data(graph)
    return frozenset(
        use.name
        for step in _inside_scores(graph)
        for term in (step.contraction.terms if step.contraction else ())
        if {graph.query, graph.key} <= _legs(use for use in term.factors if use.name in data)
        for use in term.factors
        if _mixes(graph, use, term)
    )


def core_words(graph: Graph) -> list[str]:
    """Each core tensor with what may change it: `C (trainable)`, `C (constant)`."""
    return [f"{name} ({KINDS[look_of(graph.tensor[name])]})" for name in sorted(core(graph))]


def _mixes(graph: Graph, use: Use, term: Term) -> bool:
    if use.name not in graph.tensor or graph.tensor[use.name].role not in _ROLES or not use.legs:
        return False
    features = _legs(other for other in term.factors if _role(graph, other) == "input")
    return not set(use.legs) & (features | {graph.query, graph.key})


def _role(graph: Graph, use: Use) -> str:
    return graph.tensor[use.name].role if use.name in graph.tensor else "step"


def _legs(uses: Iterable[Use]) -> set[str | None]:
    return {leg for use in uses for leg in use.legs}


def _data(graph: Graph) -> set[str]:
    """Inputs, and the steps that some input reaches."""
    names = {tensor.name for tensor in graph.of_role("input")}
    for step in graph.steps:
        if any(use.name in names for use in step.op.uses):
            names.add(step.name)
    return names


def _inside_scores(graph: Graph) -> list[Step]:
    """The steps that the scores of a softmax or normalize box are made from."""
    normalised = [found for found in attentions(graph).values() if not isinstance(found.weighting, Masked)]
    inside = behind(graph, (found.of.name for found in normalised))
    return [step for step in graph.steps if step.name in inside]
