"""Softmax attention as one fused operation: which boxes allow it, why others do not, and the graph that has it.

# A.of = Q K;  A = softmax over m of A.of;  y = A V Wo     ->     A.o = attention(Q, K, V);  y = A.o Wo
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.model import Attention, Box, Contraction, Graph, Kernel, Step, Term, Use
from tensornet_attn.plan.lowering import Lowered
from tensornet_attn.plan.order import order
from tensornet_attn.rewrite.duplicate import STATE_APART
from tensornet_attn.rewrite.engine import everywhere, rewritten
from tensornet_attn.rewrite.scores import RULES
from tensornet_attn.spec.arithmetic import ONE, Arith, Binary

FUSED = "fused attention"


@dataclass(frozen=True)
class Pattern:
    """A softmax box with the product that makes its scores and the product that reads it."""

    scores: Step
    box: Step
    reader: Step
    term: int  # of the reader's terms
    query: Use
    key: Use
    value: Use


def lower_attention(graph: Graph, sizes: Mapping[str, int], device: Device) -> Lowered:
    """Fused attention where it may be, what states and losses need of its scores made apart where that lets it be."""
    apart, trace = everywhere(graph, (STATE_APART,))
    plain = _lowered(graph, sizes, device)
    other = _lowered(apart, sizes, device) if trace else plain
    return other if len(other.chosen) > len(plain.chosen) else plain


def _lowered(graph: Graph, sizes: Mapping[str, int], device: Device) -> Lowered:
    """Every softmax box that allows it, after rewriting of its scores if need be, as fused attention."""
    fused, chosen, refused = graph, dict[str, str](), dict[str, tuple[str, ...]]()
    for box in softmax_boxes(graph):
        made, trace = rewritten(fused, box.name, RULES)
        against = reasons_against(made, made.step[box.name])
        if not against and trace:
            against = not_profitable_at_all(fused, made, box.name, sizes, device)
        if against:
            plain = [] if not trace else reasons_against(fused, fused.step[box.name])
            refused[box.name] = tuple(dict.fromkeys([*plain, *against]))
            continue
        before, fused = fused, fuse(made, made.step[box.name])
        name = f"{box.name}.o"
        fused = _covering(fused, name, before)
        how = f", after {', '.join(dict.fromkeys(firing.rule.name for firing in trace))}" if trace else ""
        chosen[name] = f"{FUSED}: scaled_dot_product_attention, the scores are never made{how}"
        chosen |= {
            s.name: "features side by side" for s in fused.steps if isinstance(s.op, Kernel) and s.op.kind == "join"
        }
    return Lowered(fused, chosen, refused)


def _covering(fused: Graph, name: str, before: Graph) -> Graph:
    """The attention tells of every step of the diagram that it does."""
    step = fused.step[name]
    assert isinstance(step.op, Attention)
    gone = [own.name for own in before.steps if own.name not in fused.step and own.name != step.op.steps[-1]]
    new = replace(step, op=replace(step.op, steps=(*gone, step.op.steps[-1])))
    return replace(fused, steps=tuple(new if own.name == name else own for own in fused.steps))


def not_profitable_at_all(plain: Graph, made: Graph, place: str, sizes: Mapping[str, int], device: Device) -> list[str]:
    """Why the fused form of rewritten scores does not pay, with the figures; empty where it does.

    Forward and backward of one query and key, the product with the values included. The fused call computes every
    head's scores of the full width, twice in the backward; the other way mixes heads on the scores, in blocks of queries
    that are computed again, and moves each of them through memory. Queries that the rewriting makes, and keys or values
    that are spread over heads they lack, go through memory, too; the other sequence shares what that costs.
    """
    box = made.step[place]
    found = _match(made, box)
    assert isinstance(found, Pattern)
    heads = {leg for leg in box.legs if leg not in (made.query, made.key)}
    scores = _numbers(made, sizes, heads)
    width = _numbers(made, sizes, {*found.query.legs} - {*found.scores.legs})
    value = _numbers(made, sizes, {*found.value.legs} - {*found.scores.legs})
    moved = 4 * device.rate / (device.bandwidth or device.rate)
    fused = scores * (2 * 3.5 * 2 * max(width, value) + FUSED_PASSES * moved)
    macs, passes = _of_a_pair(plain, plain.step[place].op.operand("of").name, sizes, device)  # type: ignore[union-attr]
    dense = WORK * 3 * 2 * (macs + scores * value) + (passes + scores * PASSES) * moved
    keys = _side(plain, made, made.key, sizes) + SPREAD_PASSES * _spread(made, found, width, sizes)
    queries = _side(plain, made, made.query, sizes)
    fused += moved * (keys / max(1, sizes[str(made.query)]) + queries / max(1, sizes[str(made.key)]))
    if fused <= dense:
        return []
    return [f"its scores rewritten as one product of width {width} would cost {fused / dense:.2f} times as much"]


def _side(plain: Graph, made: Graph, own: str | None, sizes: Mapping[str, int]) -> float:
    """Numbers of a position that the rewriting makes, times how often they go through memory."""
    pair = {made.query, made.key}
    anew = [step for step in made.steps if step.name not in plain.step and {*step.legs} & pair == {own}]
    return NEW_PASSES * sum(_numbers(made, sizes, {*step.legs} - {own}) for step in anew)


def _spread(made: Graph, found: Pattern, width: int, sizes: Mapping[str, int]) -> int:
    """Numbers of a position that repeated keys and values have."""
    pair, uses = {made.query, made.key}, (found.key, found.value)
    heads = {*found.scores.legs} - pair
    shared = heads & {leg for use in uses for leg in use.legs}
    if all(shared & {*use.legs} in (set(), shared) for use in uses):
        return 0
    return len(uses) * width * _numbers(made, sizes, shared)


def _of_a_pair(graph: Graph, name: str, sizes: Mapping[str, int], device: Device) -> tuple[float, float]:
    """What one query and one key take as the scores stand: multiply-adds in the best order, numbers times passes."""
    scores, pair = graph.step[name], {graph.query, graph.key}
    before = {use.name for use in scores.op.uses if use.name in graph.step and pair <= {*use.legs}}
    found = [_of_a_pair(graph, one, sizes, device) for one in sorted(before)]
    macs, passes = sum(own[0] for own in found), sum(own[1] for own in found)
    if not isinstance(scores.op, Contraction):
        read = sum(_numbers(graph, sizes, {*use.legs} - pair) for use in scores.op.uses if pair <= {*use.legs})
        return macs, passes + BOX_PASSES * read
    factors = [[use.legs for use in term.factors] for term in scores.op.terms]
    met = {leg for own in factors for legs in own for leg in legs}
    known = {leg: _numbers(graph, sizes, {leg}) for leg in {*met, *scores.legs}}
    flops = sum(order(own, scores.legs, known, device).flops for own in factors if len(own) > 1)
    more = TERM_PASSES * (len(factors) - 1) + MIX_PASSES * sum(len(own) > 2 for own in factors)
    return (
        macs + flops / 2 / (known[str(graph.query)] * known[str(graph.key)]),
        passes + more * _numbers(graph, sizes, {*scores.legs} - pair),
    )


def _numbers(graph: Graph, sizes: Mapping[str, int], legs: Iterable[str | None]) -> int:
    return prod(sizes.get(leg) or graph.leg[leg].size or 1 for leg in legs if leg)


# How often a number goes through memory, forward and backward, and what work takes, as measured on one core.
FUSED_PASSES = 6  # a score in the fused call
PASSES = 14.5  # a score of a softmax in blocks of queries
TERM_PASSES = 16  # a score of each term beside the first
MIX_PASSES = 4  # a score of a product of more than two factors
BOX_PASSES = 8  # what a box before the softmax reads
WORK = 1.8  # times the FLOPs: computed again, and less at once than in the fused call
NEW_PASSES = 10  # a number of a query or key that the rewriting makes
SPREAD_PASSES = 11  # a number of a key or a value that is repeated for heads that it lacks


def softmax_boxes(graph: Graph) -> list[Step]:
    """The softmax boxes over the key leg."""
    return [
        step for step in graph.steps if isinstance(step.op, Box) and step.op.kind == "softmax" and graph.masked(step)
    ]


def reasons_against(graph: Graph, box: Step) -> list[str]:
    """Why a softmax box is no fused attention; empty where it is."""
    found = _match(graph, box)
    return [found] if isinstance(found, str) else []


def fuse(graph: Graph, box: Step) -> Graph:
    """The graph with the box and its two products replaced by one Attention."""
    found = _match(graph, box)
    if isinstance(found, str):
        raise ValueError(found)
    name = f"{box.name}.o"
    attention = Step(name, _attention(found), _result(found))
    terms = list(found.reader.op.terms)  # type: ignore[union-attr]
    terms[found.term] = _reading(terms[found.term], found, Use(name, attention.legs))
    steps: list[Step] = []
    for step in graph.steps:
        if step.name == found.reader.name:
            steps += [attention, replace(step, op=Contraction(tuple(terms)))]
        elif step.name not in (found.scores.name, box.name):
            steps.append(step)
    return replace(graph, steps=tuple(steps))


def _match(graph: Graph, box: Step) -> Pattern | str:
    """The pattern around a box, or the first reason why there is none."""
    assert isinstance(box.op, Box)
    of = box.op.operand("of")
    scores, readers = graph.step.get(of.name), [(step, use) for step, use in graph.uses() if use.name == box.name]
    uses = Counter(use.name for _, use in graph.uses())
    kept = graph.results
    if scores is None or not isinstance(scores.op, Contraction) or of.legs != scores.legs:
        return f"the scores are {_what(graph, scores)}, not a product of a query and a key tensor"
    if uses[scores.name] > 1 or scores.name in kept or box.name in kept:
        return "the scores or the attention map are used elsewhere too"
    if len(scores.op.terms) > 1 or len(scores.op.terms[0].factors) != 2:
        terms, factors = len(scores.op.terms), len(scores.op.terms[0].factors)
        return (
            f"the scores sum {terms} products"
            if terms > 1
            else f"the scores are a product of {factors} tensors, not two"
        )
    if len(readers) != 1 or not isinstance(readers[0][0].op, Contraction):
        return (
            f"the attention map is used {len(readers)} times"
            if len(readers) != 1
            else "a box stands between map and values"
        )
    sides = _sides(graph, scores)
    return sides if isinstance(sides, str) else _with_value(graph, scores, box, *readers[0], *sides)


def _what(graph: Graph, scores: Step | None) -> str:
    if scores is None:
        return "given"
    return f"a '{scores.op.kind}' box" if isinstance(scores.op, Box) else "transposed"


def _sides(graph: Graph, scores: Step) -> tuple[Use, Use] | str:
    """The factor with the query leg and the one with the key leg."""
    first, second = scores.op.uses
    query, key = (first, second) if graph.query in first.legs else (second, first)
    if graph.query not in query.legs or graph.key in query.legs or graph.key not in key.legs or graph.query in key.legs:
        return "no factor of the scores has the query leg alone and the other the key leg alone"
    if not set(query.legs) & set(key.legs) - set(scores.legs):
        return "no leg is contracted between query and key"
    return query, key


def _with_value(graph: Graph, scores: Step, box: Step, reader: Step, use: Use, query: Use, key: Use) -> Pattern | str:
    assert isinstance(reader.op, Contraction)
    place = next(i for i, term in enumerate(reader.op.terms) if use in term.factors)
    others = [factor for factor in reader.op.terms[place].factors if factor != use]
    values = [factor for factor in others if graph.key in factor.legs]
    if use.legs != box.legs:
        return "the attention map is used under other leg names"
    if graph.key in reader.legs:
        return "the key leg stays beside the attention map"
    if len(values) != 1:
        met = f"{len(values)} tensors" if values else "no values: it is mixed first"
        return f"along the key leg the attention map meets {met}"
    if graph.query in values[0].legs:
        return "the values depend on the query"
    if box.op.other is not None and box.op.other in (*values[0].legs, *query.legs, *reader.legs):  # type: ignore[union-attr]
        return "the values depend on the key's component"
    return Pattern(scores, box, reader, place, query, key, values[0])


def _attention(found: Pattern) -> Attention:
    assert isinstance(found.box.op, Box)
    assert isinstance(found.scores.op, Contraction)
    box, coefficient = found.box.op, found.scores.op.terms[0].coefficient
    scale: Arith = box.number("scale")
    scale = scale if coefficient == ONE else coefficient if scale == ONE else Binary("*", coefficient, scale)
    steps = (found.scores.name, found.box.name)
    return Attention(
        str(box.leg),
        found.query,
        found.key,
        found.value,
        found.box.legs,
        scale,
        box.number("dropout"),
        box.masks,
        steps,
        () if box.other is None else (box.other,),
    )


def _result(found: Pattern) -> tuple[str, ...]:
    """Heads, query leg, then the value's own legs: as the fused operation lays its result out."""
    kept = tuple(leg for leg in found.box.legs if leg not in (found.box.op.leg, found.box.op.other))  # type: ignore[union-attr]
    return kept + tuple(leg for leg in found.value.legs if leg not in found.box.legs)


def _reading(term: Term, found: Pattern, result: Use) -> Term:
    factors = [result if use.name == found.box.name else use for use in term.factors if use != found.value]
    return Term(term.coefficient, tuple(factors))
