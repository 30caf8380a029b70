"""The recurrences in a diagram: sums over the keys visible to a query that a state can carry from key to key.

state[h d e] <- decay * state + k[m h d] v[m h e];   result of the query n: q[n h d] state[h d e]

Examples are linear attention (scores that are products of a query part and a key part, without a softmax), a
cumulative sum (without values and queries), and states that are mixed over heads before they are read. Factors
exp(a - b) of scores, a of the query and b of the key, are a decay: powers of a rate by distance (retention), or
products of gates between a key and a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensornet_attn.graph.attention import (
    Attention,
    Legs,
    MappedScores,
    ScoreTerm,
    SoftmaxOfScores,
    Terms,
    Weighting,
    score_of,
)
from tensornet_attn.graph.diagram import operation_of, producer_of
from tensornet_attn.graph.distance import negated, two_sides
from tensornet_attn.graph.graph import Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Number, times, to_text
from tensornet_attn.ir.steps import legs_in, with_terms, without

CAUSAL, EXP, ONES = Function("causal"), Function("exp"), Function("ones")
BEFORE = Function("causal", (ONE,))  # a mask of the keys before the query's own position
OWN = {Function("window", (Number(0), Number(0))), Function("band", (Number(0),))}  # masks of a position alone


def sums_keys(step: Step) -> bool:
    """Whether a kernel sums over keys alone, without scores."""
    return step.kernel is not None and step.kernel.kind in ("sums", "outer")


def without_values(step: Step) -> bool:
    """Whether a kernel of a recurrence sums keys that no values are multiplied by."""
    return isinstance(step.form, Recurrence) and step.form.value is None


@dataclass(frozen=True)
class Decay:
    """A decay factor exp(a - b) of scores. `box` is the exp, `of` its operand; `query`, `key` are the terms of a, b.

    A softmax adds `at_own_position`, terms of the key, to the score of the key at the query's own position. In the
    diagram, each is multiplied by the box `diagonal`, which is 1 there and 0 elsewhere.
    """

    box: Step
    of: Step
    query: tuple[Term, ...]
    key: tuple[Term, ...]
    places: tuple[Tensor, ...]  # constants of the terms that the graph lacks
    at_own_position: tuple[Term, ...] = ()
    diagonal: Step | None = None


@dataclass(frozen=True)
class Recurrence:
    """A sum over keys. `box` defines the visible keys, and whether rows are divided by their sums.

    `terms` are products of queries and keys, each with its own state. `value` is what keys write, None if it is only
    their part of the term. `heads` are batch legs of queries and keys; `mixed` are legs of cores and values only;
    `value_legs` are legs of the values only. The result is [heads..., query, mixed..., value_legs...].

    With `mixes`, `mixed` are the heads of keys, and `mix` maps their states to the heads of queries before the read.
    `added` is added to the mixed states, alike for all queries. `pair` names two kernels of the same keys, one
    with values, that one call computes where the first of them stands. `shifted`: queries see only earlier keys.
    """

    box: Step
    terms: tuple[ScoreTerm, ...]
    value: Use | None = None
    heads: Legs = ()
    mixed: Legs = ()
    value_legs: Legs = ()
    weighting: Weighting | None = None
    decays: tuple[Decay, ...] = ()
    mixes: bool = False
    mix: Use | None = None
    added: Use | None = None
    pair: tuple[str, ...] = ()
    shifted: bool = False

    @property
    def result(self) -> Legs:
        return self.mixed + self.value_legs

    @property
    def features(self) -> Legs:
        """The features of the first term."""
        return self.terms[0].features

    @property
    def alone(self) -> bool:
        """Whether the weights of keys are exponentials of key scores, independent of the query."""
        return isinstance(self.weighting, SoftmaxOfScores)

    @property
    def decaying(self) -> bool:
        """Whether scores decay, or would at each step if keys were shifted by one."""
        return self.shifted or any(term.decays for term in self.terms)

    @property
    def by_features(self) -> bool:
        """Whether scores decay at a rate of their own for each feature, or differently at a query's own position."""
        return any(term.decayed or term.at_own_position for term in self.terms)

    @property
    def one_product(self) -> bool:
        """Whether scores are one product of query and key features, without core, decay or softmax."""
        return not self.decaying and not self.alone and len(self.terms) == 1 and not self.terms[0].core

    def causal(self, graph: Graph) -> bool:
        """Whether different queries see different keys."""
        return bool(graph.masks(self.box))


