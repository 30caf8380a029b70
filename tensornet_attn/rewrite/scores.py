"""Rewrites that bring the scores of a softmax over keys to one product of a query and a key tensor.

Each leaves the function as it is, and fires only where what it takes apart has no other reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tensornet_attn.graph.distance import POSITION, two_sides, with_places
from tensornet_attn.graph.model import Box, Contraction, Function, Graph, Kernel, Leg, Step, Term, Use
from tensornet_attn.rewrite.change import fresh, plain_number, read_once, settled
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.rewrite.products import apart, spread
from tensornet_attn.rewrite.simplify import without_dead
from tensornet_attn.spec.arithmetic import ONE, Number, evaluate

Legs = tuple[str, ...]
Pair = tuple[Term, tuple[Use, Use]]  # a product of a query and a key tensor, and both


def joint_keys(graph: Graph, place: str) -> Graph | None:
    """softmax over m of logsumexp over r of L, times V   ->   softmax over r and m of L, times V, summed over r"""
    box = graph.step[place]
    if not isinstance(box.op, Box) or box.op.other is not None or not _plain(graph, box.op):
        return None
    inner = graph.step.get(box.op.operand("of").name)
    if inner is None or not isinstance(inner.op, Box) or inner.op.kind != "logsumexp" or inner.op.leg == graph.key:
        return None
    scores, readers = inner.op.operand("of"), [step for step, use in graph.uses() if use.name == place]
    plain = scores.name in graph.step and scores.legs == graph.legs_of(scores.name)
    one = len(readers) == 1 and isinstance(readers[0].op, Contraction)
    if not (plain and one and _only_read_by(graph, inner.name, place) and box.op.operand("of").legs == inner.legs):
        return None
    wide = replace(box, op=replace(box.op, operands=(("of", scores),), other=inner.op.leg), legs=scores.legs)
    reader = _renamed_use(readers[0], box, scores.legs)
    return _with(graph, {place: [wide], inner.name: [], reader.name: [reader]})


def _plain(graph: Graph, box: Box) -> bool:
    """Whether a softmax is of its operand as it is, and each row of it sums to 1: no scale, no dropout."""
    numbers = dict(box.numbers)
    known = all(plain_number(graph, value) for value in numbers.values())
    return known and [evaluate(numbers[key], graph.values) for key in ("scale", "dropout")] == [1, 0]


def _renamed_use(reader: Step, box: Step, legs: Legs) -> Step:
    """The reader of a map that now has one more leg, which it sums."""

    def use(one: Use) -> Use:
        if one.name != box.name:
            return one
        names = dict(zip(box.legs, one.legs, strict=True))
        return Use(one.name, tuple(names.get(leg, leg) for leg in legs))

    terms = tuple(replace(term, factors=tuple(map(use, term.factors))) for term in reader.op.terms)  # type: ignore[union-attr]
    return replace(reader, op=Contraction(terms))


def in_one_sum(graph: Graph, place: str) -> Graph | None:
    """S = Q K; R = u K; softmax over m of (S + 2 R)   ->   softmax over m of (Q K + 2 u K)"""
    scores = _scores(graph, place)
    for i, term in enumerate(scores.op.terms if scores else ()):  # type: ignore[union-attr]
        for use in term.factors:
            source = graph.step.get(use.name)
            if source is None or not isinstance(source.op, Contraction) or read_once(graph, use.name) is None:
                continue
            if {graph.query, graph.key} <= {*use.legs}:
                assert scores is not None
                made = spread(graph, scores.name, i, use, source)
                if made is not None:
                    return made
    return None


def part_distance(graph: Graph, place: str) -> Graph | None:
    """... - c[h] (i[n] - j[m])   ->   ... - c[h] i[n] + c[h] j[m],  and so of its absolute value where it is causal"""
    scores = _scores(graph, place)
    causal = Function("causal") in graph.masks(graph.step[place])
    for i, term in enumerate(scores.op.terms if scores else ()):  # type: ignore[union-attr]
        separated = two_sides(graph, term, causal)
        if separated is not None:
            assert scores is not None
            query, key, places = separated
            terms = scores.op.terms  # type: ignore[union-attr]
            made = replace(scores, op=Contraction((*terms[:i], query, key, *terms[i + 1 :])))
            graph = _with(with_places(graph, places), {scores.name: [made]})
            return without_dead(graph, (use.name for use in term.factors))
    return None


def drop_constant(graph: Graph, place: str) -> Graph | None:
    """softmax over m of (S[n m] + q[n])   ->   softmax over m of S[n m]"""
    scores = _scores(graph, place)
    if scores is None:
        return None
    keys = {graph.key, graph.step[place].op.other}  # type: ignore[union-attr]
    terms = scores.op.terms  # type: ignore[union-attr]
    read = [term for term in terms if any(keys & set(use.legs) for use in term.factors)]
    # Of numbers that grow with the length, what counts is the difference to what stands at the query: that stays.
    large = [term for term in terms if any(grows(graph, use) for use in term.factors)]
    kept = [*read, *large] if any(term in read for term in large) else read
    stays = tuple(term for term in terms if term in kept)
    if not read or stays == terms:
        return None
    made = _with(graph, {scores.name: [replace(scores, op=Contraction(stays))]})
    made = without_dead(made, (use.name for term in terms if term not in stays for use in term.factors))
    return None if made is None else settled(graph, made)


def grows(graph: Graph, use: Use) -> bool:
    """Whether a tensor grows with the length: a position, a sum over the keys up to a query."""
    tensor, step = graph.tensor.get(use.name), graph.step.get(use.name)
    kind = step.op.kind if step is not None and isinstance(step.op, (Box, Kernel)) else ""
    summed = kind == "sums" or (kind == "sum" and graph.masked(step))  # type: ignore[arg-type]
    return summed or (tensor is not None and tensor.init == POSITION)


def gather_keys(graph: Graph, place: str) -> Graph | None:
    """Q[n d] K[m d] + u[d] K[m d]   ->   (Q[n d] + u[d]) K[m d]"""
    scores = _scores(graph, place)
    if scores is None or len(scores.op.terms) < 2:  # type: ignore[union-attr]
        return None
    terms = scores.op.terms  # type: ignore[union-attr]
    for i, one in enumerate(terms):
        for j, other in enumerate(terms[:i]):
            made = _gathered(graph, scores, other, one)
            if made is not None:
                rest = tuple(term for k, term in enumerate(terms) if k not in (i, j))
                new, term = made
                return _with(graph, {scores.name: [new, replace(scores, op=Contraction((term, *rest)))]})
    return None


def _gathered(graph: Graph, scores: Step, one: Term, other: Term) -> tuple[Step, Term] | None:
    """The sum of what stands beside the same key tensor in two products, and the product of both."""
    if not (len(one.factors) == len(other.factors) == 2):
        return None
    for key in one.factors:
        if key in other.factors and graph.key in key.legs:
            a, b = (term.factors[1 - term.factors.index(key)] for term in (one, other))
            legs = tuple(dict.fromkeys((*a.legs, *b.legs)))
            if graph.query not in legs or graph.key in legs or not {*legs} <= {*key.legs, *scores.legs}:
                continue
            name = fresh(graph, f"{scores.name.partition('.')[0]}.q")
            total = Contraction((Term(one.coefficient, (a,)), Term(other.coefficient, (b,))))
            return Step(name, total, legs), Term(ONE, (Use(name, legs), key))
    return None


def one_side_first(graph: Graph, place: str) -> Graph | None:
    """t[m h] Q[n h d] K[m h d] + w[h d] K[m h d] K[m h d]   ->   Q[n h d] (t K)[m h d] + (w K K)[m h]"""
    scores = _scores(graph, place)
    joint = {graph.key, graph.step[place].op.other} - {None}  # type: ignore[union-attr]
    for i, term in enumerate(scores.op.terms if scores else ()):  # type: ignore[union-attr]
        assert scores is not None
        keys = [use for use in term.factors if joint & {*use.legs}]
        queries = [use for use in term.factors if graph.query in use.legs]
        for side, own, others in (("k", keys, queries), ("q", queries, keys)):
            parts = tuple(own) if others else term.factors
            beyond = {leg for use in parts for leg in use.legs} - {*scores.legs}
            if own and len(parts) > 1 and not {*own} & {*others} and (others or beyond):
                rest = tuple(use for use in term.factors if use not in parts)
                return apart(graph, scores.name, i, parts, rest, f"{place}.{side}")
    return None


def fold_core(graph: Graph, place: str) -> Graph | None:
    """C[h g] Q[n g d] K[m g d]   ->   Q'[n h g d] K[m g d]  with  Q' = C[h g] Q[n g d]"""
    scores = _scores(graph, place)
    for i, term in enumerate(scores.op.terms if scores else ()):  # type: ignore[union-attr]
        queries = [use for use in term.factors if graph.query in use.legs]
        keys = [use for use in term.factors if {graph.key, graph.step[place].op.other} & set(use.legs)]  # type: ignore[union-attr]
        if len(term.factors) < 3 or len(queries) != 1 or len(keys) != 1 or queries == keys:
            continue
        assert scores is not None
        parts = [use for use in term.factors if use != keys[0]]
        found = {leg for use in parts for leg in use.legs}
        kept = {*keys[0].legs, *scores.legs}
        legs = tuple(leg for leg in (*scores.legs, *keys[0].legs) if leg in found and leg in kept)
        legs = (str(graph.query), *dict.fromkeys(leg for leg in legs if leg != graph.query))
        name = fresh(graph, f"{place}.q")
        new = Step(name, Contraction((Term(term.coefficient, tuple(parts)),)), legs)
        terms = list(scores.op.terms)  # type: ignore[union-attr]
        terms[i] = Term(ONE, (Use(name, legs), keys[0]))
        return _with(graph, {scores.name: [new, replace(scores, op=Contraction(tuple(terms)))]})
    return None


def side_by_side(graph: Graph, place: str) -> Graph | None:
    """Q[n d] K[m d] + b[m]   ->   [Q, 1][n w] [K, b][m w],  the features side by side on a leg w of size d + 1

    Where b grows with the length, and a term a[n] was kept for that:  [1, a, Q][n w] [b, 1, K][m w], since numbers are
    added up in this order.
    """
    scores = _scores(graph, place)
    if scores is None or len(scores.op.terms) < 2:  # type: ignore[union-attr]
        return None
    box, terms = graph.step[place], scores.op.terms  # type: ignore[union-attr]
    joint = {graph.key, box.op.other} - {None}  # type: ignore[union-attr]
    sides = [(term, _sides(graph, scores, term, joint)) for term in terms]
    wide = [(term, side) for term, side in sides if side is not None and all(side)]
    alone = [[term for term, side in sides if side is not None and side[i] and not all(side)] for i in (0, 1)]
    if not wide or len(wide) + sum(map(len, alone)) < len(terms):
        return None
    heads = tuple(leg for leg in scores.legs if leg != graph.query and leg not in joint)
    found = [{leg for use in _uses(wide, i, own) for leg in use.legs} for i, own in enumerate(alone)]
    query_legs = (str(graph.query), *(leg for leg in heads if leg in found[0]))
    key_legs = tuple(leg for leg in (*scores.legs, *heads) if leg in joint or leg in found[1])
    key_legs = tuple(dict.fromkeys(leg for leg in key_legs if leg != graph.query))
    own = [tuple(leg for leg in pair[0].legs if leg in pair[1].legs and leg not in scores.legs) for _, pair in wide]
    sizes = [_size(graph, legs) for legs in own]
    if None in sizes or not all(
        {*pair[0].legs} <= {*query_legs, *legs} and {*pair[1].legs} <= {*key_legs, *legs}
        for (_, pair), legs in zip(wide, own, strict=True)
    ):
        return None
    leg = Leg(_fresh_leg(graph, "w"), "size", sum(size or 0 for size in sizes) + sum(map(bool, alone)))
    names = [fresh(graph, f"{place}.{side}") for side in "qk"]
    joins = list[Step]()
    for i, (name, shared) in enumerate(zip(names, (query_legs, key_legs), strict=True)):
        features, added = _features(name, i, wide, own, shared), _added(name, i, alone, shared)
        if not any({*shared} <= {*part.legs} for part in (*features, *added)):
            return None  # no part has all legs that the parts share: the others would have nothing to be spread like
        parts = [*added, *features] if alone[0] else [*features, *added]
        joins.append(_join(graph, name, parts, (*shared, leg.name)))
    product = Contraction((Term(ONE, tuple(Use(join.name, join.legs) for join in joins)),))
    return replace(_with(graph, {scores.name: [*joins, replace(scores, op=product)]}), legs=(*graph.legs, leg))


def _features(name: str, side: int, wide: Sequence[Pair], own: Sequence[Legs], shared: Legs) -> list[Step]:
    """One side of each product of a query and a key tensor, the coefficients on that of the query."""
    return [
        Step(
            f"{name}.{i}",
            Contraction((Term(ONE if side else term.coefficient, (pair[side],)),)),
            _order(pair[side], shared, legs),
        )
        for i, ((term, pair), legs) in enumerate(zip(wide, own, strict=True))
    ]


def _added(name: str, side: int, alone: Sequence[Sequence[Term]], shared: Legs) -> list[Step]:
    """The column of what this side alone adds to the scores, and the ones that meet that of the other side."""
    ones = [Step(f"{name}.one", Contraction((Term(Number(1), ()),)), ())] if alone[1 - side] else []
    legs = tuple(leg for leg in shared if any(leg in use.legs for term in alone[side] for use in term.factors))
    bias = [Step(f"{name}.bias", Contraction(tuple(alone[side])), legs)] if alone[side] else []
    return [*bias, *ones] if side else [*ones, *bias]


def _uses(wide: Sequence[Pair], side: int, alone: Sequence[Term]) -> list[Use]:
    return [pair[side] for _, pair in wide] + [use for term in alone for use in term.factors]


def _sides(graph: Graph, scores: Step, term: Term, joint: set[str | None]) -> tuple[Use | None, Use | None] | None:
    """The query-side and the key-side factor of a term; one and None where it has one side alone."""
    keys = [use for use in term.factors if joint & set(use.legs)]
    queries = [use for use in term.factors if graph.query in use.legs]
    if bool(keys) != bool(queries):
        alone = (None, keys[0]) if keys else (queries[0], None)
        return alone if {leg for use in term.factors for leg in use.legs} <= {*scores.legs} else None
    if len(keys) != 1 or len(queries) != 1 or queries == keys or len(term.factors) != 2:
        return None
    return queries[0], keys[0]


def _join(graph: Graph, name: str, parts: list[Step], legs: Legs) -> Step:
    uses = {use.name: Use(use.name, graph.legs_of(use.name)) for part in parts for use in part.op.uses}
    return Step(name, Kernel("join", tuple(uses.values()), tuple(parts)), legs)


def _order(use: Use, shared: Legs, own: Legs) -> Legs:
    return (*(leg for leg in shared if leg in use.legs), *own)


def _size(graph: Graph, legs: Legs) -> int | None:
    size = 1
    for leg in legs:
        known = graph.leg[leg].size
        if known is None:
            return None
        size *= known
    return size


def _scores(graph: Graph, place: str) -> Step | None:
    """The sum of products that a softmax box alone reads, under its own leg names."""
    box = graph.step[place]
    if not isinstance(box.op, Box):
        return None
    of = box.op.operand("of")
    scores = graph.step.get(of.name)
    plain = scores is not None and isinstance(scores.op, Contraction) and of.legs == scores.legs
    return scores if plain and _only_read_by(graph, of.name, place) else None


def _only_read_by(graph: Graph, name: str, place: str) -> bool:
    readers = Counter(step.name for step, use in graph.uses() if use.name == name)
    return readers == {place: 1} and name not in graph.results


def _with(graph: Graph, new: dict[str, list[Step]]) -> Graph:
    return replace(graph, steps=tuple(part for step in graph.steps for part in new.get(step.name, [step])))


def _fresh_leg(graph: Graph, name: str) -> str:
    taken = {*graph.leg, *dict(graph.settings)}
    while name in taken:
        name += "_"
    return name


RULES = (
    Rule("scores in one sum", "S = Q K; softmax_m (S + R) -> softmax_m (Q K + R)", in_one_sum),
    Rule("distance in two", "S[n m] - c[h] (i[n] - j[m]) -> S[n m] - c[h] i[n] + c[h] j[m]", part_distance),
    Rule("joint keys", "softmax_m logsumexp_r L -> softmax_(r m) L", joint_keys),
    Rule("constant dropped", "softmax_m (S[n m] + q[n]) -> softmax_m S[n m]", drop_constant),
    Rule("core into the query", "C[h g] Q[n g d] K[m g d] -> (C Q)[n h g d] K[m g d]", fold_core),
    Rule("sum before the product", "Q[n d] K[m d] + u[d] K[m d] -> (Q + u)[n d] K[m d]", gather_keys),
    Rule("one side first", "t[m h] Q[n h d] K[m h d] -> Q[n h d] (t K)[m h d]", one_side_first),
    Rule("features side by side", "Q[n d] K[m d] + b[m] -> [Q, 1][n w] [K, b][m w]", side_by_side),
)
