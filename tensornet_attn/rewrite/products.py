"""Other orders of products and sums: each is a choice, better at some sizes and worse at others.

The planner prices what it takes of these: its order search, distribution, fused attention. Here they stand alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tensornet_attn import limits
from tensornet_attn.graph.model import Box, Contraction, Graph, Leg, Step, Term, Use
from tensornet_attn.graph.pairs import batched
from tensornet_attn.rewrite.change import (
    Legs,
    fresh,
    leg_like,
    legs_in,
    product,
    read_once,
    settled,
    times,
    with_legs,
    with_steps,
    with_terms,
)
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.spec.arithmetic import ONE, Name

ATTENTION_BOXES = ("softmax", "normalize", "keep")


def weights_first(graph: Graph, place: str) -> Graph | None:
    """x[n f] Wc[f c] Wu[c d]   ->   x[n f] W[f d]  with  W = Wc Wu"""
    many = batched(graph)
    for i, term in _terms(graph, place):
        held = [use for use in term.factors if use.name not in many]
        for left, right in ((a, b) for j, b in enumerate(held) for a in held[:j]):
            rest = _rest(term, (left, right))
            needed = legs_in(rest) | {*graph.step[place].legs}
            if rest and ({*left.legs} & {*right.legs}) - needed:
                return apart(graph, place, i, (left, right), rest, f"{place}.w")
    return None


def values_beside(graph: Graph, place: str) -> Graph | None:
    """P[g h] A[g n m] V[m h e]   ->   P[g h] O[g n h e]  with  O = A V: the values of all h side by side"""
    for i, term in _terms(graph, place):
        for use in term.factors:
            source = graph.step.get(use.name)
            if source is None or not _map(graph, source) or graph.query not in use.legs:
                continue
            values = [own for own in term.factors if own is not use and graph.key in own.legs]
            if len(values) != 1 or graph.query in values[0].legs or graph.key in graph.step[place].legs:
                continue
            rest = _rest(term, (use, values[0]))
            heads = {*use.legs} - {*values[0].legs, graph.query, graph.key}
            both = {*use.legs, *values[0].legs}
            if any(heads & {*own.legs} and {*own.legs} - {*use.legs} and {*own.legs} <= both for own in rest):
                return apart(graph, place, i, (use, values[0]), rest, f"{use.name.partition('.')[0]}.o")
    return None


def _map(graph: Graph, step: Step) -> bool:
    return isinstance(step.op, Box) and step.op.kind in ATTENTION_BOXES and graph.masked(step)


def _terms(graph: Graph, place: str) -> Iterator[tuple[int, Term]]:
    """The products of more than two tensors in a step, with their places."""
    return ((i, term) for i, term in _products(graph, place) if len(term.factors) > 2)


def _products(graph: Graph, place: str) -> Iterator[tuple[int, Term]]:
    """The products of more than one tensor in a step, with their places."""
    op = graph.step[place].op
    for i, term in enumerate(op.terms if isinstance(op, Contraction) else ()):
        if len(term.factors) > 1:
            yield i, term


def _rest(term: Term, gone: tuple[Use, ...]) -> tuple[Use, ...]:
    rest = list(term.factors)
    for use in gone:
        rest.remove(use)
    return tuple(rest)


def apart(graph: Graph, place: str, term: int, pair: tuple[Use, ...], rest: tuple[Use, ...], name: str) -> Graph:
    """The graph with two factors of a product multiplied first, in a step of their own."""
    step, name = graph.step[place], fresh(graph, name)
    needed = {*step.legs} | legs_in(rest)
    legs = tuple(leg for leg in dict.fromkeys(leg for use in pair for leg in use.legs) if leg in needed)
    terms = list(step.op.terms)  # type: ignore[union-attr]
    at = min(terms[term].factors.index(use) for use in pair)
    terms[term] = replace(terms[term], factors=(*rest[:at], Use(name, legs), *rest[at:]))
    return with_steps(graph, {place: [Step(name, Contraction((Term(ONE, pair),)), legs), with_terms(step, terms)]})


def mixed_map(graph: Graph, place: str) -> Graph | None:
    """B = P[g h] A[g n m];  B V   ->   P A V"""
    for i, term in _products(graph, place):
        for use in term.factors:
            source = graph.step.get(use.name)
            inner = product(source)
            if source is None or inner is None or graph.key not in source.legs or read_once(graph, use.name) is None:
                continue
            if len(inner.factors) > 1 and any(
                _map(graph, graph.step[u.name]) for u in inner.factors if u.name in graph.step
            ):
                made = spread(graph, place, i, use, source)
                if made is not None:
                    return made
    return None


def distribute(graph: Graph, place: str) -> Graph | None:
    """S = a X + b Y;  S Z   ->   a X Z + b Y Z"""
    for i, term in _products(graph, place):
        for use in term.factors:
            source = graph.step.get(use.name)
            if source is None or not isinstance(source.op, Contraction) or len(source.op.terms) < 2:
                continue
            made = spread(graph, place, i, use, source) if read_once(graph, use.name) is not None else None
            if made is not None:
                return made
    return None


def spread(graph: Graph, place: str, at: int, use: Use, source: Step) -> Graph | None:
    """The graph with one product of a sum as a sum of products; None where legs would meet that are not one."""
    step = graph.step[place]
    terms = list(step.op.terms)  # type: ignore[union-attr]
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
    rest, new, terms = _rest(outer, (use,)), dict[str, Leg](), list[Term]()
    taken = {*legs, *legs_in(outer.factors), *source.legs}
    for term in source.op.terms:  # type: ignore[union-attr]
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


def factor_out(graph: Graph, place: str) -> Graph | None:
    """a X Z + b Y Z   ->   (a X + b Y) Z"""
    step = graph.step[place]
    terms = step.op.terms if isinstance(step.op, Contraction) else ()
    for i, one in enumerate(terms):
        for j, other in enumerate(terms[:i]):
            for shared in one.factors:
                made = _factored(graph, step, (j, i), shared) if shared in other.factors else None
                if made is not None:
                    return made
    return None


def _factored(graph: Graph, step: Step, places: tuple[int, int], shared: Use) -> Graph | None:
    """The graph with two products that share a factor as one product with a sum."""
    terms = list(step.op.terms)  # type: ignore[union-attr]
    rests = [replace(terms[i], factors=_rest(terms[i], (shared,))) for i in places]
    found = legs_in(use for rest in rests for use in rest.factors)
    legs = _in_order((*shared.legs, *step.legs), found)
    name = fresh(graph, f"{step.name}.s")
    if not found or any(_dangling(rest, legs) for rest in rests):
        return None
    terms[places[0]] = Term(ONE, (Use(name, legs), shared))
    del terms[places[1]]
    return with_steps(graph, {step.name: [Step(name, Contraction(tuple(rests)), legs), with_terms(step, terms)]})


def _dangling(term: Term, legs: Legs) -> bool:
    """Whether a single tensor of the product alone has a leg that would be summed."""
    return len(term.factors) == 1 and not {*term.factors[0].legs} <= {*legs}


def _in_order(legs: Iterable[str], found: set[str]) -> Legs:
    return tuple(leg for leg in dict.fromkeys(legs) if leg in found)


WEIGHTS = Rule("weights first", "x[n f] Wc[f c] Wu[c d] -> x[n f] (Wc Wu)[f d]", weights_first)
MIXED = Rule("mixed map into its reader", "B = P[g h] A[g n m]; B V -> P A V", mixed_map)
BESIDE = Rule("values side by side", "P[g h] A[g n m] V[m h e] -> P[g h] (A V)[g n h e]", values_beside)
DISTRIBUTE = Rule("distribution", "(a X + b Y) Z -> a X Z + b Y Z", distribute)
FACTOR = Rule("common factor", "a X Z + b Y Z -> (a X + b Y) Z", factor_out)
