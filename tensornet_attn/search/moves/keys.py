"""Moves on keys: each is a mixture of several, or keys and values come from one small latent per position."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.model import Box, Contraction, Step, Term, Use
from tensornet_attn.search.moves.heads import plain_product, set_scale, summed_legs
from tensornet_attn.search.roles import Map, Place, chain, projection, reader, source
from tensornet_attn.search.sketch import Declared, Sketch, product
from tensornet_attn.search.wires import grown
from tensornet_attn.spec.arithmetic import ONE, Arith, Binary, Negative, parse

WAYS = ("gaussian", "products", "hard")
KEYS = ("own", "shifted")


def mixture(sketch: Sketch, at: Map, r: int, way: str, keys: str) -> Sketch | None:
    """softmax(c Q[n h d] K[m h d] -> h n m)  becomes the softmax of L, a logarithm of r summed probabilities:

    products  L = logsumexp_r(logpi[h r] + c Q[n h d] K[m r h d])
    gaussian  L = logsumexp_r(logpi[h r] + c Q[n h d] K[m r h d] - 1/2 c K[m r h d] K[m r h d])
    hard      L = max_r(c Q[n h d] K[m r h d] - 1/2 c K[m r h d] K[m r h d])

    Under a kernel's normaliser the r features are blended by a prior instead. The r keys have projections of their own,
    or one projection and r learned shifts.
    """
    place = projection(sketch, at.key)
    if place is None or r < 2 or not _only_here(sketch, at):
        return None
    sketch, leg = sketch.new_leg("r", r)
    changed = _grown(sketch, at, place, leg, keys)
    if changed.step[at.box].op.kind == "normalize":  # type: ignore[union-attr]
        return _blended(changed, at, leg)
    return _summed(changed, at, leg, way) if plain_product(sketch, at) and summed_legs(sketch, at) else None


def _only_here(sketch: Sketch, at: Map) -> bool:
    """Whether the keys, from their projection on, are read by this map's scores alone."""
    names = chain(sketch, at.key)
    after = dict(zip(names, [at.scores, *names], strict=False))
    return all(sketch.readers[name] == (after[name],) for name in names)


def _grown(sketch: Sketch, at: Map, place: Place, leg: str, keys: str) -> Sketch:
    """The keys with leg r, from their projection on."""
    names = chain(sketch, at.key)
    if keys == "own":
        return grown(sketch, [*names, place.use.name], leg)
    legs = [one for one in sketch.step[names[-1]].legs if one != sketch.key]
    sketch, shift = sketch.new_weight("b", (leg, *legs), "normal(1)")
    sketch = grown(sketch, names, leg)
    step = sketch.step[names[-1]]
    assert isinstance(step.op, Contraction)
    return sketch.with_step(replace(step, op=Contraction((*step.op.terms, Term(ONE, (shift,))))))


def _blended(sketch: Sketch, at: Map, leg: str) -> Sketch:
    """phiK[m r h d]  becomes  pi[h r] phiK[m r h d] -> m h d, with pi = softmax_r(logits)."""
    step = sketch.step[at.scores]
    assert isinstance(step.op, Contraction)
    key = next(use for use in step.op.terms[at.term].factors if use.name == at.key.name)
    heads = [one for one in at.key.legs if one in step.legs and one != sketch.key]
    sketch, logits = sketch.new_weight("logits", (*heads, leg), "zeros")
    box = Box("softmax", leg, (("of", logits),), (("scale", ONE), ("dropout", parse(0))))
    sketch, prior = sketch.new_step("pi", box, logits.legs, at.scores)
    rest = tuple(one for one in key.legs if one != leg)
    sketch, blend = sketch.new_step("Kmix", product(prior, key), rest, at.scores)
    return _replaced(sketch, at, key, blend)


def _replaced(sketch: Sketch, at: Map, old: Use, new: Use) -> Sketch:
    """The scores' product with another use in a use's place."""
    step = sketch.step[at.scores]
    assert isinstance(step.op, Contraction)
    term = step.op.terms[at.term]
    made = replace(term, factors=tuple(new if use == old else use for use in term.factors))
    terms = tuple(made if place == at.term else other for place, other in enumerate(step.op.terms))
    return sketch.with_step(replace(step, op=Contraction(terms)))


