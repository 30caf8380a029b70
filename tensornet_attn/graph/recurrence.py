"""Recurrences as the diagram has them: sums over the keys that a query sees, which a state can carry from key to key.

    state[h d e] <- decay * state - erase + k[m h d] v[m h e];   read of the query n: q[n h d] state[h d e]

Linear attention is one (scores that are products of a part of queries and one of keys, weighed by no softmax), a
cumulative sum (no values, nothing read), the delta rule (what a key reads is erased before it writes), and states that
are mixed over heads before they are read. Factors exp(a - b) of scores, a of the query and b of the key, are its decay:
powers of a rate by distance (retention), or products of gates between a key and a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tensornet_attn.graph.attention import (
    Attention,
    Legs,
    Map,
    ScoreTerm,
    Softmax,
    Terms,
    Weighting,
    attentions,
    cached,
    score_of,
    split,
)
from tensornet_attn.graph.distance import negated, two_sides
from tensornet_attn.graph.model import Contraction, Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Number, times, to_text
from tensornet_attn.ops import OPS

CAUSAL, EXP, ONES = Function("causal"), Function("exp"), Function("ones")
OWN = {Function("window", (Number(0), Number(0))), Function("band", (Number(0),))}  # masks of a position alone


@dataclass(frozen=True)
class Decay:
    """A factor of scores. `box`: the exp that makes it, of `of`; `query`, `key`: the terms of a and of b.

    `own`: what a softmax adds to the score of a query and the key at its own position, terms of the key, without
    the factor that is 1 there and 0 elsewhere, the box `diagonal`.
    """

    box: Step
    of: Step
    query: tuple[Term, ...]
    key: tuple[Term, ...]
    places: tuple[Tensor, ...]  # constants that the terms read and the graph lacks
    own: tuple[Term, ...] = ()
    diagonal: Step | None = None


@dataclass(frozen=True)
class Erase:
    """What the state holds for a key is taken away before the key writes, as far as `rate` says."""

    rate: Use
    key: Use


@dataclass(frozen=True)
class Recurrence:
    """A sum over keys. `box`: the box that says which keys are seen, and whether rows are divided by their sums.

    `terms`: products of queries and keys, each with a state of its own; `value`: what keys write, None where that is
    their part of the term alone. `heads`: legs that queries and keys are batched over; `mixed`: those that cores and
    values have, and neither side; `own`: the values' own. The result is [heads..., query, mixed..., own...].

    `mixes`: `mixed` are instead the heads that keys have, of which `mix` makes those of queries before they read.
    """

    box: Step
    terms: tuple[ScoreTerm, ...]
    value: Use | None = None
    heads: Legs = ()
    mixed: Legs = ()
    own: Legs = ()
    weighting: Weighting | None = None
    decays: tuple[Decay, ...] = ()
    mixes: bool = False
    mix: Use | None = None
    erase: Erase | None = None
    fades: Use | None = None  # of a delta rule or a scan: the logarithm that the state fades by at each key

    @property
    def result(self) -> Legs:
        return self.mixed + self.own

    @property
    def features(self) -> Legs:
        """Those of the first term."""
        return self.terms[0].features

    @property
    def alone(self) -> bool:
        """Whether keys are weighed by exponentials of numbers of their own, and no query looks at them."""
        return isinstance(self.weighting, Softmax)

    @property
    def decaying(self) -> bool:
        return any(term.decays for term in self.terms)

    def causal(self, graph: Graph) -> bool:
        """Whether each query sees other keys."""
        return bool(graph.masks(self.box))


def recurrence_of(step: Step) -> Recurrence:
    """The recurrence that a kernel computes."""
    assert isinstance(step.form, Recurrence)
    return step.form


@cached
def recurrences(graph: Graph) -> Mapping[str, Recurrence]:
    """The recurrences of a graph by the name of their box, in the order of the steps."""
    found = {}
    for step in graph.steps:
        form = form_of(graph, step) if _along_keys(graph, step) else None
        if isinstance(form, Attention):
            form = linear(form)
        if isinstance(form, Recurrence):
            found[step.name] = form
    return found


def _along_keys(graph: Graph, step: Step) -> bool:
    """Whether a box reduces the key leg; rotary positions run along it and reduce nothing."""
    box = step.box
    whole = box is not None and box.leg is not None and box.leg == graph.key
    return whole and (graph.key not in step.legs or step.box.other is None or step.name in attentions(graph))  # type: ignore[union-attr]


def reductions(graph: Graph) -> Iterator[tuple[str, Attention | Recurrence | str]]:
    """Every box along the key leg, and every product that sums it, with its form or why it has none."""
    for step in graph.steps:
        if _along_keys(graph, step):
            yield step.name, form_of(graph, step)
        for i, term in enumerate(step.contraction.terms if step.contraction is not None else (), 1):
            if graph.key not in step.legs and any(graph.key in use.legs for use in term.factors):
                place = step.name if len(step.contraction.terms) == 1 else f"{step.name}, term {i}"  # type: ignore[union-attr]
                yield place, _form_of_term(graph, step, term)


def erases(step: Step) -> bool:
    """Whether a step is a delta rule: what a key reads of the state is erased before it writes."""
    return step.box is not None and step.box.kind == "delta_rule"


def scans(step: Step) -> bool:
    """Whether a step is a recurrence number by number."""
    return step.box is not None and step.box.kind == "scan"


def unmasked(step: Step) -> bool:
    """Whether a step goes from key to key with a state, so that no mask that compares queries with keys acts in it."""
    return step.box is not None and OPS[step.box.kind].recurrent


def sums(graph: Graph) -> list[Step]:
    """The sums over the keys that a query sees."""
    boxes = [step for step in graph.steps if graph.masked(step) and graph.query in step.legs]
    return [step for step in boxes if step.box is not None and step.box.kind == "sum"]


def form_of(graph: Graph, step: Step) -> Attention | Recurrence | str:
    """The form of a box along the key leg, or why it has none."""
    if step.name in attentions(graph):
        return attentions(graph)[step.name]
    assert step.box is not None
    if erases(step):
        roles = dict(step.box.operands)
        query, key, value = (roles[role] for role in ("query", "key", "value"))
        heads = tuple(leg for leg in step.legs if leg in key.legs)
        own = tuple(leg for leg in step.legs if leg not in (*key.legs, graph.query))
        term = ScoreTerm(ONE, (query,), (key,), width=tuple(leg for leg in key.legs if leg not in (*heads, graph.key)))
        erase = Erase(roles["rate"], roles.get("erase", roles.get("erase_undecayed", key)))
        return Recurrence(step, (term,), value, heads, (), own, erase=erase, fades=roles.get("decay"))
    if scans(step):
        return Recurrence(step, (ScoreTerm(ONE, key=(step.box.operand("of"),)),), fades=step.box.operand("decay"))
    if step in sums(graph):
        return cumulative(graph, step)
    if step.box.kind == "sum":  # once for all queries
        return Recurrence(step, (ScoreTerm(ONE, key=(step.box.operand("of"),)),))
    return f"a '{step.box.kind}' over all keys is more than a sum of them"


def _form_of_term(graph: Graph, step: Step, term: Term) -> Attention | Recurrence | str:
    parts = split(graph, term)
    if not parts.pairwise:
        return Recurrence(step, (parts,))
    found = [name for use in parts.pairwise for name in maps_in(graph).get(use.name, ())]
    if not found:
        return f"'{parts.pairwise[0].name}' depends on query and key at once, and no box over the keys weighs it"
    return attentions(graph)[found[0]]


@cached
def maps_in(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """The attention maps that each map, each map of one, mixture, blend and product with one is made of, by name."""
    pair, found = {graph.query, graph.key}, dict[str, tuple[str, ...]]()
    for step in graph.steps:
        if step.name in attentions(graph):
            found[step.name] = (step.name,)
        elif pair <= {*step.legs}:
            each = [term.factors for term in step.contraction.terms] if step.contraction else [step.op.uses]
            maps = [[name for use in uses if pair <= {*use.legs} for name in found.get(use.name, ())] for uses in each]
            found |= {step.name: tuple(dict.fromkeys(name for own in maps for name in own))} if all(maps) else {}
    return found


def linear(found: Attention) -> Recurrence | str:
    """An attention as a recurrence, which sums the keys first; or the first reason why it is none."""
    graph, terms = found.graph, terms_of(found.graph, found.of)
    if isinstance(found.weighting, Softmax):
        return _of_keys(found) or "a softmax compares the scores of all keys"
    if not terms:
        return f"the scores are {found.origin}, not a sum of products"
    if found.shared:
        return "the scores or the attention map are used elsewhere too"
    decays = _decays(graph, terms, found.masks)
    if isinstance(decays, str):
        return decays
    reader = found.reader()
    if isinstance(reader, str):
        return reader
    (value,) = reader.values
    mixed = mixed_legs(graph, found.box.legs, terms, value)
    whole = _summed(graph, found.box, terms, value, mixed, found.weighting, decays)
    return _against_decay(terms, found.box.legs, mixed) or whole


def terms_of(graph: Graph, of: Use) -> tuple[ScoreTerm, ...]:
    """Scores as products, under their own leg names; where they are an exp, a factor that decays."""
    score = score_of(graph, of)
    if isinstance(score, Map) and score.function == EXP:
        return (ScoreTerm(ONE, pairwise=(of,)),)
    return score.terms if isinstance(score, Terms) and of.legs == score.step.legs else ()


def _decays(graph: Graph, terms: Sequence[ScoreTerm], masks: Sequence[Function]) -> tuple[Decay, ...] | str:
    """The factors that depend on query and key at once as decays; or why the keys cannot be summed first."""
    both, found = [use for term in terms for use in term.pairwise], list[Decay]()
    for use in dict.fromkeys(both):
        decay = decay_of(graph, use, both.count(use), CAUSAL in masks)
        if isinstance(decay, str):
            return decay
        found.append(decay)
    mask = next((mask for mask in masks if mask != CAUSAL), None)
    return f"a sum over all keys cannot leave out those that '{mask.to_text(to_text)}' hides" if mask else tuple(found)


def _summed(
    graph: Graph,
    box: Step,
    terms: tuple[ScoreTerm, ...],
    value: Use | None = None,
    mixed: Legs = (),
    weighting: Weighting | None = None,
    decays: tuple[Decay, ...] = (),
) -> Recurrence:
    """A recurrence with its legs by what they do."""
    heads = tuple(leg for leg in box.legs if leg not in (graph.query, graph.key, *mixed))
    own = tuple(leg for leg in (value.legs if value else ()) if leg not in box.legs)
    return Recurrence(box, terms, value, heads, mixed, own, weighting, decays)


def _against_decay(terms: Sequence[ScoreTerm], legs: Legs, mixed: Legs) -> str:
    """Why scores that decay cannot be summed first; empty where they can."""
    for term in terms:
        features = _legs(term.query) & _legs(term.key) - {*legs}
        for use in term.pairwise:
            summed = {*use.legs} - {*legs}
            if summed and summed != features:
                return f"'{use.name}' decays along {_listed(summed)}, and the scores sum {_listed(features)}"
    if mixed and any(term.pairwise for term in terms):
        return "heads are mixed between decay scores and values"
    return ""


def _listed(legs: set[str]) -> str:
    return " and ".join(f"'{leg}'" for leg in sorted(legs)) or "no leg of both"


def _legs(uses: Sequence[Use]) -> set[str]:
    return {leg for use in uses for leg in use.legs}


def mixed_legs(graph: Graph, legs: Legs, terms: Sequence[ScoreTerm], value: Use) -> Legs:
    """The legs of the scores that values have and, on the scores' side, cores alone, each of them all or none.

    Nothing where a core maps features of queries to others of keys: it is part of the query side then.
    """
    others = tuple(leg for leg in legs if leg not in (graph.query, graph.key))
    sided = {leg for term in terms for leg in _legs((*term.query, *term.key, *term.pairwise))}
    mixed = tuple(leg for leg in others if leg not in sided)
    if not mixed or not {*mixed} <= {*value.legs}:
        return ()
    return mixed if all(_mixes(term, {*mixed}, {*others}) for term in terms) else ()


def _mixes(term: ScoreTerm, mixed: set[str], others: set[str]) -> bool:
    core = _legs(term.core)
    query, key = (_legs((*side, *term.pairwise)) for side in (term.query, term.key))
    return not core & mixed or (mixed <= core and core & (query | key) - others <= query & key)


def _of_keys(found: Attention) -> Recurrence | None:
    """A softmax whose scores compare nothing: a mean of values, weighted by numbers of the keys."""
    assert isinstance(found.weighting, Softmax)
    scale, score, reader = found.weighting.scale, found.scores, found.reader()
    if not found.terms or score is None or score.contraction is None or found.shared or isinstance(reader, str):
        return None
    if found.weighting.sink or found.weighting.dropout != Number(0) or any(mask != CAUSAL for mask in found.masks):
        return None
    terms = tuple(replace(term, coefficient=times(scale, term.coefficient)) for term in score.contraction.terms)
    of = replace(score, op=Contraction(terms))
    of, own, diagonal = _apart_from_own(found.graph, of)
    if own and (diagonal is None or CAUSAL not in found.masks):
        return None
    decay = _separated(found.graph, found.box, of, CAUSAL in found.masks)
    if isinstance(decay, str):
        return None
    decay = replace(decay, of=replace(of, op=Contraction(terms)), own=own, diagonal=diagonal)
    return _summed(found.graph, found.box, (ScoreTerm(ONE),), reader.values[0], (), found.weighting, (decay,))


def _apart_from_own(graph: Graph, of: Step) -> tuple[Step, tuple[Term, ...], Step | None]:
    """Scores without their terms of the query's own position, these as terms of the key, and the box that says so.

    No box where these do not all have the same one, once, beside factors of the key and of none.
    """
    assert of.contraction is not None
    others, own, boxes = list[Term](), list[Term](), set[Step | None]()
    for term in of.contraction.terms:
        found = [use for use in term.factors if _own_position(graph, use)]
        if not found:
            others.append(term)
            continue
        rest = tuple(use for use in term.factors if use != found[0])
        boxes.add(graph.step[found[0].name] if len(found) == 1 and graph.query not in _legs(rest) else None)
        own.append(replace(term, factors=rest))
    return replace(of, op=Contraction(tuple(others))), tuple(own), boxes.pop() if len(boxes) == 1 else None


def _own_position(graph: Graph, use: Use) -> bool:
    """Whether a factor is 1 of a query and the key at its position, and 0 elsewhere."""
    step = graph.step.get(use.name)
    if step is None or step.box is None or step.box.kind != "keep" or use.legs != step.legs:
        return False
    masks = {mask for mask in graph.masks(step) if mask != CAUSAL}
    of = graph.tensor.get(step.box.operand("of").name)
    return bool(masks) and masks <= OWN and of is not None and of.init == ONES and of.role == "constant"


def cumulative(graph: Graph, step: Step) -> Recurrence | str:
    """A sum over the keys of products of a part of queries and one of keys; or why it is none."""
    assert step.box is not None
    of, pair = step.box.operand("of"), {graph.query, graph.key}
    terms = terms_of(graph, of)
    decays = _decays(graph, terms, graph.masks(step)) if terms else "what is summed is no sum of products"
    if isinstance(decays, str):
        return decays
    if not pair <= {*of.legs} <= pair | {leg for term in terms for leg in _legs(term.factors)}:
        return "what is summed has no part of queries, or a leg that no factor has"
    if len(graph.readers[of.name]) > 1 or of.name in graph.results:
        return f"'{of.name}' is used elsewhere too"
    return _summed(graph, step, terms, decays=decays)


def decay_of(graph: Graph, use: Use, here: int, causal: bool) -> Decay | str:
    """What a factor of scores, with legs of queries and keys, is made of; or why it is no decay.

    `here`: how often the scores have it.
    """
    box = graph.step.get(use.name)
    if box is None or box.box is None or box.box.function != EXP:
        return f"'{use.name}' in the scores depends on query and key at once"
    inner = box.box.operand("of")
    of = graph.step.get(inner.name)
    if of is None or of.contraction is None or inner.legs != of.legs or use.legs != box.legs:
        return f"the exponent of '{use.name}' in the scores is no sum of a part of queries and one of keys"
    if len(graph.readers[of.name]) > 1 or len(graph.readers[box.name]) > here or {of.name, box.name} & graph.results:
        return f"'{use.name}' in the scores is used elsewhere too"
    return _separated(graph, box, of, causal)


def _separated(graph: Graph, box: Step, of: Step, causal: bool) -> Decay | str:
    """The terms of an exponent by the side that they stand on."""
    query, key, places = list[Term](), list[Term](), dict[str, Tensor]()
    for written in of.contraction.terms if of.contraction is not None else ():
        term = replace(written, factors=tuple(use for use in written.factors if not _ones(graph, use, of)))
        sides = _legs(term.factors) & {graph.query, graph.key}
        separated = two_sides(graph, term, causal)
        if len(sides) < 2:
            (key if graph.key in sides else query).append(term if graph.key not in sides else negated(term))
        elif separated is not None:
            query.append(separated[0])
            key.append(negated(separated[1]))
            places |= {place.name: place for place in separated[2]}
        else:
            return f"the exponent of '{box.name}' in the scores is no sum of a part of queries and one of keys"
    for leg, terms in ((str(graph.query), query), (str(graph.key), key)):
        if not any(leg in use.legs for term in terms for use in term.factors):
            place = f"{box.name}.{leg}"  # one number for the whole side
            places[place] = Tensor(place, "constant", (leg,), ONES)
            first, *rest = terms or [Term(Number(0), ())]
            terms[:] = [replace(first, factors=(*first.factors, Use(place, (leg,)))), *rest]
    return Decay(box, of, tuple(query), tuple(key), tuple(places.values()))


def _ones(graph: Graph, use: Use, step: Step) -> bool:
    """Whether a factor is 1, there for its legs alone."""
    tensor = graph.tensor.get(use.name)
    return tensor is not None and tensor.role == "constant" and tensor.init == ONES and {*use.legs} <= {*step.legs}
