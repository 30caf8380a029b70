"""Writes the distance of query and key, in a sum of products, as the query's position minus the key's position."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Function, Graph, Tensor, Term, Use
from tensornet_attn.ir.arithmetic import Negative

ABSOLUTE, DISTANCE, POSITION = Function("abs"), Function("distance"), Function("position")


def gap_of(graph: Graph, use: Use, causal: bool) -> str | None:
    """The constant of a use that is the distance, or its absolute value if causal. Returns None for other uses."""
    step = graph.step.get(use.name)
    if causal and step is not None and step.box is not None and step.box.function == ABSOLUTE:
        inner = step.box.operand("of")
        return gap_of(graph, inner, False) if inner.legs == use.legs else None
    tensor = graph.tensor.get(use.name)
    return use.name if tensor is not None and tensor.init == DISTANCE and use.legs == tensor.legs else None


def two_sides(graph: Graph, term: Term, causal: bool) -> tuple[Term, Term, tuple[Tensor, ...]] | None:
    """Splits a term with the distance into (term with the query's position, minus that with the key's, constants).

    Returns None if the term depends on query and key in another way.
    """
    found = [(use, name) for use in term.factors if (name := gap_of(graph, use, causal)) is not None]
    legs = [str(graph.query), str(graph.key)]
    if len(found) != 1 or len([use for use in term.factors if {*legs} & {*use.legs}]) != 1:
        return None
    gap, name = found[0]
    places = tuple(Tensor(f"{name}.{leg}", "constant", (leg,), POSITION) for leg in legs)
    uses = [Use(place.name, place.legs) for place in places]
    query, key = (replace(term, factors=tuple(own if use == gap else use for use in term.factors)) for own in uses)
    return query, negated(key), places


def with_places(graph: Graph, places: tuple[Tensor, ...]) -> Graph:
    """The graph with these constants added if it lacks them."""
    return replace(graph, tensors=(*graph.tensors, *(one for one in places if one.name not in graph.tensor)))


def negated(term: Term) -> Term:
    own = term.coefficient
    return replace(term, coefficient=own.of if isinstance(own, Negative) else Negative(own))
