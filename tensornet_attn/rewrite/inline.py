"""A step written out in a product that reads it: (a X + b Y) Z as a X Z + b Y Z, names of legs kept apart."""

from __future__ import annotations

from tensornet_attn import limits
from tensornet_attn.graph.model import Graph, Leg, Step, Term, Use
from tensornet_attn.ir.arithmetic import Name
from tensornet_attn.rewrite.change import (
    Legs,
    leg_like,
    legs_in,
    settled,
    terms_of,
    times,
    with_legs,
    with_steps,
    with_terms,
)


def spread(graph: Graph, place: str, at: int, use: Use, source: Step) -> Graph | None:
    """The graph with one product of a sum as a sum of products; None where legs would meet that are not one."""
    step = graph.step[place]
    terms = list(terms_of(step))
    found = inlined(graph, step.legs, terms[at], use, source)
    if found is None or any({*use.legs} - legs_in(term.factors) for term in found[0]):
        return None
    terms[at : at + 1] = found[0]
    if len(terms) > limits.TERMS:
        return None
    made = with_steps(graph, {place: [with_terms(step, terms)], source.name: []})
    return settled(graph, with_legs(made, found[1]))


def inlined(
    graph: Graph, legs: Legs, outer: Term, use: Use, source: Step
) -> tuple[tuple[Term, ...], tuple[Leg, ...]] | None:
    """The terms of a product, in a step with these legs, whose factor `use` is read as what makes it, and their legs.

    Legs that the source sums get names that the product has not. None where they cannot, or there are too many factors.
    """
    place, new, terms = outer.factors.index(use), dict[str, Leg](), list[Term]()
    rest = (*outer.factors[:place], *outer.factors[place + 1 :])
    taken = {*legs, *legs_in(outer.factors), *source.legs}
    for term in terms_of(source):
        names = dict(zip(source.legs, use.legs, strict=True))
        for leg in sorted(legs_in(term.factors) - names.keys()):
            own = graph.leg[leg]
            if own.size is None or own.sequence:
                if leg in taken:
                    return None
                names[leg] = leg
                continue
            like = leg_like(with_legs(graph, new.values()), leg, own.size, own.kind, taken | {*names.values()})
            new[like.name], names[leg] = like, like.name
        inner = tuple(Use(one.name, tuple(names[leg] for leg in one.legs)) for one in term.factors)
        if len(rest) + len(inner) > limits.FACTORS:
            return None
        coefficient = times(outer.coefficient, term.coefficient)
        for leg in sorted({*use.legs} - {*legs} - legs_in((*inner, *rest))):  # summed over what is the same along it
            coefficient = times(coefficient, Name(leg))
        terms.append(Term(coefficient, (*inner, *rest)))
    return tuple(terms), tuple(new.values())
