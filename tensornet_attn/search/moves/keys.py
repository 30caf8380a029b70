"""Moves on the softmax and its keys: mixtures of keys, kernels, near and far fields, and fast weights."""

from __future__ import annotations

from functools import partial

from tensornet_attn.graph.attention import SoftmaxOfScores, weighting_of
from tensornet_attn.graph.graph import Box, Contraction, Function, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Binary, parse
from tensornet_attn.ir.steps import minus, plus, without
from tensornet_attn.ops import OPS
from tensornet_attn.search.moves.scores import plain_product, set_scale, summed_legs
from tensornet_attn.search.roles import AttentionMap, chain, heads, only, projection, reader, source
from tensornet_attn.search.sketch import Legs, Sketch, added, mapped, need, product, relabel, slot_of, swapped, wire

WAYS = ("gaussian", "products", "hard")
KEYS = ("own", "shifted")
FEATURES = ("elu1", "elu1_neg", "exp", "softplus", "tanh")
SIDES = ("both", "past")


def mixture(sketch: Sketch, at: AttentionMap, r: int, way: str, keys: str) -> None:
    """softmax(c Q[n h d] K[m h d] -> h n m)  becomes the softmax of L, a logarithm of r summed probabilities:

    products  L = logsumexp_r(logpi[h r] + c Q[n h d] K[m r h d])
    gaussian  L = logsumexp_r(logpi[h r] + c Q[n h d] K[m r h d] - 1/2 c K[m r h d] K[m r h d])
    hard      L = max_r(c Q[n h d] K[m r h d] - 1/2 c K[m r h d] K[m r h d])

    With a kernel's normaliser, a prior blends the r features instead. The r keys have separate projections (`own`), or
    one projection and r learned shifts (`shifted`).
    """
    key_weight = need(projection(sketch, at.key))
    names, readers = chain(sketch, at.key), sketch.readers()
    alone = all(readers[name] == [after] for name, after in zip(names, (at.scores, *names), strict=False))
    need(r >= 2 and alone)  # only the scores of this map read the keys
    leg = sketch.leg("r", r)
    if keys == "own":
        sketch.grow([*names, key_weight.use.name], leg)
    else:
        legs = (key_leg for key_leg in sketch.step[names[-1]].legs if key_leg != sketch.key)
        shift = sketch.weight("b", (leg, *legs), "normal(1)")
        sketch.grow(names, leg)
        step = sketch.step[names[-1]]
        shifted = Contraction((*sketch.step[step.name].terms, plus(shift)))
        sketch.step[step.name] = Step(step.name, shifted, step.legs)
    if OPS[sketch.box_of(at.box).kind].divides_by_sum:
        _blend(sketch, at, leg)
    else:
        need(plain_product(sketch, at) and summed_legs(sketch, at))
        _sum_up(sketch, at, leg, way)


def _key(sketch: Sketch, at: AttentionMap) -> Use:
    """The use of the key in the scores, with its current legs."""
    return next(use for use in sketch.step[at.scores].terms[at.term].factors if use.name == at.key.name)


def _blend(sketch: Sketch, at: AttentionMap, leg: str) -> None:
    """phiK[m r h d]  becomes  pi[h r] phiK[m r h d] -> m h d, with pi = softmax_r(logits)."""
    key, legs = _key(sketch, at), sketch.step[at.scores].legs
    logits = sketch.weight(
        "logits", (*(key_leg for key_leg in at.key.legs if key_leg in legs and key_leg != sketch.key), leg), "zeros"
    )
    box = Box("softmax", leg, (("of", logits),), (("scale", ONE), ("dropout", parse(0))))
    prior = sketch.put("pi", logits.legs, at.scores, box)
    blend = sketch.put("Kmix", (key_leg for key_leg in key.legs if key_leg != leg), at.scores, product(prior, key))
    sketch.refactor(at.scores, swapped(key, blend), at.term)