def recurrence_of(step: Step) -> Recurrence:
    assert isinstance(step.form, Recurrence)
    return step.form


def erases(step: Step) -> bool:
    """Whether a step is a delta rule, in which each key erases what it reads before it writes."""
    return step.box is not None and step.box.kind == "delta_rule"


def scans(step: Step) -> bool:
    """Whether a step is an elementwise recurrence."""
    return step.box is not None and step.box.kind == "scan"


def unmasked(step: Step) -> bool:
    """Whether a step carries a state from key to key, so that masks of query and key do not apply."""
    return operation_of(step).recurrent


def sums(graph: Graph) -> list[Step]:
    """The sums over the keys visible to each query."""
    return [
        step
        for step in graph.steps
        if step.box is not None and step.box.kind == "sum" and graph.masked(step) and graph.query in step.legs
    ]


def linear(attention: Attention) -> Recurrence | str:
    """An attention as a recurrence, which sums over the keys first, or the first reason why it is not one."""
    graph, terms = attention.graph, terms_of(attention.graph, attention.of)
    if isinstance(attention.weighting, SoftmaxOfScores):
        return _of_keys(attention) or "a softmax depends on the scores of all keys"
    if not terms:
        return f"the scores are {attention.origin}, not a sum of products"
    if attention.shared:
        return "the scores or the attention map are also used elsewhere"
    shifted = BEFORE in attention.masks
    decays = _decays(graph, terms, attention.masks)
    if isinstance(decays, str):
        return decays
    reader = attention.reader()
    if isinstance(reader, str):
        return reader
    (value,) = reader.values
    mixed = mixed_legs(graph, attention.box.legs, terms, value)
    if mixed and shifted:
        return "heads are mixed between scores of earlier keys and values"
    recurrence = _summed(graph, attention.box, terms, value, mixed, attention.weighting, decays)
    return _against_decay(terms, attention.box.legs, mixed) or replace(recurrence, shifted=shifted)


def terms_of(graph: Graph, of: Use) -> tuple[ScoreTerm, ...]:
    """The products of scores under their own leg names; an exp is a single decay factor."""
    score = score_of(graph, of)
    if isinstance(score, MappedScores) and score.function == EXP:
        return (ScoreTerm(ONE, pairwise=(of,)),)
    return score.terms if isinstance(score, Terms) and of.legs == score.step.legs else ()


def _decays(graph: Graph, terms: Sequence[ScoreTerm], masks: Sequence[Function]) -> tuple[Decay, ...] | str:
    """The factors of both query and key as decays, or the reason why the keys cannot be summed first."""
    pairwise, decays = [use for term in terms for use in term.pairwise], list[Decay]()
    for use in dict.fromkeys(pairwise):
        decay = decay_of(graph, use, pairwise.count(use), bool({CAUSAL, BEFORE} & {*masks}))
        if isinstance(decay, str):
            return decay
        decays.append(decay)
    mask = next((mask for mask in masks if mask not in (CAUSAL, BEFORE)), None)
    return f"a sum over all keys cannot exclude those that '{mask.to_text(to_text)}' hides" if mask else tuple(decays)


def _summed(
    graph: Graph,
    box: Step,
    terms: tuple[ScoreTerm, ...],
    value: Use | None = None,
    mixed: Legs = (),
    weighting: Weighting | None = None,
    decays: tuple[Decay, ...] = (),
) -> Recurrence:
    """A recurrence with its legs divided by their roles."""
    heads = without(box.legs, graph.query, graph.key, *mixed)
    value_legs = without(value.legs if value else (), *box.legs)
    return Recurrence(box, terms, value, heads, mixed, value_legs, weighting, decays)


