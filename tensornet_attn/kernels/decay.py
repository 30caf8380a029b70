"""Decaying scores: with a factor exp(a - b), a of queries and b of keys, keys can still be summed first.

# D = exp(a[n] - b[m]);  A.of = Q K D     ->     the sums of each chunk of keys have a scale of their own

Examples of such factors are powers of a rate by distance (retention), and products of gates between key and query.
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.graph import Contraction, Graph, Step, Use
from tensornet_attn.graph.recurrence import EXP, Decay
from tensornet_attn.ir.steps import minus, plus, with_terms
from tensornet_attn.rewrite.change import fresh, kept
from tensornet_attn.rewrite.duplicate import duplicated


def decay_alone(graph: Graph, scores: str) -> Graph:
    """The graph in which nothing else reads the decay factors of these scores, or their exponents."""
    step, pair = graph.step.get(scores), {graph.query, graph.key}
    for factor in sorted({use.name for use in (step.uses if step else ()) if pair <= {*use.legs}}):
        box = graph.step[factor].box if factor in graph.step else None
        if box is not None and box.function == EXP:
            graph, exclusive = _alone(graph, factor, scores)
            graph, _ = _alone(graph, box.of.name, exclusive)
    return graph


def _alone(graph: Graph, name: str, reader: str) -> tuple[Graph, str]:
    """The graph in which a step has only this reader, and the step's name there; copies the step if necessary."""
    if name not in graph.step or ({step.name for step, _ in graph.readers[name]} == {reader} and not kept(graph, name)):
        return graph, name
    copy = fresh(graph, f"{name}.copy")
    return duplicated(graph, name, [{reader}]), copy


def decay_sides(graph: Graph, decay: Decay, name: str, before: list[Step]) -> list[Step]:
    """The steps of a decay from its query and key sides, which are added to `before` under names with prefix `name`."""
    uses: list[Use] = []
    key = str(graph.key)
    for letter, leg, terms in (
        ("a", graph.query, decay.query),
        ("b", key, decay.key),
        ("c", key, decay.at_own_position),
    ):
        if not terms:
            continue
        side_legs = {axis for term in terms for use in term.factors for axis in use.legs}
        legs = (*(axis for axis in decay.box.legs if axis in side_legs and axis not in (graph.query, graph.key)), leg)
        before.append(Step(f"{name}.{letter}", Contraction(terms), legs))
        uses.append(Use(f"{name}.{letter}", legs))
    difference = [plus(uses[0]), minus(uses[1])]
    if decay.diagonal is None:
        return [with_terms(decay.of, difference), decay.box]
    diagonal = replace(decay.diagonal, name=f"{name}.own")
    difference.append(plus(diagonal.use, uses[2]))
    return [diagonal, with_terms(decay.of, difference), decay.box]
