"""The weights with which a design mixes attention maps, and the priors of the components of its keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensornet_attn.analyse.core import values_without_positions
from tensornet_attn.analyse.maps import compiled, sums_of_maps
from tensornet_attn.graph.attention import SoftmaxOfScores, Terms, attentions, score_of
from tensornet_attn.graph.diagram import on_pairs, operation_of, size_of
from tensornet_attn.graph.graph import Graph, Step, Term, Use
from tensornet_attn.graph.pairs import batched
from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.nn.module import CompiledDesign

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weights by head, float64: `values` [legs]."""

    legs: tuple[str, ...]
    values: Tensor

    def __repr__(self) -> str:
        return f"Mixture: {', '.join(f'{leg} {size}' for leg, size in zip(self.legs, self.values.shape, strict=True))}"


@torch.no_grad()
def mixture_weights(module: CompiledDesign) -> dict[str, Mixture]:
    """The weights of blended maps, `near in A`, and the priors of key components, `prior of S`.

    A sum of products of attention maps, such as A of fmm1, has a weight for each of its terms. A prior is the softmax
    over the components of a key of what their scores add for all queries and keys. Weights that depend on the inputs
    are omitted. Raises InputError.

    Source: after Nguyen et al., FMMformer (NeurIPS 2021), eq. 11; Nguyen et al., Transformer-MGK (ICML 2022), table 7.

    >>> import tensornet_attn as ta
    >>> mixture_weights(ta.compile(ta.load("fmm1", legs={"f": 16, "h": 2})))
    {'near in A': Mixture: h 2, 'far1 in A': Mixture: h 2}
    >>> mixture_weights(ta.compile(ta.load("mgk", legs={"f": 16, "h": 2})))["prior of S"].values.tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    graph = compiled(module, "mixture_weights").plan.graph
    names = dict.fromkeys(use.name for _, terms, _ in _sums(graph) for term in terms for use in term.factors)
    values = values_without_positions(module, list(names))
    mixtures = {}
    for name, terms, component in _sums(graph):
        legs = tuple(
            dict.fromkeys(leg for term in terms for use in term.factors for leg in use.legs if leg != component)
        )
        legs = legs if component is None else (*legs, component)
        total = sum((_product(graph, term, values, legs) for term in terms), torch.zeros((), dtype=torch.float64))
        mixtures[name] = Mixture(legs, total if component is None else total.softmax(-1))
    return mixtures


def _sums(graph: Graph) -> Iterator[tuple[str, list[Term], str | None]]:
    """The name of each mixture, its terms without maps, queries and keys, and the leg of the components, if any."""
    for step in sums_of_maps(graph):
        for term in step.terms:
            maps = [use for use in term.factors if {graph.query, graph.key} & {*use.legs}]
            rest = tuple(use for use in term.factors if use not in maps)
            if len(maps) == 1 and rest and _constant(graph, rest):
                yield f"{maps[0].name} in {step.name.partition('.')[0]}", [Term(term.coefficient, rest)], None
    for step, of, component in _components(graph):
        score = score_of(graph, of)
        terms = [
            term for term in _terms(score) if _constant(graph, term.factors) and component in legs_in(term.factors)
        ]
        if terms:
            yield f"prior of {step.name}", terms, component


def _components(graph: Graph) -> Iterator[tuple[Step, Use, str]]:
    """The boxes that add exponentials of scores over a leg besides the keys, with the scores and this leg."""
    for step in graph.steps:
        if step.box is not None and operation_of(step).log_of_sum and on_pairs(graph, step.legs):
            yield step, step.box.of, str(step.box.leg)
    for attention in attentions(graph).values():
        if isinstance(attention.weighting, SoftmaxOfScores):
            yield from ((attention.box, attention.of, leg) for leg in attention.weighting.legs[1:])


def _terms(score: Any) -> Sequence[Term]:
    return score.step.terms if isinstance(score, Terms) else ()


def _constant(graph: Graph, factors: Sequence[Use]) -> bool:
    """Whether factors have no sequence leg and do not depend on the inputs."""
    legs = legs_in(factors)
    return not any(graph.leg[leg].sequence for leg in legs) and not any(use.name in batched(graph) for use in factors)


def _product(graph: Graph, term: Term, values: dict[str, Tensor], legs: tuple[str, ...]) -> Tensor:
    """A product without a sum, [legs]."""
    axis_numbers = {leg: axis for axis, leg in enumerate(legs)}
    ones = torch.ones([size_of(graph, leg) or 1 for leg in legs], dtype=torch.float64)
    arguments: list[Any] = [ones, list(axis_numbers.values())]
    for use in term.factors:
        arguments += [values[use.name].double(), [axis_numbers[leg] for leg in use.legs]]
    return float(evaluate(term.coefficient, graph.values)) * torch.einsum(*arguments, list(axis_numbers.values()))
