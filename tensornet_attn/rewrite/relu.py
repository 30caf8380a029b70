"""Moves a relu of a weight times data into the factors, which saves one map for each entry of the weight.

For numbers p and s, relu(p s) = relu(p) relu(s) + relu(-p) relu(-s), gradients included.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tensornet_attn.graph.diagram import operation_of, producer_of, size_of
from tensornet_attn.graph.graph import Box, Contraction, Graph, Step, Term, Use
from tensornet_attn.graph.pairs import batched
from tensornet_attn.ir.arithmetic import ONE, evaluate
from tensornet_attn.ir.steps import legs_in, minus, with_terms, within
from tensornet_attn.rewrite.change import (
    Legs,
    fresh,
    plain_number,
    product,
    read_once,
    settled,
    times,
    with_steps,
)
from tensornet_attn.rewrite.engine import Rule


def relu_of_weight(graph: Graph, step_name: str) -> Graph | None:
    """sum over g of relu(P[g k] S[g n])   ->   relu(P)[g k] relu(S)[g n] + relu(-P)[g k] relu(-S)[g n]"""
    box, reader = graph.step[step_name].box, read_once(graph, step_name)
    if box is None or box.function is None or box.function.name != "relu" or reader is None:
        return None
    inner = producer_of(graph, box.of)
    term = product(inner)
    if inner is None or term is None or read_once(graph, inner.name) is None or inner.legs != box.of.legs:
        return None
    if not plain_number(graph, term.coefficient) or evaluate(term.coefficient, graph.values) <= 0:
        return None
    with_batch = batched(graph)
    held = [use for use in term.factors if use.name not in with_batch]
    rest = tuple(use for use in term.factors if use.name in with_batch)
    contraction = _whole(graph, reader, step_name)
    if len(held) != 1 or not rest or contraction is None:
        return None
    (weight,), data_legs = held, within(inner.legs, legs_in(rest))
    spread = [size_of(graph, leg) or 1 for leg in inner.legs if leg not in data_legs]
    if prod(spread) <= 2 or not {*weight.legs} & {*data_legs} - {*contraction.legs}:
        return None
    scores = Step(inner.name, Contraction((replace(term, factors=rest),)), data_legs)
    signed_data, steps = _signed(graph, step_name, Use(inner.name, data_legs), box)
    signed_weights, more = _signed(graph, f"{step_name}.{weight.name}", weight, box)
    terms = _read(graph, contraction, step_name, list(zip(signed_weights, signed_data, strict=True)))
    replacements = {
        inner.name: [scores],
        step_name: [*steps, *more],
        reader.name: [with_terms(reader, terms)],
    }
    return settled(graph, _into_reader(with_steps(graph, replacements), reader.name))


def _into_reader(graph: Graph, name: str) -> Graph:
    """L = P X + N Z; y = W L   ->   y = W P X + W N Z, if W sums a leg of P and of N, so that weights are multiplied"""
    step, reader = graph.step[name], read_once(graph, name)
    if reader is None or reader.contraction is None or sum(use.name == name for use in reader.uses) > 1:
        return graph
    with_batch, terms = batched(graph), list[Term]()
    for term in reader.terms:
        used = next((use for use in term.factors if use.name == name), None)
        if used is None:
            terms.append(term)
            continue
        others = tuple(use for use in term.factors if use is not used)
        leg_names, taken = dict(zip(step.legs, used.legs, strict=True)), {*used.legs, *legs_in(others), *reader.legs}
        summed = {*used.legs} & legs_in(use for use in others if use.name not in with_batch) - {*reader.legs}
        for inner_term in step.terms:
            factors = tuple(use.renamed(leg_names) for use in inner_term.factors)
            weights = legs_in(use for use in factors if use.name not in with_batch)
            if not summed & weights or (legs_in(inner_term.factors) - {*step.legs}) & taken:
                return graph
            terms.append(Term(times(term.coefficient, inner_term.coefficient), (*factors, *others)))
    return with_steps(graph, {name: [], reader.name: [with_terms(reader, terms)]})


def _whole(graph: Graph, reader: Step, step_name: str) -> Step | None:
    """The reader as a contraction, None if it is neither a contraction nor a sum."""
    if reader.contraction is not None:
        return reader if sum(use.name == step_name for use in reader.uses) == 1 else None
    summed = operation_of(reader).is_sum and not graph.masked(reader)
    return with_terms(reader, [Term(ONE, reader.uses)]) if summed else None


def _signed(graph: Graph, name: str, use: Use, box: Box) -> tuple[tuple[Use, Use], list[Step]]:
    """(uses of relu(x) and relu(-x), their steps)."""
    up, opposite, down = (Use(fresh(graph, f"{name}.{suffix}"), use.legs) for suffix in ("up", "minus", "down"))
    negative = Contraction((minus(use),))
    steps = [
        Step(up.name, replace(box, operands=(("of", use),)), use.legs),
        Step(opposite.name, negative, use.legs),
        Step(down.name, replace(box, operands=(("of", opposite),)), use.legs),
    ]
    return (up, down), steps


def _read(graph: Graph, contraction: Step, step_name: str, pairs: list[tuple[Use, Use]]) -> tuple[Term, ...]:
    """The reader's terms; the term with the map is repeated for each pair that replaces the map."""
    names: Legs = graph.step[step_name].legs
    terms: list[Term] = []
    for term in contraction.terms:
        used = next((use for use in term.factors if use.name == step_name), None)
        if used is None:
            terms.append(term)
            continue
        leg_names, others = dict(zip(names, used.legs, strict=True)), [use for use in term.factors if use is not used]
        for pair in pairs:
            renamed = (use.renamed(leg_names) for use in pair)
            terms.append(replace(term, factors=(*renamed, *others)))
    return tuple(terms)


RELU = Rule(
    "relu of a weight",
    "sum_g relu(P[g k] S[g n]) -> relu(P) relu(S) + relu(-P) relu(-S), summed",
    relu_of_weight,
    "its reader is a sum of any kind, which is inlined in its own reader",
)
