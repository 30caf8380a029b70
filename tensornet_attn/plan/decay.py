"""Decay scores: a factor exp(a - b), a of queries and b of keys, lets the keys be summed first all the same.

# D = exp(a[n] - b[m]);  A.of = Q K D     ->     a chunk of keys keeps what it sums under a scale of its own

Such factors are powers of a rate by distance (retention) and products of gates between a key and a query.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tensornet_attn.graph.distance import negated, two_sides
from tensornet_attn.graph.model import Box, Contraction, Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.rewrite.change import fresh, kept, times, with_terms
from tensornet_attn.rewrite.duplicate import duplicated
from tensornet_attn.spec.arithmetic import ONE, Negative, Number

EXP, ONES = Function("exp"), Function("ones")


@dataclass(frozen=True)
class Decay:
    """A factor of scores. `box`: the exp that makes it; `query`, `key`: the terms of a and of b."""

    box: Step
    of: Step
    query: tuple[Term, ...]
    key: tuple[Term, ...]
    places: tuple[Tensor, ...]  # constants that the terms read and the graph lacks


def decay_of(graph: Graph, scores: Step, use: Use, causal: bool) -> Decay | str:
    """What a factor of scores, with legs of queries and keys, is made of; or why it is no decay."""
    box = graph.step.get(use.name)
    if box is None or not isinstance(box.op, Box) or box.op.kind != "map" or box.op.function != EXP:
        return f"'{use.name}' in the scores depends on query and key at once"
    of = graph.step.get(box.op.operand("of").name)
    if of is None or not isinstance(of.op, Contraction) or box.op.operand("of").legs != of.legs or use.legs != box.legs:
        return f"the exponent of '{use.name}' in the scores is no sum of a part of queries and one of keys"
    uses, here = Counter(other.name for _, other in graph.uses()), scores.op.uses.count(use)
    if uses[of.name] > 1 or uses[box.name] > here or kept(graph, of.name) or kept(graph, box.name):
        return f"'{use.name}' in the scores is used elsewhere too"
    return _separated(graph, box, of, causal)


def decay_alone(graph: Graph, scores: str) -> Graph:
    """The graph in which nothing else reads the factors that let these scores decay, nor their exponents."""
    step, pair = graph.step.get(scores), {graph.query, graph.key}
    for factor in sorted({use.name for use in (step.op.uses if step else ()) if pair <= {*use.legs}}):
        box = graph.step.get(factor)
        if box is not None and isinstance(box.op, Box) and box.op.function == EXP:
            graph, own = _alone(graph, factor, scores)
            graph, _ = _alone(graph, box.op.operand("of").name, own)
    return graph


def _alone(graph: Graph, place: str, reader: str) -> tuple[Graph, str]:
    """The graph in which a step has this reader alone, and the step's name there: a copy where it had others."""
    if place not in graph.step or (
        {step.name for step, _ in graph.readers[place]} == {reader} and not kept(graph, place)
    ):
        return graph, place
    name = fresh(graph, f"{place}.copy")
    return duplicated(graph, place, [{reader}]), name


def softmax_of(graph: Graph, box: Step, causal: bool) -> Decay | None:
    """The scores of a softmax that are a sum of numbers of queries and numbers of keys: no product, but distances."""
    assert isinstance(box.op, Box)
    of = graph.step.get(box.op.operand("of").name)
    if of is None or not isinstance(of.op, Contraction) or box.op.operand("of").legs != of.legs:
        return None
    scale = box.op.number("scale")
    scaled = with_terms(of, (replace(term, coefficient=times(scale, term.coefficient)) for term in of.op.terms))
    decay = _separated(graph, box, scaled, causal)
    return None if isinstance(decay, str) else decay


def _separated(graph: Graph, box: Step, of: Step, causal: bool) -> Decay | str:
    """The terms of an exponent by the side that they stand on."""
    query, key, places = list[Term](), list[Term](), dict[str, Tensor]()
    for written in of.op.terms:  # type: ignore[union-attr]
        term = replace(written, factors=tuple(use for use in written.factors if not _ones(graph, use, of)))
        sides = {leg for use in term.factors for leg in use.legs} & {graph.query, graph.key}
        separated = two_sides(graph, term, causal)
        if len(sides) < 2:
            (key if graph.key in sides else query).append(term if graph.key not in sides else negated(term))
        elif separated is not None:
            query.append(separated[0])
            key.append(negated(separated[1]))
            places |= {place.name: place for place in separated[2]}
        else:
            return f"the exponent of '{box.name}' in the scores is no sum of a part of queries and one of keys"
    for leg, terms in ((str(graph.query), query), (str(graph.key), key)):
        if not any(leg in use.legs for term in terms for use in term.factors):
            place = f"{box.name}.{leg}"  # one number for the whole side
            places[place] = Tensor(place, "constant", (leg,), ONES)
            first, *rest = terms or [Term(Number(0), ())]
            terms[:] = [replace(first, factors=(*first.factors, Use(place, (leg,)))), *rest]
    return Decay(box, of, tuple(query), tuple(key), tuple(places.values()))


def _ones(graph: Graph, use: Use, step: Step) -> bool:
    """Whether a factor is 1, there for its legs alone."""
    tensor = graph.tensor.get(use.name)
    return tensor is not None and tensor.role == "constant" and tensor.init == ONES and {*use.legs} <= {*step.legs}


def decay_sides(graph: Graph, decay: Decay, name: str, before: list[Step]) -> list[Step]:
    """The steps that make a decay of its sides, `name` in front, which are put `before`."""
    uses: list[Use] = []
    for letter, leg, terms in (("a", str(graph.query), decay.query), ("b", str(graph.key), decay.key)):
        found = {other for term in terms for use in term.factors for other in use.legs}
        legs = (*(other for other in decay.box.legs if other in found and other not in (graph.query, graph.key)), leg)
        before.append(Step(f"{name}.{letter}", Contraction(terms), legs))
        uses.append(Use(f"{name}.{letter}", legs))
    difference = Contraction((Term(ONE, (uses[0],)), Term(Negative(ONE), (uses[1],))))
    return [replace(decay.of, op=difference), decay.box]
