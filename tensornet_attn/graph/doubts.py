"""Finds scores that are probably mistaken, normalised along another leg than the keys or rotated on one side, and sums
that float16 cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.diagram import operation_of, producer_of
from tensornet_attn.graph.graph import Function, Graph, Step, Use
from tensornet_attn.graph.padding import rotated
from tensornet_attn.graph.recurrence import without_values
from tensornet_attn.graph.signs import growing_sums


def unnormalized_scores(graph: Graph) -> list[str]:
    """Steps that normalise scores of queries and keys along another leg, where none normalises them along the keys.

    A step before or after it may do so, as in slot attention. Steps beside the output are free, such as the shares of
    a mixture that update a state.
    """
    pair = {graph.query, graph.key}
    steps = [step for step in graph.steps if operation_of(step).zero_where_hidden]
    along_keys = [step.name for step in steps if _normalizes(step) and step.box.leg == graph.key]  # type: ignore[union-attr]
    reached, names = behind(graph, [graph.output]), []
    for step in steps:
        box = step.box
        if (
            step.name not in reached
            or box is None
            or not _normalizes(step)
            or box.leg == graph.key
            or not pair <= {*box.of.legs}
        ):
            continue
        before = behind(graph, [step.name])
        if not any(name in before or step.name in behind(graph, [name]) for name in along_keys):
            names.append(step.name)
    return names


def rotated_alone(graph: Graph) -> Iterator[tuple[str, str]]:
    """(rotated operand, other operand) of scores in which only the queries, or only the keys, are rotated."""
    pair = {graph.query, graph.key}
    for step in graph.steps:
        for term in step.terms:
            for use in term.factors:
                leg = _turned_leg(graph, use)
                others = [
                    factor
                    for factor in term.factors
                    if factor != use and leg in factor.legs and pair - {*use.legs} & {*factor.legs}
                ]
                if leg is None or leg in step.legs or not others:
                    continue
                if not any(_turns(graph, name) for factor in others for name in behind(graph, [factor.name])):
                    yield use.name, others[0].name


def doubts_of_float16(graph: Graph, schedule: Graph) -> Iterator[str]:
    """Warns of sums whose products overflow float16, where the reciprocal of a product becomes 0.

    `schedule`: the graph of the plan, which may divide sums over the keys only after it has multiplied them.
    """
    for step, leg in growing_sums(graph):
        what = f"'{step}' sums values that are never negative over '{leg}', and nothing divides the sum"
        why = "products with it overflow float16 after some thousand positions"
        hint = f"use bfloat16, or divide by the length, e.g. by the factor '1 / {leg}' in the sum."
        yield f"{graph.name}: {what}, so {why}; {hint}"
    for divisor in schedule.steps:
        if divisor.box is None or divisor.box.function != Function("reciprocal") or divisor.name in graph.step:
            continue
        of = producer_of(schedule, divisor.box.of)
        if of is not None and _sums(schedule, of):
            name = divisor.name.rpartition(".")[0]
            what = f"'{name}' is normalised after products with it are summed over '{graph.key}'"
            why = "the sums may overflow float16 after some thousand positions"
            yield f"{graph.name}: {what}, so {why}; use bfloat16."


def _sums(schedule: Graph, step: Step) -> bool:
    """Whether a step is a sum over the keys that a kernel computes, or such a sum and a number."""
    if step.contraction is not None:
        return all(use.name in schedule.step and _sums(schedule, schedule.step[use.name]) for use in step.uses)
    return without_values(step)


def _normalizes(step: Step) -> bool:
    """Whether the entries along the leg of the box become weights, which sum to 1."""
    return operation_of(step).divides_by_sum or operation_of(step).exponential > 0


def _turns(graph: Graph, name: str) -> bool:
    """Whether a step transforms the entries of a sequence leg, each by its position, as rotary embedding does."""
    box = graph.step[name].box if name in graph.step else None
    return box is not None and rotated(graph, box)


def _turned_leg(graph: Graph, use: Use) -> str | None:
    """The leg along which an operand is rotated, as the use names it; None if it is not."""
    if not _turns(graph, use.name):
        return None
    step = graph.step[use.name]
    return use.legs[step.legs.index(str(step.box.other))]  # type: ignore[union-attr]