def _against_decay(terms: Sequence[ScoreTerm], legs: Legs, mixed: Legs) -> str:
    """Why decaying scores cannot be summed first; empty if they can."""
    for term in terms:
        features = legs_in(term.query) & legs_in(term.key) - {*legs}
        for use in term.pairwise:
            summed = {*use.legs} - {*legs}
            if summed and summed != features:
                return f"'{use.name}' decays along {_listed(summed)}, but the scores sum {_listed(features)}"
    if mixed and any(term.pairwise for term in terms):
        return "heads are mixed between decay scores and values"
    return ""


def _listed(legs: set[str]) -> str:
    return " and ".join(f"'{leg}'" for leg in sorted(legs)) or "no leg of both"


def mixed_legs(graph: Graph, legs: Legs, terms: Sequence[ScoreTerm], value: Use) -> Legs:
    """The legs of the scores that only values and cores have; each core has all of them or none.

    Empty if a core maps features of queries to other features of keys; the core then belongs to the query side.
    """
    others = without(legs, graph.query, graph.key)
    sided = {leg for term in terms for leg in legs_in((*term.query, *term.key, *term.pairwise))}
    mixed = without(others, *sided)
    if not mixed or not {*mixed} <= {*value.legs}:
        return ()
    return mixed if all(_mixes(term, {*mixed}, {*others}) for term in terms) else ()


def _mixes(term: ScoreTerm, mixed: set[str], others: set[str]) -> bool:
    core = legs_in(term.core)
    query, key = (legs_in((*side, *term.pairwise)) for side in (term.query, term.key))
    return not core & mixed or (mixed <= core and core & (query | key) - others <= query & key)


def _of_keys(attention: Attention) -> Recurrence | None:
    """A softmax over scores that depend only on keys: a weighted mean of the values."""
    assert isinstance(attention.weighting, SoftmaxOfScores)
    scale, score, reader = attention.weighting.scale, attention.scores, attention.reader()
    if not attention.terms or score is None or score.contraction is None or attention.shared or isinstance(reader, str):
        return None
    if (
        attention.weighting.sink
        or attention.weighting.dropout != Number(0)
        or any(mask != CAUSAL for mask in attention.masks)
    ):
        return None
    terms = tuple(replace(term, coefficient=times(scale, term.coefficient)) for term in score.terms)
    of = with_terms(score, terms)
    of, own_terms, diagonal = _apart_from_own(attention.graph, of)
    if own_terms and (diagonal is None or CAUSAL not in attention.masks):
        return None
    decay = _separated(attention.graph, attention.box, of, CAUSAL in attention.masks)
    if isinstance(decay, str):
        return None
    decay = replace(decay, of=with_terms(of, terms), at_own_position=own_terms, diagonal=diagonal)
    return _summed(
        attention.graph, attention.box, (ScoreTerm(ONE),), reader.values[0], (), attention.weighting, (decay,)
    )


def _apart_from_own(graph: Graph, of: Step) -> tuple[Step, tuple[Term, ...], Step | None]:
    """The scores without terms of the query's own position, these terms without their diagonal, and the diagonal.

    The diagonal is None if the terms have different ones, or if another factor of such a term has the query leg.
    """
    others, own_terms, boxes = list[Term](), list[Term](), set[Step | None]()
    for term in of.terms:
        diagonals = [use for use in term.factors if _own_position(graph, use)]
        if not diagonals:
            others.append(term)
            continue
        factors = tuple(use for use in term.factors if use != diagonals[0])
        boxes.add(
            graph.step[diagonals[0].name] if len(diagonals) == 1 and graph.query not in legs_in(factors) else None
        )
        own_terms.append(replace(term, factors=factors))
    return with_terms(of, others), tuple(own_terms), boxes.pop() if len(boxes) == 1 else None


