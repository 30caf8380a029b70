"""Rules that make any diagram smaller, each at one step: what is there twice, what nothing reads, what is a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tensornet_attn.graph.model import Box, Contraction, Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.rewrite.change import (
    kept,
    legs_in,
    plain_number,
    product,
    read_once,
    settled,
    times,
    with_steps,
    with_terms,
    with_uses,
)
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.rewrite.narrow import without_leg
from tensornet_attn.spec.arithmetic import ONE, Arith, Binary, Name, Negative, Number, evaluate, names

Legs = tuple[str, ...]


def drop_dead(graph: Graph, place: str) -> Graph | None:
    """Z = f(X), read by nothing   ->   gone"""
    if place in graph.readers or kept(graph, place):
        return None
    return settled(graph, with_steps(graph, {place: []}))


def without_dead(graph: Graph, names: Iterable[str]) -> Graph | None:
    """The graph without those steps, and what they alone read, that nothing reads; None where a weight would go too."""
    for name in names:
        gone = graph.step.get(name)
        if gone is None or name in graph.readers or kept(graph, name):
            continue
        without = drop_dead(graph, name)
        made = None if without is None else without_dead(without, (use.name for use in gone.op.uses))
        if made is None:
            return None
        graph = made
    return graph


def drop_alias(graph: Graph, place: str) -> Graph | None:
    """Z[a b] = X[b a]; y = Z[a b] ..   ->   y = X[b a] .."""
    term = product(graph.step[place])
    if term is None or term.coefficient != ONE or len(term.factors) != 1 or kept(graph, place):
        return None
    (use,), legs = term.factors, graph.step[place].legs
    if {*use.legs} != {*legs} or place not in graph.readers:
        return None
    return _read_instead(graph, place, use.name, tuple(legs.index(leg) for leg in use.legs))


def merge_identical(graph: Graph, place: str) -> Graph | None:
    """Z = f(X); W = f(X)   ->   Z = f(X), and who read W reads Z"""
    step = graph.step[place]
    if kept(graph, place) or place not in graph.readers or draws(graph, step):
        return None
    form, legs = _form(graph, step)
    shared = step.op.uses[0].name if step.op.uses else ""
    for other, _ in graph.readers.get(shared, ()):
        if other.name == place:
            return None
        own_form, own = _form(graph, other)
        if own_form == form:
            theirs = dict(zip(own, legs, strict=True))  # leg of the other step: leg of this one
            order = tuple(step.legs.index(theirs[leg]) for leg in other.legs)
            return _read_instead(graph, place, other.name, order)
    return None


def draws(graph: Graph, step: Step) -> bool:
    """Whether a step draws random numbers: two such are never the same."""
    if not isinstance(step.op, Box):
        return False
    numbers = dict(step.op.numbers)
    return "dropout" in numbers and not (
        plain_number(graph, numbers["dropout"]) and evaluate(numbers["dropout"], graph.values) == 0
    )


def _form(graph: Graph, step: Step) -> tuple[object, Legs]:
    """A step without the names of its legs and the order of its factors; its legs in the order of that form.

    Sequence legs keep their names: what stands at which position is no matter of names.
    """
    if isinstance(step.op, Contraction):
        terms = [replace(term, factors=tuple(sorted(term.factors, key=lambda use: use.name))) for term in step.op.terms]
        step = with_terms(step, terms)
    found: dict[str, str] = {}
    for use in step.op.uses:
        for leg in use.legs:
            fixed = graph.leg[leg].size is None or graph.leg[leg].sequence
            found.setdefault(leg, leg if fixed else f"{len(found)}: {graph.leg[leg].size}")
    if not {*step.legs} <= found.keys():
        return step, step.legs
    new = with_uses(step, lambda use: Use(use.name, _renamed(use.legs, found)))
    box = new.op
    if isinstance(box, Box):
        box = replace(box, leg=found.get(str(box.leg), box.leg), other=found.get(str(box.other), box.other))
    order = tuple(leg for leg in found if leg in step.legs)
    return (box, _renamed(order, found)), order


def _renamed(legs: Legs, new: Mapping[str, str]) -> Legs:
    return tuple(new.get(leg, leg) for leg in legs)


def _read_instead(graph: Graph, place: str, name: str, order: tuple[int, ...]) -> Graph | None:
    """The graph in which another step is read, its legs those of this one in this order; this one is gone."""

    def change(use: Use) -> Use:
        return Use(name, tuple(use.legs[i] for i in order)) if use.name == place else use

    readers = {step.name: [with_uses(step, change)] for step, _ in graph.readers[place]}
    if any(seen(graph, graph.step[name]) != seen(graph, new) for name, (new,) in readers.items()):
        return None
    return settled(graph, with_steps(graph, {**readers, place: []}))


def seen(graph: Graph, step: Step) -> Legs:
    """The legs that a run-time mask may name, in the order in which it names them; none where no mask acts."""
    pair = (graph.query, graph.key)
    if not isinstance(step.op, Box) or not graph.masked(step):
        return ()
    return tuple(leg for leg in step.op.operand("of").legs if leg not in pair)


def like_terms(graph: Graph, place: str) -> Graph | None:
    """a X Y + b Y X   ->   (a + b) X Y"""
    op = graph.step[place].op
    for i, one in enumerate(op.terms if isinstance(op, Contraction) else ()):
        for j, other in enumerate(op.terms[:i]):  # type: ignore[union-attr]
            if not one.factors or _alike(graph.step[place], one) != _alike(graph.step[place], other):
                continue
            terms = list(op.terms)  # type: ignore[union-attr]
            terms[j] = replace(other, coefficient=_plus(graph, other.coefficient, one.coefficient))
            del terms[i]
            return with_steps(graph, {place: [with_terms(graph.step[place], terms)]})
    return None


def _alike(step: Step, term: Term) -> object:
    """A product without the order of its factors and the names of the legs it sums."""
    factors = sorted(term.factors, key=lambda use: (use.name, use.legs))
    found: dict[str, str] = {}
    for use in factors:
        for leg in use.legs:
            found.setdefault(leg, leg if leg in step.legs else f"sum {len(found)}")
    return tuple((use.name, _renamed(use.legs, found)) for use in factors)


def _plus(graph: Graph, a: Arith, b: Arith) -> Arith:
    if not any(True for tree in (a, b) for _ in names(tree)):
        total = evaluate(Binary("+", a, b), {})
        return Number(total) if total >= 0 else Negative(Number(-total))
    return Binary("+", a, b)


def fold_constant(graph: Graph, place: str, masked: bool = False) -> Graph | None:
    """ones[h] Q[n h], full(c)[h] Q[n h]   ->   Q[n h], c Q[n h]"""
    step = graph.step[place]
    for i, term in enumerate(step.op.terms if isinstance(step.op, Contraction) else ()):
        for use in term.factors:
            value = _filled(graph.tensor.get(use.name))
            rest = _without(term.factors, use)
            lost = {*use.legs} - legs_in(rest)
            if value is None or not rest or any(graph.leg[leg].kind == "relative" for leg in lost):
                continue
            sizes = [Name(leg) for leg in use.legs if leg in lost and leg not in step.legs]
            coefficient = term.coefficient
            for number in (value, *sizes):
                coefficient = times(coefficient, number)
            terms = list(step.op.terms)  # type: ignore[union-attr]
            terms[i] = Term(coefficient, rest)
            new: Graph | None = with_steps(graph, {place: [with_terms(step, terms)]})
            new = _covered(new, place, masked) if new is not None else None
            if new is not None:
                return settled(graph, new)
    return None


def _without(factors: tuple[Use, ...], one: Use) -> tuple[Use, ...]:
    place = factors.index(one)
    return (*factors[:place], *factors[place + 1 :])


def _filled(tensor: Tensor | None) -> Arith | None:
    """The number that a constant has everywhere."""
    if tensor is None or tensor.role != "constant" or tensor.init is None:
        return None
    if tensor.init.name == "ones":
        return ONE
    value = tensor.init.arguments[0] if tensor.init.name == "full" else None
    return None if isinstance(value, Function) else value


def _covered(graph: Graph, place: str, masked: bool) -> Graph | None:
    """The graph with a step's legs that no factor has left out of its result, for all who read it."""
    step = graph.step[place]
    found = legs_in(step.op.uses)
    for leg in step.legs:
        if leg not in found:
            narrower = without_leg(graph, place, leg, masked)
            if narrower is None:
                return None
            graph = narrower
    return graph