def _summed(sketch: Sketch, at: Map, leg: str, way: str) -> Sketch:
    """The scores as terms of one sum, and the box over r between them and the softmax."""
    step, box = sketch.step[at.scores], sketch.step[at.box]
    assert isinstance(step.op, Contraction)
    assert isinstance(box.op, Box)
    (term,), scale = step.op.terms, box.op.number("scale")
    heads = [one for one in step.legs if one in at.key.legs and one != sketch.key]
    terms = [replace(term, coefficient=scale)]
    if way != "hard":
        sketch, prior = sketch.new_weight("logpi", (*heads, leg), "zeros")
        terms.insert(0, Term(ONE, (prior,)))
    if way != "products":
        sketch, norm = _norm(sketch, at, term, (*heads, leg), scale)
        terms.append(Term(Negative(ONE), (norm,)))
    scores = Step(
        step.name, Contraction(tuple(terms)), (*_without(step.legs, sketch), leg, *_sequences(step.legs, sketch))
    )
    sketch = sketch.with_step(scores)
    kind = "max" if way == "hard" else "logsumexp"
    inner = Box(kind, leg, (("of", Use(step.name, scores.legs)),))
    sketch, total = sketch.new_step("S", inner, step.legs, at.box)
    return set_scale(sketch.with_step(replace(box, op=replace(box.op, operands=(("of", total),)))), at.box, ONE)


def _norm(sketch: Sketch, at: Map, term: Term, legs: tuple[str, ...], scale: Arith) -> tuple[Sketch, Use]:
    """1/2 c |K|^2, for each key of a position."""
    key = next(use for use in term.factors if use.name == at.key.name)
    half = product(key, key, times=Binary("*", parse(0.5), scale))
    return sketch.new_step("k2", half, (str(sketch.key), *legs), at.scores)


def _without(legs: tuple[str, ...], sketch: Sketch) -> tuple[str, ...]:
    return tuple(leg for leg in legs if leg not in (sketch.query, sketch.key))


def _sequences(legs: tuple[str, ...], sketch: Sketch) -> tuple[str, ...]:
    return tuple(leg for leg in legs if leg in (sketch.query, sketch.key))


def latent(sketch: Sketch, at: Map, c: int) -> Sketch | None:
    """x[m f] Wk[f h d], x[m f] Wv[f h d]  becomes  C[m c] Wk[c h d], C[m c] Wv[c h d] with C: x[m f] Wc[f c] -> m c."""
    found = reader(sketch, at.box)
    places = [projection(sketch, use) for use in (at.key, found.value)] if found else []
    if len(places) != 2 or None in places:
        return None
    key, value = (place for place in places if place is not None)
    one, other = source(sketch, key), source(sketch, value)
    if one is None or one != other or key.use.name == value.use.name or sketch.key not in one.legs:
        return None
    if any(sketch.readers[place.use.name] != (place.step,) for place in (key, value)):
        return None
    summed = [leg for leg in one.legs if leg != sketch.key]
    if len(summed) != 1 or c >= sketch.size(summed):
        return None
    sketch, rank = sketch.new_leg("c", c)
    sketch, weight = sketch.new_weight("Wc", (summed[0], rank))
    first = (
        key.step
        if sketch.steps.index(sketch.step[key.step]) < sketch.steps.index(sketch.step[value.step])
        else value.step
    )
    sketch, small = sketch.new_step("C", product(one, weight), (str(sketch.key), rank), first)
    for place in (key, value):
        sketch = _read_from(sketch, place, one, small, summed[0], rank)
    return sketch


def _read_from(sketch: Sketch, place: Place, old: Use, new: Use, leg: str, rank: str) -> Sketch:
    """A projection that reads the latent in the place of its source."""
    step, made = sketch.step[place.step], sketch.tensors[place.use.name]
    position = place.use.legs.index(leg)
    legs = (*made.legs[:position], rank, *made.legs[position + 1 :])
    weight = Use(place.use.name, (*place.use.legs[:position], rank, *place.use.legs[position + 1 :]))
    assert isinstance(step.op, Contraction)
    term = step.op.terms[place.term]
    factors = tuple({old: new, place.use: weight}.get(use, use) for use in term.factors)
    terms = list(step.op.terms)
    terms[place.term] = replace(term, factors=factors)
    sketch = sketch.with_tensor(place.use.name, Declared(made.role, legs, made.rest))
    return sketch.with_step(replace(step, op=Contraction(tuple(terms))))