def _own_position(graph: Graph, use: Use) -> bool:
    """Whether a factor is 1 for the key at the query's own position, and 0 elsewhere."""
    step = producer_of(graph, use)
    if step is None or step.box is None or step.box.kind != "keep" or use.legs != step.legs:
        return False
    masks = {*graph.masks(step)} - {CAUSAL}
    of = graph.tensor.get(step.box.of.name)
    return bool(masks) and masks <= OWN and of is not None and of.init == ONES and of.role == "constant"


def cumulative(graph: Graph, step: Step) -> Recurrence | str:
    """A sum over keys of products of a query part and a key part as a recurrence, or the reason why it is not one."""
    assert step.box is not None
    of, pair = step.box.of, {graph.query, graph.key}
    terms = terms_of(graph, of)
    decays = _decays(graph, terms, graph.masks(step)) if terms else "the summed operand is not a sum of products"
    if isinstance(decays, str):
        return decays
    if not pair <= {*of.legs} <= pair | {leg for term in terms for leg in legs_in(term.factors)}:
        return "the summed operand has no query part, or has a leg that no factor has"
    if len(graph.readers[of.name]) > 1 or of.name in graph.results:
        return f"'{of.name}' is also used elsewhere"
    return replace(_summed(graph, step, terms, decays=decays), shifted=BEFORE in graph.masks(step))


def decay_of(graph: Graph, use: Use, count: int, causal: bool) -> Decay | str:
    """A factor of scores as a decay, or the reason why it is not one. `count` is its number of uses in the scores."""
    box = producer_of(graph, use)
    if box is None or box.box is None or box.box.function != EXP:
        return f"'{use.name}' in the scores depends on both query and key"
    inner = box.box.of
    of = producer_of(graph, inner)
    if of is None or of.contraction is None or inner.legs != of.legs or use.legs != box.legs:
        return f"the exponent of '{use.name}' in the scores is not a sum of a query part and a key part"
    if len(graph.readers[of.name]) > 1 or len(graph.readers[box.name]) > count or {of.name, box.name} & graph.results:
        return f"'{use.name}' in the scores is also used elsewhere"
    return _separated(graph, box, of, causal)


def _separated(graph: Graph, box: Step, of: Step, causal: bool) -> Decay | str:
    """The terms of an exponent, divided into those of queries and those of keys."""
    query, key, constants = list[Term](), list[Term](), dict[str, Tensor]()
    for written in of.terms:
        term = replace(written, factors=tuple(use for use in written.factors if not _ones(graph, use, of)))
        sides = legs_in(term.factors) & {graph.query, graph.key}
        separated = two_sides(graph, term, causal)
        if len(sides) < 2:
            (key if graph.key in sides else query).append(term if graph.key not in sides else negated(term))
        elif separated is not None:
            query.append(separated[0])
            key.append(negated(separated[1]))
            constants |= {constant.name: constant for constant in separated[2]}
        else:
            return f"the exponent of '{box.name}' in the scores is not a sum of a query part and a key part"
    for leg, terms in ((graph.query, query), (str(graph.key), key)):
        if not any(leg in use.legs for term in terms for use in term.factors):
            name = f"{box.name}.{leg}"  # the side has one number for all positions
            constants[name] = Tensor(name, "constant", (leg,), ONES)
            first, *rest = terms or [Term(Number(0), ())]
            terms[:] = [replace(first, factors=(*first.factors, Use(name, (leg,)))), *rest]
    return Decay(box, of, tuple(query), tuple(key), tuple(constants.values()))


def _ones(graph: Graph, use: Use, step: Step) -> bool:
    """Whether a factor is a constant 1 without effect."""
    tensor = graph.tensor.get(use.name)
    return tensor is not None and tensor.role == "constant" and tensor.init == ONES and {*use.legs} <= {*step.legs}
