"""A leg along which a step is constant, left out of it and of all that is made from it.

# S[h n m] the same for every h;  A = softmax_m S;  y = A[h n m] V[m h e]     ->     A[n m];  y = A[n m] V[m h e]
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Box, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import Name
from tensornet_attn.rewrite.change import ALONG_ONE, draws, kept, legs_in, terms_of, times, with_steps, with_terms


def without_leg(graph: Graph, name: str, leg: str, masked: bool = False) -> Graph | None:
    """The graph in which a step lacks a leg of its result that no factor of it has; None where a reader needs it.

    `masked`: also through boxes that a run-time mask acts in, which then has nothing to say about this leg.
    """
    if kept(graph, name) or graph.leg[leg].size is None:
        return None
    step = graph.step[name]
    place = step.legs.index(leg)
    graph = with_steps(graph, {name: [replace(step, legs=_out(step.legs, place))]})
    for reader in dict.fromkeys(reader for reader, _ in graph.readers.get(name, ())):
        now = _narrowed(graph, graph.step[reader.name], name, place, masked)
        if now is None:
            return None
        graph = now
    return graph


def _out(legs: tuple[str, ...], place: int) -> tuple[str, ...]:
    return (*legs[:place], *legs[place + 1 :])


def _narrowed(graph: Graph, reader: Step, name: str, place: int, masked: bool) -> Graph | None:
    if reader.box is not None:
        return _in_box(graph, reader, reader.box, name, place, masked)
    return _in_sum(graph, reader, name, place, masked) if reader.contraction is not None else None


def _in_sum(graph: Graph, reader: Step, name: str, place: int, masked: bool) -> Graph | None:
    """A product that summed the leg over what is constant along it counts it instead."""
    terms, lost = list[Term](), set[str]()
    for term in terms_of(reader):
        gone = {use.legs[place] for use in term.factors if use.name == name}
        factors = tuple(Use(u.name, _out(u.legs, place)) if u.name == name else u for u in term.factors)
        coefficient = term.coefficient
        for leg in sorted(gone - legs_in(factors)):
            if leg in reader.legs:
                lost.add(leg)
            else:
                coefficient = times(coefficient, Name(leg))
        terms.append(Term(coefficient, factors))
    graph = with_steps(graph, {reader.name: [with_terms(reader, terms)]})
    for leg in sorted(lost - legs_in(use for term in terms for use in term.factors)):
        now = without_leg(graph, reader.name, leg, masked)
        if now is None:
            return None
        graph = now
    return graph


def _in_box(graph: Graph, reader: Step, box: Box, name: str, place: int, masked: bool) -> Graph | None:
    """A box that does the same for every entry of the leg does it once; one that draws does not do the same."""
    if box.kind not in ALONG_ONE:
        return None
    use = box.operand("of")
    leg = use.legs[place]
    seen = graph.masked(reader) and graph.query in use.legs and not masked
    if draws(graph, reader) or seen or leg in (box.leg, box.other) or leg not in reader.legs:
        return None
    new = replace(reader, op=replace(box, operands=(("of", Use(name, _out(use.legs, place))),)))
    return without_leg(with_steps(graph, {reader.name: [new]}), reader.name, leg, masked)