def _sum_up(sketch: Sketch, at: AttentionMap, leg: str, way: str) -> None:
    """Adds the terms of the mixture to the scores, and a box over r before the softmax."""
    step, scale, key = sketch.step[at.scores], sketch.box_of(at.box).number("scale"), _key(sketch, at)
    (term,) = sketch.step[at.scores].terms
    heads = [score_leg for score_leg in step.legs if score_leg in at.key.legs and score_leg != sketch.key]
    terms = [Term(scale, term.factors)]
    if way != "hard":
        terms.insert(0, plus(sketch.weight("logpi", (*heads, leg), "zeros")))
    if way != "products":  # 1/2 c |K|^2, for each key of a position
        half = product(key, key, times=Binary("*", parse(0.5), scale))
        terms.append(minus(sketch.put("k2", (str(sketch.key), *heads, leg), at.scores, half)))
    ends = (sketch.query, sketch.key)
    legs = tuple(sorted((*step.legs, leg), key=lambda score_leg: (score_leg in ends, score_leg == leg)))
    sketch.step[at.scores] = Step(step.name, Contraction(tuple(terms)), legs)
    inner = Box("max" if way == "hard" else "logsumexp", leg, (("of", Use(step.name, legs)),))
    total = sketch.put("S", step.legs, at.box, inner)
    sketch.rebox(at.box, operands=(("of", total), *sketch.box_of(at.box).operands[1:]))
    set_scale(sketch, at.box, ONE)


def kernel(sketch: Sketch, at: AttentionMap, map: str) -> None:
    """softmax(c Q K)  becomes  normalize(phi(Q) phi(K)); softplus is applied to weights that mix the scores."""
    box = _softmax(sketch, at)
    scores, inside = _features(sketch, at, map, "", at.scores), sketch.step[at.scores]
    sketch.step[at.scores] = Step(at.scores, scores, inside.legs)
    normaliser = _normalise(box, map, box.of, box.masks)
    sketch.step[at.box] = Step(at.box, normaliser, sketch.step[at.box].legs)


def _normalise(like: Box, map: str, of: Use, masks: tuple[Function, ...] = ()) -> Box:
    """A normalize box, with a small eps for features of both signs."""
    return Box("normalize", like.leg, (("of", of),), (("eps", parse(1e-6 if map == "tanh" else 0)),), masks)


def _softmax(sketch: Sketch, at: AttentionMap) -> Box:
    """The softmax of a map. Raises Nowhere unless a kernel can replace it.

    Its operand must be a single product in which only query and key have sequence legs.
    """
    box, term = sketch.box_of(at.box), need(only(sketch.step[at.scores].terms))
    others = [use for use in term.factors if use not in (at.query, at.key)]
    weighting = weighting_of(sketch.step[at.box], sketch.key)
    need(isinstance(weighting, SoftmaxOfScores) and weighting.sink is None and box.uses[0].name == at.scores)
    need(not any({sketch.query, sketch.key} & {*use.legs} for use in others))
    return box


def _features(sketch: Sketch, at: AttentionMap, map: str, number: str, before: str) -> Contraction:
    """Adds phi(Q) and phi(K) before a step, and returns the product of the scores with them."""
    features: dict[Use, Use] = {}
    (term,) = sketch.step[at.scores].terms
    for use in term.factors:
        name, function = {at.query: ("phiQ", map), at.key: ("phiK", map)}.get(use, ("mixture", "softplus"))
        origin = Use(use.name, sketch.legs_of(use.name))
        features[use] = Use(sketch.put(f"{name}{number}", origin.legs, before, mapped(function)(origin)).name, use.legs)
    return product(*(features[use] for use in term.factors), times=term.coefficient)


def split(sketch: Sketch, at: AttentionMap, band: int, maps: str, side: str) -> None:
    """A = softmax(Q K)  becomes  blend1[h] near + blend2[h] far1 + ..., each blend a learned sigmoid:

    near  the softmax over a band of `band` diagonals, on both sides of the query or only before it
    far1  normalize(phi(Q) phi(K)) over all keys, one for each of `maps`, which are separated by +
    """
    box, legs = _softmax(sketch, at), sketch.step[at.box].legs
    need(not box.masks)
    k = sketch.setting("k", band)
    reach, rest = (parse(f"({k} - 1) // 2"), ()) if side == "both" else (parse(f"{k} - 1"), (parse(0),))
    mask = Function("band" if side == "both" else "window", (reach, *rest))
    near = sketch.put("near", legs, at.box, Box(box.kind, box.leg, box.operands, box.numbers, (mask,)))
    first, second = _blends(sketch, heads(sketch, at), at.box)
    fields = [(first, near)]
    for count, map in enumerate(maps.split("+"), 1):
        scores = _features(sketch, at, map, str(count), at.box)
        far = sketch.put(f"far{count}", legs, at.box, scores, partial(_normalise, box, map))
        fields.append((second, far))
    sketch.step[at.box] = Step(at.box, added(*fields), legs)
    if at.scores == f"{at.box}.of":
        sketch.rename({at.scores: f"{near.name}.of"})


