"""Writes the distance of query and key, in a sum of products, as the query's position minus the key's position."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.diagram import producer_of
from tensornet_attn.graph.graph import Function, Graph, Tensor, Term, Use
from tensornet_attn.ir.arithmetic import Negative

ABSOLUTE, DISTANCE, POSITION = Function("abs"), Function("distance"), Function("position")


def gap_of(graph: Graph, use: Use, causal: bool) -> str | None:
    """The constant of a use that is the distance, or its absolute value if causal. Returns None for other uses."""
    step = producer_of(graph, use)
    if causal and step is not None and step.box is not None and step.box.function == ABSOLUTE:
        inner = step.box.of
        return gap_of(graph, inner, False) if inner.legs == use.legs else None
    tensor = graph.tensor.get(use.name)
    return use.name if tensor is not None and tensor.init == DISTANCE and use.legs == tensor.legs else None


def two_sides(graph: Graph, term: Term, causal: bool) -> tuple[Term, Term, tuple[Tensor, ...]] | None:
    """Splits a term with the distance into (term with the query's position, minus that with the key's, constants).

    Returns None if the term depends on query and key in another way.
    """
    gaps = [(use, name) for use in term.factors if (name := gap_of(graph, use, causal)) is not None]
    legs = [graph.query, str(graph.key)]
    if len(gaps) != 1 or len([use for use in term.factors if {*legs} & {*use.legs}]) != 1:
        return None
    gap, name = gaps[0]
    positions = tuple(Tensor(f"{name}.{leg}", "constant", (leg,), POSITION) for leg in legs)
    position_uses = [position.use for position in positions]
    query, key = (
        replace(term, factors=tuple(position if use == gap else use for use in term.factors))
        for position in position_uses
    )
    return query, negated(key), positions


def with_places(graph: Graph, constants: tuple[Tensor, ...]) -> Graph:
    """The graph with these constants added if it lacks them."""
    return replace(
        graph, tensors=(*graph.tensors, *(constant for constant in constants if constant.name not in graph.tensor))
    )


def negated(term: Term) -> Term:
    coefficient = term.coefficient
    return replace(term, coefficient=coefficient.of if isinstance(coefficient, Negative) else Negative(coefficient))
