"""Writes scores of several products and terms of one side as one product of concatenated features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tensornet_attn.graph.diagram import producer_of, size_of
from tensornet_attn.graph.graph import Contraction, Graph, Kernel, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Number
from tensornet_attn.ir.steps import legs_in, within, without
from tensornet_attn.rewrite.change import Legs, fresh, leg_like, read_once, with_steps
from tensornet_attn.rewrite.engine import Rule

Pair = tuple[Term, tuple[Use, Use]]  # a product of a query and a key tensor, and the two tensors


@dataclass(frozen=True)
class Joined:
    """The form of a kernel that concatenates its parts along the last leg of its result."""

    leg: str


def side_by_side(graph: Graph, step_name: str) -> Graph | None:
    """Q[n d] K[m d] + b[m]   ->   [Q, 1][n w] [K, b][m w],  the features concatenated on a leg w of size d + 1

    If b grows with the length, and a term a[n] was kept for this reason:  [1, a, Q][n w] [b, 1, K][m w], because sums
    are computed in this order.
    """
    box, scores = graph.step[step_name].box, _scores(graph, step_name)
    if box is None or scores is None or len(scores.terms) < 2:
        return None
    terms = scores.terms
    joint = {graph.key, box.other} - {None}
    sides = [(term, _sides(graph, scores, term, joint)) for term in terms]
    wide: list[Pair] = [(term, (side[0], side[1])) for term, side in sides if side and side[0] and side[1]]
    alone = [[term for term, side in sides if side is not None and side[i] and not all(side)] for i in (0, 1)]
    if not wide or len(wide) + sum(map(len, alone)) < len(terms):
        return None
    heads = tuple(leg for leg in scores.legs if leg != graph.query and leg not in joint)
    side_legs = [
        legs_in([*(pair[i] for _, pair in wide), *(use for term in side_terms for use in term.factors)])
        for i, side_terms in enumerate(alone)
    ]
    query_legs = (graph.query, *within(heads, side_legs[0]))
    key_legs = tuple(leg for leg in (*scores.legs, *heads) if leg in joint or leg in side_legs[1])
    key_legs = tuple(dict.fromkeys(leg for leg in key_legs if leg != graph.query))
    feature_legs = [within(without(pair[0].legs, *scores.legs), pair[1].legs) for _, pair in wide]
    sizes = [[size_of(graph, leg) for leg in legs] for legs in feature_legs]
    if any(None in pair_sizes for pair_sizes in sizes) or not all(
        {*pair[0].legs} <= {*query_legs, *legs} and {*pair[1].legs} <= {*key_legs, *legs}
        for (_, pair), legs in zip(wide, feature_legs, strict=True)
    ):
        return None
    width = sum(prod(size or 0 for size in pair_sizes) for pair_sizes in sizes) + sum(map(bool, alone))
    leg = leg_like(graph, "w", width, "size", graph.leg)
    names = [fresh(graph, f"{step_name}.{side}") for side in "qk"]
    joins = list[Step]()
    for i, (name, shared) in enumerate(zip(names, (query_legs, key_legs), strict=True)):
        features, added = _features(name, i, wide, feature_legs, shared), _added(name, i, alone, shared)
        if not any({*shared} <= {*column.legs} for column in (*features, *added)):
            return None  # no column has all shared legs, so that the others cannot be broadcast to them
        columns = [*added, *features] if alone[0] else [*features, *added]
        uses = {use.name: Use(use.name, graph.legs_of(use.name)) for column in columns for use in column.uses}
        op = Kernel("join", tuple(uses.values()), tuple(columns), Joined(leg.name))
        joins.append(Step(name, op, (*shared, leg.name)))
    product = Contraction.of(*(join.use for join in joins))
    return replace(with_steps(graph, {scores.name: [*joins, replace(scores, op=product)]}), legs=(*graph.legs, leg))


def _features(name: str, side: int, wide: Sequence[Pair], feature_legs: Sequence[Legs], shared: Legs) -> list[Step]:
    """One side of each product of a query and a key tensor; the query side has the coefficients."""
    return [
        Step(
            f"{name}.{i}",
            Contraction((Term(ONE if side else term.coefficient, (pair[side],)),)),
            _order(pair[side], shared, legs),
        )
        for i, ((term, pair), legs) in enumerate(zip(wide, feature_legs, strict=True))
    ]


def _added(name: str, side: int, alone: Sequence[Sequence[Term]], shared: Legs) -> list[Step]:
    """The column of the terms of this side only, and the column of ones for the terms of the other side."""
    ones = [Step(f"{name}.one", Contraction((Term(Number(1), ()),)), ())] if alone[1 - side] else []
    legs = tuple(leg for leg in shared if any(leg in use.legs for term in alone[side] for use in term.factors))
    bias = [Step(f"{name}.bias", Contraction(tuple(alone[side])), legs)] if alone[side] else []
    return [*bias, *ones] if side else [*ones, *bias]


def _sides(graph: Graph, scores: Step, term: Term, joint: set[str | None]) -> tuple[Use | None, Use | None] | None:
    """The query-side and the key-side factor of a term; one of them is None if the term has only one side."""
    keys = [use for use in term.factors if joint & set(use.legs)]
    queries = [use for use in term.factors if graph.query in use.legs]
    if bool(keys) != bool(queries):
        alone = (None, keys[0]) if keys else (queries[0], None)
        return alone if legs_in(term.factors) <= {*scores.legs} else None
    if len(keys) != 1 or len(queries) != 1 or queries == keys or len(term.factors) != 2:
        return None
    return queries[0], keys[0]


def _order(use: Use, shared: Legs, features: Legs) -> Legs:
    return (*within(shared, use.legs), *features)


def _scores(graph: Graph, step_name: str) -> Step | None:
    """The sum of products that only the softmax `step_name` reads, under its own leg names."""
    box = graph.step[step_name].box
    if box is None:
        return None
    of = box.of
    scores = producer_of(graph, of)
    unrenamed = scores is not None and scores.contraction is not None and of.legs == scores.legs
    return scores if unrenamed and read_once(graph, of.name) is not None else None


SIDE_BY_SIDE = Rule(
    "features side by side",
    "Q[n d] K[m d] + b[m] -> [Q, 1][n w] [K, b][m w]",
    side_by_side,
    "it joins any number of features on a new leg",
)