def _blends(sketch: Sketch, legs: Legs, before: str) -> list[Use]:
    """The blend weights of near and far field: sigmoids of one parameter per head, initially 0.5 and 0.73."""
    weights = [sketch.weight(f"w{count}", legs, init) for count, init in ((1, "zeros"), (2, "ones"))]
    return [sketch.put(f"blend{n}", legs, before, mapped("sigmoid")(use)) for n, use in enumerate(weights, 1)]


def delta(sketch: Sketch, at: AttentionMap, map: str) -> None:
    """O: A[h n m] V[m h e]  becomes  O: blend1[h] near[n h e] + blend2[h] far[n h e], far read from fast weights.

    Keys and queries are those of the map after a feature map, divided by their sum; the rate is a sigmoid of a
    projection of the keys' source. The values get a separate leg if they share one with the keys. The design becomes
    causal, like fast weights.
    """
    map_reader, source_use = need(reader(sketch, at.box)), need(source(sketch, need(projection(sketch, at.key))))
    leg, query, key = need(only(summed_legs(sketch, at))), str(sketch.query), str(sketch.key)
    heads = without(map_reader.map.legs, query, key)
    need(
        sketch.head.get("causal") is not False
        and {*heads} <= {*map_reader.value.legs}
        and chain(sketch, map_reader.value)
    )
    need({*at.query.legs} == {query, *heads, leg} and {*at.key.legs} == {key, *heads, leg})
    if leg in map_reader.value.legs:
        values = wire(sketch, [slot_of(map_reader.value, leg)])
        need(not {at.key.name, at.query.name} & values.owners)
        relabel(sketch, (values, (sketch.leg("e", leg),)))
        map_reader = need(reader(sketch, at.box))
    legs = (
        query,
        *heads,
        need(only(value_leg for value_leg in map_reader.value.legs if value_leg not in (*heads, key))),
    )
    near = sketch.put("near", legs, map_reader.step, product(map_reader.map, map_reader.value))
    far = _fast_weights(sketch, at, source_use, heads, leg, map_reader.value, map, map_reader.step)
    first, second = _blends(sketch, heads, map_reader.step)
    read = sketch.put("O", legs, map_reader.step, added((first, near), (second, far)))
    replaced = (map_reader.map, map_reader.value)
    sketch.refactor(
        map_reader.step, lambda factors: (read, *(use for use in factors if use not in replaced)), map_reader.term
    )
    sketch.head["causal"] = True


def _fast_weights(
    sketch: Sketch, at: AttentionMap, source_use: Use, heads: Legs, leg: str, value: Use, map: str, before: str
) -> Use:
    """Adds the delta rule with its features and rate, and returns its use."""

    def divided(use: Use) -> Box:
        return Box("l1norm", leg, (("of", use),), (("eps", parse(0)),))

    query, key = (
        sketch.put(f"fast{name}", use.legs, before, mapped(map)(use), divided)
        for name, use in (("Q", at.query), ("K", at.key))
    )
    weight = sketch.weight("Wb", (*without(source_use.legs, sketch.key), *heads))
    rate = sketch.put("rate", (str(sketch.key), *heads), before, product(source_use, weight), mapped("sigmoid"))
    operands = (("query", query), ("key", key), ("value", value), ("rate", rate))
    rule = Box("delta_rule", sketch.key, operands, (("eps", parse(0)),), mode="read")
    return sketch.put(
        "far", (str(sketch.query) if value_leg == sketch.key else value_leg for value_leg in value.legs), before, rule
    )
