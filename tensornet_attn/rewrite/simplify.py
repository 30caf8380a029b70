"""Rules that simplify a diagram at one step: remove duplicates, and fold constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Box, Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.graph.visibility import hidden_areas
from tensornet_attn.ir.arithmetic import ONE, Arith, Name
from tensornet_attn.ir.steps import legs_in, with_terms, within
from tensornet_attn.rewrite.change import draws, kept, read_instead, times, with_steps, with_uses
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.rewrite.pattern import Match, pattern

Legs = tuple[str, ...]


def merge_identical(graph: Graph, step_name: str) -> Graph | None:
    """Z = f(X); W = f(X)   ->   Z = f(X), and readers of W read Z"""
    step = graph.step[step_name]
    if kept(graph, step_name) or step_name not in graph.readers:
        return None
    names = sorted(use.name for use in step.uses)
    for twin, _ in graph.readers.get(step.uses[0].name, ()) if names else ():
        if twin.name == step_name:
            return None
        if sorted([use.name for use in twin.uses]) != names or draws(graph, step):
            continue
        (form, legs), (twin_form, twin_legs) = _form(graph, step), _form(graph, twin)
        if twin_form == form:
            leg_of = dict(zip(twin_legs, legs, strict=True))  # leg of the other step: leg of this one
            order = tuple(step.legs.index(leg_of[leg]) for leg in twin.legs)
            return read_instead(graph, step_name, twin.name, order)
    return None


def drop_masks(graph: Graph, step_name: str) -> Graph | None:
    """A = softmax(S, mask M)   ->   A = softmax(S), if M shows all pairs, as `document` does"""
    step = graph.step[step_name]
    masks = step.box.masks if step.box is not None else ()
    hiding = tuple(mask for mask in masks if hidden_areas((mask,), graph.values))
    if step.box is None or len(hiding) == len(masks):
        return None
    return with_steps(graph, {step_name: [replace(step, op=replace(step.box, masks=hiding))]})


def _form(graph: Graph, step: Step) -> tuple[object, Legs]:
    """(a step without leg names and the order of factors, its legs in the order of this form).

    Sequence legs keep their names, because positions depend on them.
    """
    if step.contraction is not None:
        by_name = (tuple(sorted(term.factors, key=lambda use: use.name)) for term in step.terms)
        terms = zip(step.terms, by_name, strict=True)
        step = with_terms(step, (replace(term, factors=factors) for term, factors in terms))
    leg_names: dict[str, str] = {}
    for use in step.uses:
        for leg in use.legs:
            fixed = size_of(graph, leg) is None or graph.leg[leg].sequence
            leg_names.setdefault(leg, leg if fixed else f"{len(leg_names)}: {size_of(graph, leg)}")
    if not {*step.legs} <= leg_names.keys():
        return step, step.legs
    renamed = with_uses(step, lambda use: Use(use.name, _renamed(use.legs, leg_names)))
    op, box = renamed.op, renamed.box
    if box is not None:
        op = box.renamed(leg_names)
    order = within(leg_names, step.legs)
    return (op, _renamed(order, leg_names)), order


def _renamed(legs: Legs, names: Mapping[str, str]) -> Legs:
    return tuple(names.get(leg, leg) for leg in legs)


def _filled(tensor: Tensor | None) -> Arith | None:
    """The number in all entries of a constant, None if they differ."""
    if tensor is None or tensor.role != "constant" or tensor.init is None:
        return None
    if tensor.init.name == "ones":
        return ONE
    number = tensor.init.arguments[0] if tensor.init.name == "full" else None
    return None if isinstance(number, Function) else number


def same_legs(match: Match) -> Match | None:
    """Z has the legs of X, in any order."""
    return match if match.legs("X") == match.legs("Z") else None


def filled(match: Match) -> Match | None:
    """F has one number in all entries; v is this number, times the sizes of summed legs that only F has, but not keys.

    A key mask decides how many keys are summed.
    """
    graph, use, legs = match.graph, match.first_use("F"), match.steps["Z"].legs
    number, rest = _filled(graph.tensor.get(use.name)), match.uses["R"]
    lost = {*use.legs} - legs_in(rest)
    if number is None or not rest or any(graph.leg[leg].kind == "relative" for leg in lost):
        return None
    if graph.key in lost - {*legs}:
        return None
    return match.but(numbers={"v": (number, *(Name(leg) for leg in use.legs if leg in lost and leg not in legs))})


def identity(match: Match) -> Match | None:
    """I is square with a summed leg; D is R with this leg renamed to the other leg of I."""
    graph, use, legs = match.graph, match.first_use("I"), match.steps["Z"].legs
    tensor, rest = graph.tensor.get(use.name), match.uses["R"]
    if tensor is None or tensor.role != "constant" or tensor.init is None or tensor.init.name != "eye":
        return None
    sizes = {size_of(graph, leg) for leg in use.legs}
    summed_leg = next((leg for leg in reversed(use.legs) if leg not in legs), None)
    if summed_leg is None or len(sizes) > 1 or None in sizes or summed_leg not in legs_in(rest):
        return None
    names = {summed_leg: next(leg for leg in use.legs if leg != summed_leg)}
    renamed = tuple(Use(factor.name, _renamed(factor.legs, names)) for factor in rest)
    return None if any(len({*factor.legs}) < len(factor.legs) for factor in renamed) else match.but(uses={"D": renamed})


def covered(graph: Graph, match: Match) -> Graph | None:
    """The graph without those legs of Z that no factor has. Returns None if a reader needs one of them."""
    step = graph.step[match.steps["Z"].name]
    factor_legs = legs_in(step.uses)
    for leg in step.legs:
        if leg not in factor_legs:
            narrower = _without_leg(graph, step.name, leg)
            if narrower is None:
                return None
            graph = narrower
    return graph


def _without_leg(graph: Graph, name: str, leg: str) -> Graph | None:
    """The graph in which a step lacks a broadcast leg of its result. Returns None if a reader needs the leg.

    Masks of the call, which act in boxes, can then not have this leg.

    # S[h n m] the same for every h;  A = softmax_m S;  y = A[h n m] V[m h e]     ->     A[n m];  y = A[n m] V[m h e]
    """
    if kept(graph, name) or size_of(graph, leg) is None:
        return None
    step = graph.step[name]
    axis = step.legs.index(leg)
    graph = with_steps(graph, {name: [replace(step, legs=_out(step.legs, axis))]})
    for reader in dict.fromkeys(reader for reader, _ in graph.readers.get(name, ())):
        latest, narrower = graph.step[reader.name], None
        if latest.box is not None:
            narrower = _in_box(graph, latest, latest.box, name, axis)
        elif latest.contraction is not None:
            narrower = _in_sum(graph, latest, name, axis)
        if narrower is None:
            return None
        graph = narrower
    return graph


def _out(legs: tuple[str, ...], axis: int) -> tuple[str, ...]:
    return (*legs[:axis], *legs[axis + 1 :])


def _in_sum(graph: Graph, reader: Step, name: str, axis: int) -> Graph | None:
    """A product that sums the removed leg multiplies by its size instead."""
    terms, lost = list[Term](), set[str]()
    for term in reader.terms:
        removed_legs = {use.legs[axis] for use in term.factors if use.name == name}
        factors = tuple(Use(use.name, _out(use.legs, axis)) if use.name == name else use for use in term.factors)
        coefficient = term.coefficient
        for leg in sorted(removed_legs - legs_in(factors)):
            if leg in reader.legs:
                lost.add(leg)
            else:
                coefficient = times(coefficient, Name(leg))
        terms.append(Term(coefficient, factors))
    graph = with_steps(graph, {reader.name: [with_terms(reader, terms)]})
    for leg in sorted(lost - legs_in(use for term in terms for use in term.factors)):
        narrower = _without_leg(graph, reader.name, leg)
        if narrower is None:
            return None
        graph = narrower
    return graph


def _in_box(graph: Graph, reader: Step, box: Box, name: str, axis: int) -> Graph | None:
    """A box that computes the same for all entries of the leg loses it; a box with random numbers keeps it."""
    if box.joins:
        return None
    use = box.of
    leg = use.legs[axis]
    if draws(graph, reader) or leg in box.acting or leg not in reader.legs:
        return None
    narrowed = replace(reader, op=replace(box, operands=(("of", Use(name, _out(use.legs, axis))),)))
    return _without_leg(with_steps(graph, {reader.name: [narrowed]}), reader.name, leg)


ONE_MAP = pattern("one map for all", "Z = .. + c * F[constant] R.. -> Z = .. + c v * R..", filled, then=covered)
RULES = (
    pattern("another name", "Z = X -> Z is X", same_legs),
    Rule("identical steps", "Z = f(X); W = f(X) -> Z = f(X); W is Z", merge_identical, "structural: two of any steps"),
    Rule("mask of all", "A = f(S, mask M), M hides nothing -> A = f(S)", drop_masks, "structural: masks of any box"),
    pattern("identity", "Z = .. + c * I[constant] R.. -> Z = .. + c * D..", identity),
)
