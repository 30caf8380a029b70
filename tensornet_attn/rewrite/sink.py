"""Turns the factor sigmoid(logsumexp - b) of a softmax's rows into a sink b, so that scores are computed once.

With s the scores, exp(s) / (sum of exp(s) + exp(b)) = softmax(s) sigmoid(logsumexp(s) - b).
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.attention import Softmax, weighting_of
from tensornet_attn.graph.model import Box, Function, Graph, Step, Use
from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ops import OPS
from tensornet_attn.rewrite.change import plain_number, read_once, settled, terms_of, times, with_steps, with_terms
from tensornet_attn.rewrite.engine import Rule


def sink_of_gate(graph: Graph, place: str) -> Graph | None:
    """G = sigmoid(logsumexp(S) - b);  y = softmax(S) G V   ->   y = softmax(S, sink b) V"""
    gate, reader = graph.step[place], read_once(graph, place)
    if gate.box is None or gate.box.function != Function("sigmoid") or reader is None or reader.contraction is None:
        return None
    found = _level(graph, gate.box)
    if found is None:
        return None
    level, sink = found
    for number, term in enumerate(reader.contraction.terms):
        own = Use(place, gate.legs)
        for use in term.factors if own in term.factors else ():
            step = graph.step.get(use.name)
            if step is None or step.box is None or not _same(graph, step, level) or read_once(graph, use.name) is None:
                continue
            if use.legs != step.legs or not {*sink.legs} <= {*gate.legs} or {*gate.legs} != {*level.legs}:
                continue
            box = replace(step.box, operands=(*step.box.operands, ("sink", sink)))
            terms = list(reader.contraction.terms)
            terms[number] = replace(term, factors=tuple(other for other in term.factors if other != own))
            new = {step.name: [], place: [replace(step, op=box)], reader.name: [with_terms(reader, terms)]}
            return settled(graph, with_steps(graph, new | {gate.box.uses[0].name: [], level.name: []}))
    return None


def _level(graph: Graph, gate: Box) -> tuple[Step, Use] | None:
    """(logsumexp, b) of a gate sigmoid(logsumexp - b), where b has one number a row. Returns None for other gates."""
    of = gate.operand("of")
    step = graph.step.get(of.name)
    terms = terms_of(step)
    if step is None or len(terms) != 2 or of.legs != step.legs or read_once(graph, of.name) is None:
        return None
    for one, other in (terms, terms[::-1]):
        level = graph.step.get(one.factors[0].name) if len(one.factors) == 1 else None
        numbers = [term.coefficient for term in terms]
        if level is None or level.box is None or not OPS[level.box.kind].log_of_sum or level.box.leg != graph.key:
            continue
        plain = all(plain_number(graph, number) for number in numbers)
        values = [evaluate(number, graph.values) for number in (one.coefficient, other.coefficient)] if plain else []
        alone = one.factors[0].legs == level.legs and read_once(graph, level.name) is not None
        if values == [1, -1] and alone and len(other.factors) == 1 and other.factors[0].name != level.name:
            return level, other.factors[0]
    return None


def _same(graph: Graph, step: Step, level: Step) -> bool:
    """Whether a softmax and a logsumexp have the same operand and the same masks."""
    box, sums, found = step.box, level.box, weighting_of(step, graph.key)
    assert box is not None
    assert sums is not None
    if not isinstance(found, Softmax) or found.sink is not None or found.legs != (sums.leg,):
        return False
    if {*graph.masks(step)} != {*graph.masks(level)}:
        return False
    one, other, scale = box.operand("of"), sums.operand("of"), found.scale
    if one == other:
        return plain_number(graph, scale) and evaluate(scale, graph.values) == 1
    if one.legs != other.legs or any(
        graph.step[use.name].legs != use.legs for use in (one, other) if use.name in graph.step
    ):
        return False
    scaled = [replace(term, coefficient=times(scale, term.coefficient)) for term in terms_of(graph.step.get(one.name))]
    return bool(scaled) and scaled == [*terms_of(graph.step.get(other.name))]


SINK = Rule(
    "sink of a gate",
    "L = logsumexp_m(S); A = softmax_m(S); y = A sigmoid(L - b) V -> A = softmax_m(S, sink b); y = A V",
    sink_of_gate,
    "a box gets a further operand",
)
