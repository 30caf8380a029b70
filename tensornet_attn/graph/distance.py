"""The distance of query and key as a position of the query minus one of the key, in a sum of products."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Function, Graph, Tensor, Term, Use
from tensornet_attn.ir.arithmetic import Negative

ABSOLUTE, DISTANCE, POSITION = Function("abs"), Function("distance"), Function("position")


def gap_of(graph: Graph, use: Use, causal: bool) -> str | None:
    """The name of the constant, where a use is the distance, or where `causal` lets it be no less than 0 its size."""
    step = graph.step.get(use.name)
    if causal and step is not None and step.box is not None and step.box.function == ABSOLUTE:
        inner = step.box.operand("of")
        return gap_of(graph, inner, False) if inner.legs == use.legs else None
    tensor = graph.tensor.get(use.name)
    return use.name if tensor is not None and tensor.init == DISTANCE and use.legs == tensor.legs else None


def two_sides(graph: Graph, term: Term, causal: bool) -> tuple[Term, Term, tuple[Tensor, ...]] | None:
    """A term that depends on query and key by their distance alone: with the query's position, minus with the key's.

    Third, the constants that they read; None for any other term.
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
    """The graph with constants that it may lack."""
    return replace(graph, tensors=(*graph.tensors, *(one for one in places if one.name not in graph.tensor)))


def negated(term: Term) -> Term:
    """Minus the term."""
    own = term.coefficient
    return replace(term, coefficient=own.of if isinstance(own, Negative) else Negative(own))
