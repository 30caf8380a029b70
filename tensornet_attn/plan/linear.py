"""Linear attention: boxes without a softmax whose scores are products of query and key features sum the keys first.

So does a softmax whose scores compare nothing, a mean of values weighted by numbers of the keys.

# A.of = Q K;  A = normalize over m of A.of;  y = A V Wo     ->     A.o = linear(Q, K, V);  y = A.o Wo
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

from tensornet_attn.cost.devices import DEVICES, Device
from tensornet_attn.cost.linear import Legs, causal, chunk_of, linear_of, linear_work, mixed_legs
from tensornet_attn.cost.scene import Scene
from tensornet_attn.graph.model import Box, Contraction, Function, Graph, Kernel, Step, Tensor, Term, Use
from tensornet_attn.plan.decay import EXP, Decay, decay_alone, decay_of, decay_sides, softmax_of
from tensornet_attn.plan.figures import counted, instead
from tensornet_attn.plan.lowering import Lowered
from tensornet_attn.plan.order import order
from tensornet_attn.plan.powers import WrittenOut, written_out
from tensornet_attn.rewrite.change import fresh, with_steps, without_dead
from tensornet_attn.rewrite.distance import with_places
from tensornet_attn.spec.arithmetic import ONE, Number

LINEAR = "linear attention"
DENSE = "with a mask at run time the scores are made"
CAUSAL = Function("causal")
PLAIN = (("scale", ONE), ("dropout", Number(0)))


@dataclass(frozen=True)
class Pattern:
    """A box with the sum of products that makes its scores and the product that reads it."""

    scores: Step
    box: Step
    reader: Step
    term: int  # of the reader's terms
    value: Use
    decays: tuple[Decay, ...] = ()  # factors of the scores

    @property
    def alone(self) -> bool:
        """Whether the scores are no more than numbers of keys."""
        return isinstance(self.box.op, Box) and self.box.op.kind == "softmax"

    @property
    def decayed(self) -> set[str]:
        return {decay.box.name for decay in self.decays}


def lower_linear(graph: Graph, sizes: Mapping[str, int], device: Device, decay: float = 1) -> Lowered:
    """Every normalize and keep box over keys that allows it, where it takes fewer multiply-adds than the scores.

    `decay`: how many times fewer they must be where scores have factors exp(a - b) of query and key, or a softmax has
    nothing else: more than 1 where there are kernels for the scores, and none for that.
    """
    lowered, chosen, refused = graph, dict[str, str](), dict[str, tuple[str, ...]]()
    for box in boxes_over_keys(graph, "softmax"):
        alone = _of_keys(lowered, box)
        made = "" if alone is None else _priced(WrittenOut(lowered, ()), alone, sizes, decay)
        if not isinstance(made, str):
            lowered, chosen[f"{box.name}.o"] = made
    for box in linear_boxes(graph):
        made = _lowered(lowered, box, sizes, decay)
        if isinstance(made, str):
            refused[box.name] = (made,)
        else:
            lowered, chosen[f"{box.name}.o"] = made
    for box in boxes_over_keys(graph, "sum"):
        as_map, keep = _as_map(lowered, lowered.step[box.name])
        made = _lowered(as_map, keep, sizes, decay, decayed=True)
        if not isinstance(made, str):
            lowered, chosen[f"{keep.name}.o"] = made
    return Lowered(lowered, chosen, refused)


def _lowered(
    graph: Graph, box: Step, sizes: Mapping[str, int], decay: float, decayed: bool = False
) -> tuple[Graph, str] | str:
    """The graph that sums the keys of a map first and the sentence for it, or why not; perhaps only if scores decay."""
    opened = _opened(graph, box)
    found = opened if isinstance(opened, str) else match(opened.graph, box)
    if isinstance(found, str):
        return found
    assert isinstance(opened, WrittenOut)
    if decayed and not found.decays:
        return "the scores do not decay"
    return _priced(opened, found, sizes, decay if found.decays else 1)


def _as_map(graph: Graph, box: Step) -> tuple[Graph, Step]:
    """A sum of scores over the keys as a map that reads ones: sum over m of S -> A = keep over m of S; A ones[m]."""
    assert isinstance(box.op, Box)
    of, key = box.op.operand("of"), str(graph.key)
    one = Tensor(fresh(graph, f"{box.name}.{key}"), "constant", (key,), Function("ones"))
    keep = Step(fresh(graph, f"{box.name}.kept"), replace(box.op, kind="keep", numbers=()), of.legs)
    read = replace(box, op=Contraction((Term(ONE, (Use(keep.name, keep.legs), Use(one.name, one.legs))),)))
    return with_steps(with_places(graph, (one,)), {box.name: [keep, read]}), keep


def linear_boxes(graph: Graph) -> list[Step]:
    """The normalize and keep boxes over the key leg that compare it with a query."""
    return boxes_over_keys(graph, "normalize", "keep")


def boxes_over_keys(graph: Graph, *kinds: str) -> list[Step]:
    boxes = [step for step in graph.steps if graph.masked(step) and graph.query in step.legs]
    return [step for step in boxes if isinstance(step.op, Box) and step.op.kind in kinds]


def _of_keys(graph: Graph, box: Step) -> Pattern | None:
    """The pattern around a softmax whose scores compare nothing: a mean of values, weighted by numbers of the keys."""
    assert isinstance(box.op, Box)
    decay = softmax_of(graph, box, CAUSAL in graph.masks(box))
    if decay is None or box.op.number("dropout") != Number(0) or any(mask != CAUSAL for mask in graph.masks(box)):
        return None
    found = _read(graph, decay.of, box)
    once = sum(use.name == decay.of.name for _, use in graph.uses()) == 1
    if isinstance(found, str) or not once or {decay.of.name, box.name} & graph.results:
        return None
    return replace(found, decays=(decay,))


def _opened(graph: Graph, box: Step) -> WrittenOut | str:
    """The graph in which the scores of a box are no polynomial of others, and nothing else reads what they decay by."""
    of = box.op.operand("of")  # type: ignore[union-attr]
    opened = written_out(graph, of) or WrittenOut(graph, ())
    return opened if isinstance(opened, str) else replace(opened, graph=decay_alone(opened.graph, of.name))


def match(graph: Graph, box: Step) -> Pattern | str:
    """The pattern around a box, or the first reason why there is none."""
    assert isinstance(box.op, Box)
    of = box.op.operand("of")
    scores, uses = graph.step.get(of.name), Counter(use.name for _, use in graph.uses())
    kept = graph.results
    if scores is not None and isinstance(scores.op, Box) and scores.op.function == EXP:
        scores = Step(f"{box.name}.f", Contraction((Term(ONE, (of,)),)), of.legs)  # all that is there decays
        box = replace(box, op=replace(box.op, operands=(("of", Use(scores.name, of.legs)),)))
    elif scores is None or not isinstance(scores.op, Contraction) or of.legs != scores.legs:
        return f"the scores are {_what(scores)}, not a sum of products"
    if uses[of.name] > 1 or {of.name, box.name} & kept:
        return "the scores or the attention map are used elsewhere too"
    both = dict.fromkeys(use for use in scores.op.uses if {graph.query, graph.key} <= {*use.legs})
    decays = [decay_of(graph, scores, use, CAUSAL in graph.masks(box)) for use in both]
    reason = next((decay for decay in decays if isinstance(decay, str)), None)
    if reason is not None:
        return reason
    mask = next((mask for mask in graph.masks(box) if mask != CAUSAL), None)
    if mask is not None:
        return f"a sum over all keys cannot leave out those that '{mask.name}' hides"
    found = _read(graph, scores, box)
    return found if isinstance(found, str) else _decay(graph, replace(found, decays=tuple(decays)))  # type: ignore[arg-type]


def _decay(graph: Graph, found: Pattern) -> Pattern | str:
    """The pattern with decay scores, or why they cannot be summed first."""
    for term, plain in zip(found.scores.op.terms, _plain(found), strict=True):  # type: ignore[union-attr]
        sides = [{leg for use in plain if own in use.legs for leg in use.legs} for own in (graph.query, graph.key)]
        features = (sides[0] & sides[1]) - {*found.box.legs}
        for use in term.factors:
            summed = {*use.legs} - {*found.box.legs} if use.name in found.decayed else set[str]()
            if summed and summed != features:
                return f"'{use.name}' decays along {_listed(summed)}, and the scores sum {_listed(features)}"
    if found.decays and mixed_legs(graph, found.box.legs, _factors(found.scores), found.value):
        return "heads are mixed between decay scores and values"
    return found


def _listed(legs: set[str]) -> str:
    return " and ".join(f"'{leg}'" for leg in sorted(legs)) or "no leg of both"


def _factors(scores: Step) -> list[tuple[Use, ...]]:
    return [term.factors for term in scores.op.terms]  # type: ignore[union-attr]


def _plain(found: Pattern) -> list[tuple[Use, ...]]:
    """The factors of each term of the scores that do not decay."""
    return [tuple(use for use in own if use.name not in found.decayed) for own in _factors(found.scores)]


def _what(scores: Step | None) -> str:
    if scores is None:
        return "given"
    return f"a '{scores.op.kind}' box" if isinstance(scores.op, Box) else "transposed"


def _read(graph: Graph, scores: Step, box: Step) -> Pattern | str:
    """The pattern with the product that reads the map."""
    readers = [(step, use) for step, use in graph.uses() if use.name == box.name]
    if len(readers) != 1:
        return f"the attention map is used {len(readers)} times"
    reader, use = readers[0]
    if not isinstance(reader.op, Contraction):
        return "a box stands between map and values"
    if use.legs != box.legs:
        return "the attention map is used under other leg names"
    if graph.key in reader.legs:
        return "the key leg stays beside the attention map"
    place = next(i for i, term in enumerate(reader.op.terms) if use in term.factors)
    values = tuple(own for own in reader.op.terms[place].factors if own != use and graph.key in own.legs)
    if len(values) != 1:
        return f"along the key leg the attention map meets {len(values)} tensors"
    if graph.query in values[0].legs:
        return "the values depend on the query"
    return Pattern(scores, box, reader, place, values[0])


def _priced(opened: WrittenOut, found: Pattern, sizes: Mapping[str, int], times: float) -> tuple[Graph, str] | str:
    """The graph that sums the keys first and the sentence for it, or why the scores are cheaper."""
    graph = opened.graph
    made = reassociated(graph, found)
    kernel = made.step[f"{found.box.name}.o"]
    known = {leg.name: leg.size or 1 for leg in graph.legs} | dict(sizes)
    work = linear_work(Scene(made, known), kernel)
    linear = sum(count * prod(known[leg] for leg in legs) for legs, count in work.items())
    dense = _dense(kernel, opened.steps, known)
    if times > 1 and linear * times > dense:
        beside = f"it would take {instead(linear, dense, counted)}"
        return f"its kernels know no scores that decay, as by '{found.decays[0].box.name}'; with torch {beside}"
    if linear > dense:
        return f"summing over the keys first would cost {instead(linear, dense, counted)}"
    parts = linear_of(made, kernel)
    how = f", in chunks of {chunk_of(made, parts, sizes)}" if causal(made, parts) else ""
    how += ", powers of scores written out" if opened.steps else ""
    delta = any(isinstance(step.op, Box) and step.op.kind == "delta_rule" for step in graph.steps)  # it takes no mask
    decay = "".join(f", decayed by '{decay.box.name}'" for decay in found.decays if not found.alone)
    decay += ", their weights being numbers of their own" if found.alone else ""
    return made, f"{LINEAR}: the keys are summed first{how}{decay}" + ("" if delta else f"; {DENSE}")


def _dense(kernel: Step, before: Sequence[Step], known: Mapping[str, int]) -> int:
    """The multiply-adds of the same with scores, in the best order; `before`: the steps that made them, if others."""
    assert isinstance(kernel.op, Kernel)
    scores, box, product = kernel.op.body[-3:]
    found = prod(known[leg] for leg in {*box.legs, *product.op.uses[1].legs})
    for step in before or (scores,):
        for term in step.op.terms if isinstance(step.op, Contraction) else ():
            legs = [use.legs for use in term.factors]
            if len(legs) > 1:
                result = tuple(leg for leg in step.legs if any(leg in own for own in legs))
                found += order(legs, result, known, DEVICES["flops"]).flops // 2
    return found


def reassociated(graph: Graph, found: Pattern) -> Graph:
    """The graph with the box, its scores and the product with the values as one kernel."""
    box, value, before = found.box, found.value, list[Step]()
    scores = found.scores if found.alone else canonical(graph, found, before)
    places = {tensor.name: tensor for decay in found.decays for tensor in decay.places}
    graph = with_places(graph, tuple(places.values()))
    decay = [decay_sides(graph, decay, f"{box.name}.{decay.box.name}", before) for decay in found.decays]
    legs = tuple(leg for leg in box.legs if leg != graph.key)
    legs += tuple(leg for leg in value.legs if leg not in box.legs)
    name = f"{box.name}.o"
    if found.alone and isinstance(box.op, Box):
        ((scores, _),), decay = decay, []
        box = replace(box, op=replace(box.op, operands=(("of", Use(scores.name, scores.legs)),), numbers=PLAIN))
    body = (*chain(*decay), scores, box, Step(name, Contraction((Term(ONE, (Use(box.name, box.legs), value)),)), legs))
    before.append(Step(name, Kernel("linear", outside(graph, before, body), body), legs))
    reader = _reading(found, Use(name, legs), before)
    steps = [part for step in graph.steps for part in ([*before, reader] if step.name == reader.name else [step])]
    gone = {scores.name, box.name, *(step.name for decay in found.decays for step in (decay.of, decay.box))}
    graph = replace(graph, steps=tuple(step for step in steps if step.name not in gone))
    return without_dead(graph, (use.name for decay in found.decays for use in decay.of.op.uses)) or graph


def _reading(found: Pattern, result: Use, before: list[Step]) -> Step:
    """The reader of the map as a reader of the result; legs that it alone sums are summed `before`."""
    terms = list(found.reader.op.terms)  # type: ignore[union-attr]
    factors = [use for use in terms[found.term].factors if use != found.value]
    needed = {*found.reader.legs, *(leg for use in factors if use.name != found.box.name for leg in use.legs)}
    legs = tuple(leg for leg in result.legs if leg in needed)
    if legs != result.legs:
        before.append(Step(f"{found.box.name}.s", Contraction((Term(ONE, (result,)),)), legs))
        result = Use(f"{found.box.name}.s", legs)
    new = tuple(result if use.name == found.box.name else use for use in factors)
    terms[found.term] = replace(terms[found.term], factors=new)
    return replace(found.reader, op=Contraction(tuple(terms)))


def outside(graph: Graph, before: Sequence[Step], body: Sequence[Step]) -> tuple[Use, ...]:
    """What the body reads from outside, each tensor once under its own leg names."""
    own, made = {step.name for step in body}, {step.name: step.legs for step in before}
    names = dict.fromkeys(use.name for step in body for use in step.op.uses if use.name not in own)
    return tuple(Use(name, made[name] if name in made else graph.legs_of(name)) for name in names)


def canonical(graph: Graph, found: Pattern, before: list[Step]) -> Step:
    """The scores with at most one factor a side in each term, and one core where cores mix heads.

    What is made for that is put `before`. Where no core mixes heads, free factors go into the query side.
    """
    box, scores, terms = found.box, found.scores, []
    written = scores.op.terms  # type: ignore[union-attr]
    plain = _plain(found)
    mixed = mixed_legs(graph, box.legs, _factors(scores), found.value)
    for i, (term, factors) in enumerate(zip(written, plain, strict=True)):
        number = "" if len(written) == 1 else str(i + 1)
        sides = [[use for use in factors if leg in use.legs] for leg in (graph.query, graph.key)]
        free = [use for use in factors if not {graph.query, graph.key} & {*use.legs}]
        if sides[0] and not any({*mixed} & {*use.legs} for use in free):
            sides[0], free = sides[0] + free, []
        uses: list[Use] = []
        for letter, own in zip("qkc", (*sides, free), strict=True):
            others = {leg for use in term.factors if use not in own for leg in use.legs}
            if own:
                name = fresh(graph, f"{box.name}.{letter}{number}")  # absorption calls its queries so
                uses.append(_joined(name, own, others | {*box.legs}, mixed, before))
        uses += [use for use in term.factors if use.name in found.decayed]
        terms.append(Term(term.coefficient, tuple(uses)))
    return replace(scores, op=Contraction(tuple(terms)))


def _joined(name: str, uses: Sequence[Use], needed: set[str], last: Legs, before: list[Step]) -> Use:
    """One use for several: their product with the legs that are needed, in a step of its own if anything is done."""
    legs = tuple(dict.fromkeys(leg for use in uses for leg in use.legs if leg in needed))
    if len(uses) == 1 and legs == uses[0].legs:
        return uses[0]
    legs = tuple(sorted(legs, key=lambda leg: leg in last))
    before.append(Step(name, Contraction((Term(ONE, tuple(uses)),)), legs))
    return Use(name, legs)
