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
from tensornet_attn.rewrite.apart import STATE_APART
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
    """Fused attention where it may be, what a state needs of its scores made apart where that lets it be."""
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
            against = too_dear(fused, made, box.name, sizes, device)
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


def too_dear(plain: Graph, made: Graph, place: str, sizes: Mapping[str, int], device: Device) -> list[str]:
    """Why the fused form of rewritten scores does not pay, with the figures; empty where it does.

    Forward and backward of one query and key: the fused call computes every head's scores of the full width, twice in
    the backward; the dense way mixes heads on the scores, and moves each of them through memory `PASSES` times. Queries
    that the rewriting makes, and keys or values that are spread over heads they lack, go through memory, too; the other
    sequence shares what that costs.
    """
    box = made.step[place]
    found = _match(made, box)
    assert isinstance(found, Pattern)
    heads = {leg for leg in box.legs if leg not in (made.query, made.key)}
    width = _numbers(made, sizes, {*found.query.legs} - {*found.scores.legs})
    value = max(width, 8)
    fused = _numbers(made, sizes, heads) * 2 * (3.5 * width + 3.5 * min(value, width))
    moved = 4 * device.rate / (device.bandwidth or device.rate)
    pair = _pair_macs(plain, plain.step[place].op.operand("of").name, sizes, device)  # type: ignore[union-attr]
    dense = 3 * 2 * pair + _numbers(made, sizes, heads) * PASSES * moved
    new = 0.0  # numbers of a position that go through memory, times how often
    if {*found.query.legs} & heads and found.query.name not in plain.step:
        new += QUERY_PASSES * _numbers(made, sizes, {*found.query.legs} - {made.query})
    shared = (heads - {box.op.other}) & {*found.key.legs, *found.value.legs}  # type: ignore[union-attr]
    if any(shared & {*use.legs} not in (set(), shared) for use in (found.key, found.value)):
        new += SPREAD_PASSES * width * _numbers(made, sizes, shared)
    if not new and _numbers(made, sizes, heads) * width <= WIDER * pair:
        return []  # as scores of one product, which are not asked for a price
    fused += new * moved / max(1, sizes[str(made.key)])
    if fused <= dense:
        return []
    return [f"its scores rewritten as one product of width {width} would cost {fused / dense:.2f} times as much"]


def _pair_macs(graph: Graph, name: str, sizes: Mapping[str, int], device: Device) -> float:
    """Multiply-adds of the scores as they stand, in the best order, of one query and one key."""
    scores, pair = graph.step[name], {graph.query, graph.key}
    before = {use.name for use in scores.op.uses if use.name in graph.step and pair <= {*use.legs}}
    found = sum(_pair_macs(graph, one, sizes, device) for one in sorted(before))
    if not isinstance(scores.op, Contraction):
        return found
    factors = [[use.legs for use in term.factors] for term in scores.op.terms]
    met = {leg for own in factors for legs in own for leg in legs}
    known = {leg: _numbers(graph, sizes, {leg}) for leg in {*met, *scores.legs}}
    flops = sum(order(own, scores.legs, known, device).flops for own in factors if len(own) > 1)
    return found + flops / 2 / (known[str(graph.query)] * known[str(graph.key)])


def _numbers(graph: Graph, sizes: Mapping[str, int], legs: Iterable[str | None]) -> int:
    return prod(sizes.get(leg) or graph.leg[leg].size or 1 for leg in legs if leg)


PASSES = 12  # of a score through memory, forward and backward, when softmax and its gradient are computed densely
WIDER = 1.25  # times: no more than what the scores as they stand multiply
QUERY_PASSES = 2.5  # of a number of a query that is made for every head
SPREAD_PASSES = 14  # of a number of a key that is repeated for heads it lacks, and of the value as wide as it


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
    kept = {graph.output, *(step for _, step in graph.updates)}
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
