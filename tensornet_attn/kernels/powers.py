"""Expands scores that are polynomials of products of queries and keys: each term becomes a product of the two again.

# S = Q K;  A.of = 1 + S + S S / 2     ->     A.of = 1 + Q[d] K[d] + Q[d] K[d] Q[d_] K[d_] / 2

A square of products over a leg of width d becomes a product of d ** 2 features.
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn import limits
from tensornet_attn.graph.attention import MappedScores, Terms, score_of
from tensornet_attn.graph.diagram import on_pairs, producer_of
from tensornet_attn.graph.graph import Contraction, Function, Graph, Leg, Step, Term, Use
from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import with_terms
from tensornet_attn.rewrite.change import (
    inlined,
    plain_number,
    with_legs,
    with_steps,
    without_dead,
)


def written_out(graph: Graph, of: Use) -> Graph:
    """Expands scores into a sum of products in which no factor depends on query and key at once.

    Returns the graph as it is if no factor is such a polynomial or there would be too many terms. A factor with other
    readers stays for them.
    """
    scores = _source(graph, of)
    if scores is None:
        return graph
    terms, done = list(scores.terms), list[Term]()
    read, legs = list[str](), dict[str, Leg]()
    while terms:
        term = terms.pop(0)
        polynomial = next(((use, step) for use in term.factors if (step := _source(graph, use)) is not None), None)
        if polynomial is None:
            done.append(term)
            continue
        use, source = polynomial
        expansion = inlined(with_legs(graph, legs.values()), scores.legs, term, use, source)
        if expansion is None or len(terms) + len(done) + len(expansion[0]) > limits.TERMS:
            return graph
        terms[:0] = expansion[0]
        legs |= {leg.name: leg for leg in expansion[1]}
        read.append(use.name)
    expanded = with_legs(with_steps(graph, {scores.name: [with_terms(scores, done)]}), legs.values())
    return (without_dead(expanded, read) or expanded) if read else graph


def _source(graph: Graph, use: Use) -> Step | None:
    """The step that computes a tensor with query and key legs as a sum of products; None if it is not such a sum."""
    step = producer_of(graph, use)
    if step is None or not on_pairs(graph, use.legs):
        return None
    score = score_of(graph, use)
    if isinstance(score, Terms):
        return step
    power = _power(graph, score.function) if isinstance(score, MappedScores) else 0
    if power < 2 or not isinstance(score, MappedScores) or score.of.legs != step.legs:
        return None
    return replace(step, op=Contraction.of(*power * [score.of]))


def _power(graph: Graph, function: Function | None) -> int:
    """The exponent of a map that is a power: 2 for `square`, p for `power(p)`; 0 for other maps."""
    if function == Function("square"):
        return 2
    if function is None or function.name != "power":
        return 0
    (argument,) = function.arguments
    if isinstance(argument, Function) or not plain_number(graph, argument):
        return 0
    exponent = evaluate(argument, graph.values)
    return int(exponent) if exponent in range(limits.FACTORS + 1) else 0