def drop_eye(graph: Graph, place: str) -> Graph | None:
    """eye[a b] X[n b] -> n a   ->   X[n a]"""
    step = graph.step[place]
    for i, term in enumerate(step.op.terms if isinstance(step.op, Contraction) else ()):
        for use in term.factors:
            tensor = graph.tensor.get(use.name)
            if tensor is None or tensor.role != "constant" or tensor.init is None or tensor.init.name != "eye":
                continue
            sizes = {graph.leg[leg].size for leg in use.legs}
            gone = next((leg for leg in reversed(use.legs) if leg not in step.legs), None)
            if gone is None or len(sizes) > 1 or None in sizes:
                continue
            names = {gone: next(leg for leg in use.legs if leg != gone)}
            rest = tuple(Use(own.name, _renamed(own.legs, names)) for own in _without(term.factors, use))
            diagonal = any(len({*own.legs}) < len(own.legs) for own in rest)
            if diagonal or gone not in legs_in(_without(term.factors, use)):
                continue
            terms = list(step.op.terms)  # type: ignore[union-attr]
            terms[i] = replace(term, factors=rest)
            return settled(graph, with_steps(graph, {place: [with_terms(step, terms)]}))
    return None


def fold_scale(graph: Graph, place: str) -> Graph | None:
    """softmax_m of c S   ->   softmax_m with scale c of S"""
    box = graph.step[place].op
    if not isinstance(box, Box) or box.kind != "softmax":
        return None
    scores = graph.step.get(box.operand("of").name)
    term = product(scores)
    if scores is None or term is None or not term.factors or read_once(graph, scores.name) is None:
        return None
    if term.coefficient == ONE or not plain_number(graph, term.coefficient):
        return None
    scale = times(term.coefficient, box.number("scale"))
    numbers = tuple((name, scale if name == "scale" else value) for name, value in box.numbers)
    new = replace(graph.step[place], op=replace(box, numbers=numbers))
    return with_steps(graph, {place: [new], scores.name: [with_terms(scores, [replace(term, coefficient=ONE)])]})


def gather_scale(graph: Graph, place: str) -> Graph | None:
    """Q' = c Q;  softmax_m of Q' K   ->   Q' = Q;  softmax_m of c Q' K"""
    box = graph.step[place].op
    if not isinstance(box, Box) or box.kind != "softmax":
        return None
    scores = graph.step.get(box.operand("of").name)
    term = product(scores)
    if scores is None or term is None or read_once(graph, scores.name) is None:
        return None
    for use in term.factors:
        inner, once = product(graph.step.get(use.name)), read_once(graph, use.name)
        if inner is None or once is None or not inner.factors or inner.coefficient == ONE:
            continue
        whole = replace(term, coefficient=times(inner.coefficient, term.coefficient))
        new = with_terms(graph.step[use.name], [replace(inner, coefficient=ONE)])
        return with_steps(graph, {scores.name: [with_terms(scores, [whole])], use.name: [new]})
    return None


def gather_dropout(graph: Graph, place: str) -> Graph | None:
    """A = softmax_m of S;  B = dropout p of A;  B V   ->   A = softmax_m of S with dropout p;  A V"""
    box = graph.step[place].op
    if not isinstance(box, Box) or box.kind != "dropout" or kept(graph, place) or place not in graph.readers:
        return None
    of = box.operand("of")
    inner = graph.step.get(of.name)
    if inner is None or not isinstance(inner.op, Box) or inner.op.kind != "softmax" or draws(graph, inner):
        return None
    if read_once(graph, of.name) is None or not of.legs == inner.legs == graph.step[place].legs:
        return None
    chance = box.number("dropout")
    numbers = tuple((name, chance if name == "dropout" else value) for name, value in inner.op.numbers)
    made = with_steps(graph, {inner.name: [replace(inner, op=replace(inner.op, numbers=numbers))]})
    return _read_instead(made, place, inner.name, tuple(range(len(of.legs))))


RULES = (
    Rule("dead step", "Z = f(X), read by nothing -> gone", drop_dead),
    Rule("another name", "Z[a b] = X[b a]; y = Z .. -> y = X ..", drop_alias),
    Rule("identical steps", "Z = f(X); W = f(X); y = W .. -> Z = f(X); y = Z ..", merge_identical),
    Rule("like terms", "a X Y + b Y X -> (a + b) X Y", like_terms),
    Rule("identity", "eye[a b] X[n b] -> X[n a]", drop_eye),
    Rule("constant factor", "ones[h] Q[n h] -> Q[n h]; full(c)[h] Q[n h] -> c Q[n h]", fold_constant),
    Rule("scale of a factor", "Q' = c Q; softmax_m of Q' K -> softmax_m of c Q K", gather_scale),
    Rule("scale of the scores", "softmax_m of c S -> softmax_m with scale c of S", fold_scale),
    Rule("dropout of a map", "dropout p of softmax_m S -> softmax_m with dropout p of S", gather_dropout),
)
