"""Sums over keys as states that decoding carries from chunk to chunk; the size of a state is independent of the length.

# A = keep over m of q k;  o = A v     ->     o = A v + q past;  state = past + sum over the chunk of k v
# s = sum over m of q k                ->     s = the same + q past;  state = past + sum over the chunk of k

In a step, a chunk of one position (`stepwise`), queries read the new state: o = q state;  state = past + k v. The row
sums of normalised maps are carried the same way. `m` then has the positions of the chunk alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod

from tensornet_attn.cost.target import TRAINING
from tensornet_attn.graph.attention import (
    Legs,
    MapReader,
    NormalizedScores,
    ScoreTerm,
    SoftmaxOfScores,
    attentions,
    behind,
)
from tensornet_attn.graph.diagram import producer_of
from tensornet_attn.graph.distance import POSITION, negated, with_places
from tensornet_attn.graph.graph import Box, Contraction, Function, Graph, Leg, Step, Tensor, Term, Use
from tensornet_attn.graph.recurrence import (
    EXP,
    ONES,
    Decay,
    Recurrence,
    cumulative,
    erases,
    linear,
    scans,
    sums,
)
from tensornet_attn.ir.arithmetic import ONE, Negative, Number
from tensornet_attn.ir.steps import minus, plus, without
from tensornet_attn.kernels.linear import LINEAR, with_own_scores
from tensornet_attn.ops.conv import convolves, hides_rows
from tensornet_attn.ops.delta_rule import legs_of
from tensornet_attn.rewrite.change import fresh, leg_like, with_legs, with_steps, with_uses, without_dead

TINY = Number(1e-30)  # added to a sum that is at least 1 if any key is visible
HIDDEN = 1e30  # offset of a hidden key's exponent, and the level before the first key; parts never run in float16
PLACE = "chunk.place"  # an input [n]: the number of a position in the chunk, from 1
VISIBLE = "chunk.visible"  # an input [n]: 1, or 0 if the key mask of the call hides the position


@dataclass(frozen=True)
class CarriedGraph:
    """A graph with states. `states`: the step that computes each new state, by the input that holds the old one.

    `boxes`: the carried maps, sums, delta rules and scans. `levels`: the inputs that start at `HIDDEN`. `reasons`: why
    a map or sum over keys has no state. `stepwise`: chunks have one position, which is visible.
    """

    graph: Graph
    states: dict[str, str] = field(default_factory=dict)
    boxes: frozenset[str] = frozenset()
    levels: frozenset[str] = frozenset()
    reasons: dict[str, str] = field(default_factory=dict)
    stepwise: bool = False


def carried(graph: Graph, stepwise: bool = False) -> CarriedGraph:
    """The graph with a state for each map, sum over keys, delta rule and scan that a state can carry."""
    recurrent = CarriedGraph(graph, stepwise=stepwise)
    for name, attention in attentions(graph).items():
        if attention.compares and name in attentions(recurrent.graph):
            form = LINEAR.form(recurrent.graph, name)
            opened = recurrent.graph if form is None else form.opened
            recurrence = linear(attention) if form is None else form.recurrence
            recurrent = _carry(recurrent, name, opened, recurrence, graph)
    for step in sums(graph):
        assert step.box is not None
        opened = with_own_scores(recurrent.graph, step.box.of)
        recurrent = _carry(recurrent, step.name, opened, cumulative(opened, opened.step[step.name]), graph)
    for name in [step.name for step in graph.steps if erases(step)]:
        recurrent = _delta(recurrent, recurrent.graph.step[name])
    for name in [step.name for step in graph.steps if scans(step)]:
        recurrent = _scan(recurrent, recurrent.graph.step[name])
    wanted = behind(recurrent.graph, [graph.output, *recurrent.states.values()])
    steps = tuple(step for step in recurrent.graph.steps if step.name in wanted or not stepwise)
    return replace(recurrent, graph=replace(recurrent.graph, steps=steps))


def of_last(recurrent: CarriedGraph) -> CarriedGraph:
    """Lets convolutions read keys, the last of which belong to the chunk, and return values of the chunk's queries.

    # c[n] = conv over n of x[n]     ->     c[n] = conv of x[m], its last entries
    """
    graph, changed = recurrent.graph, dict[str, list[Step]]()
    steps = [step for step in graph.steps if convolves(step.box)]
    key = graph.key or leg_like(graph, "m", 1, "key", graph.leg).name
    for step in (step for step in steps if not {graph.query, key} <= {*step.legs}):
        assert step.box is not None
        use, leg = step.box.of, step.box.leg
        of = Use(use.name, tuple(key if name == leg else name for name in use.legs))
        legs = tuple(graph.query if name == leg else name for name in step.legs)
        box = replace(step.box, leg=key if hides_rows(graph, step.box) else leg, operands=(("of", of),))
        changed[step.name] = [replace(step, op=box, legs=legs)]
        source = producer_of(graph, use)
        if source is not None and source.contraction is not None:
            changed |= {source.name: _with_copies(graph, source, str(leg))}
    if changed:
        graph = with_legs(with_steps(graph, changed), [] if graph.key else [Leg(key, "key", None)])
    return replace(recurrent, graph=graph)


def _with_copies(graph: Graph, step: Step, leg: str) -> list[Step]:
    """A product that reads copies of the inputs with a leg; a cache stores results, and inputs are not results."""
    inputs = {tensor.name for tensor in graph.of_role("input")}
    uses = dict.fromkeys(use for use in step.uses if use.name in inputs and leg in use.legs)
    names = {use: Use(fresh(graph, f"{step.name}.{use.name}"), use.legs) for use in uses}
    copies = [Step(new.name, Contraction.of(use), new.legs) for use, new in names.items()]
    return [*copies, with_uses(step, lambda use: names.get(use, use))]


def _carry(
    recurrent: CarriedGraph, box: str, opened: Graph, recurrence: Recurrence | str, written: Graph
) -> CarriedGraph:
    """The graph with a recurrence carried, or with the reason why it is not.

    States of powers of scores, whose features have legs that the graph as `written` lacks, may have more elements than
    a cache of all keys; then the keys are kept.
    """
    if not isinstance(recurrence, str):
        carry = _sum if recurrence.value is None else _mean if recurrence.alone else _map
        after = carry(replace(recurrent, graph=opened), recurrence)
        sizes = {leg.name: leg.size or 1 for leg in after.graph.legs} | dict(TRAINING.sizes(opened))
        values = (recurrence.value,) if recurrence.value else ()
        keys = {use.name: use.legs for term in recurrence.terms for use in (*term.key, *values)}
        states = [after.graph.legs_of(name) for name in after.states.keys() - recurrent.states.keys()]
        in_states, in_keys = (
            sum(prod(sizes[leg] for leg in legs) for legs in held) for held in (states, keys.values())
        )
        features = {leg for term in recurrence.terms for use in term.key for leg in use.legs}
        if features <= written.leg.keys() or in_states <= in_keys:
            return after
        recurrence = f"a state of {in_states:,} elements is larger than {sizes[str(opened.key)]:,} keys and values"
    return replace(recurrent, reasons=recurrent.reasons | {box: recurrence})


@dataclass(frozen=True)
class _Level:
    """The common scale of the past where scores decay: exp(level - b) of each key is summed; level: the least b so far.

    A query reads the sum times `read` = exp(`since`), since = a - level before the chunk. If the chunk lowers the
    level, the old sum is multiplied by `fall` = exp(new - old level). Each key counts exp(level - b), `keys`.
    """

    since: Use
    read: Use
    fall: Use
    keys: Use


@dataclass
class _BoxStates:
    """The states of one box: the inputs that hold them, and the steps that update them."""

    graph: Graph
    box: Step
    decays: tuple[Decay, ...] = ()
    stepwise: bool = False  # whether queries read the new states, those after the only key of the chunk
    tensors: list[Tensor] = field(default_factory=list)
    before: list[Step] = field(default_factory=list)  # steps with which queries read the states
    steps: list[Step] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)  # new legs of features, by the leg of values with that name
    state_of_sum: dict[tuple[Use, ...], Use] = field(
        default_factory=dict
    )  # the state that holds the sum of these products
    levels: dict[tuple[Use, ...], _Level] = field(default_factory=dict)
    largest: set[str] = field(default_factory=set)

    @property
    def query(self) -> str:
        return self.graph.query

    def read(self, term: ScoreTerm, value: Use | None) -> Term:
        """The part of a term that comes from the past; adds its state."""
        term = self.apart(term, value)
        level = self.level(term.pairwise) if term.pairwise else None
        keys = (*term.key, *((value,) if value else ()), *([level.keys] if level else []))
        read = [level.read] if level else []
        return Term(term.coefficient, (*term.query, *term.core, *read, self.sum(keys, level)))

    def sum(self, keys: tuple[Use, ...], level: _Level | None = None) -> Use:
        """The state that holds the sum of these products over the past."""
        if keys not in self.state_of_sum:
            pair = (self.graph.query, self.graph.key)
            legs = tuple(dict.fromkeys(leg for use in keys for leg in use.legs if leg not in pair))
            past, name = self.hold(legs)
            decayed = (past, level.fall) if level else (past,)
            terms = (Term(ONE, decayed), plus(self.visible(), *map(self.now, keys)))
            self.steps.append(Step(name, Contraction(terms), legs))
            self.state_of_sum[keys] = Use(name, legs) if self.stepwise else past
        return self.state_of_sum[keys]

    def hold(self, legs: Legs) -> tuple[Use, str]:
        """An input for a new state, and the name of the step that updates it."""
        name = fresh(self.graph, f"{self.box.name}.state{len(self.states) + 1}")
        past = Use(f"{name}.past", legs)
        self.tensors.append(Tensor(past.name, "input", legs))
        self.states[past.name] = name
        return past, name

    def visible(self) -> Use:
        """1, or 0 if the key mask of the call hides the position: [n]."""
        return Use(VISIBLE, (self.query,))

    def now(self, use: Use) -> Use:
        """The value of a key at the positions of the chunk's queries."""
        return use.renamed({str(self.graph.key): self.query})

    def level(self, pairwise: tuple[Use, ...]) -> _Level:
        """The level for these factors exp(a - b), whose exponents are added.

        Positions count within the chunk, so the stored level is shifted by the change of b at the end of the chunk.
        """
        if pairwise in self.levels:
            return self.levels[pairwise]
        by_name = {decay.box.name: decay for decay in self.decays}
        of_query = [term for use in pairwise for term in by_name[use.name].query]
        of_key = [
            negated(replace(term, factors=tuple(map(self.now, term.factors))))
            for use in pairwise
            for term in by_name[use.name].key
        ]
        legs = tuple(
            dict.fromkeys(leg for term in of_key for use in term.factors for leg in use.legs if leg != self.query)
        )
        past, name = self.hold(legs)
        self.largest.add(past.name)
        rows, position = (*legs, self.query), Use(PLACE, (self.query,))
        exponent = [self.at(term, position) for term in of_key]
        if not self.stepwise:
            invisible = Contraction((Term(ONE, ()), minus(self.visible())))
            exponent.append(Term(Number(-HIDDEN), (self.map(f"{name}.hidden", "relu", invisible, (self.query,)),)))
        b = largest = self.step(f"{name}.b", Contraction(tuple(exponent)), rows)
        end, seen, kept = position, tuple[Use, ...](), list[Term]()
        if not self.stepwise:
            largest = self.step(f"{name}.most", Box("max", self.query, (("of", b),)), legs)
            seen = (self.step(f"{name}.some", Box("max", self.query, (("of", self.visible()),)), ()),)
            none_visible = self.step(f"{name}.none", Contraction((Term(ONE, ()), minus(*seen))), ())
            kept = [plus(none_visible, past)]  # if the chunk has no visible key, the level stays
            end = self.step(f"{name}.end", Box("max", self.query, (("of", position),)), ())
        above = self.map(f"{name}.above", "relu", Contraction((minus(largest), minus(past))), legs)
        least = (minus(*seen, largest), minus(*seen, above), *kept)
        level = self.step(f"{name}.least", Contraction(least), legs)
        shifted = [self.at(term, end) for term in of_key if self.at(term, end) != term]
        self.steps.append(Step(name, Contraction((plus(level), *shifted)), legs))
        change = Contraction((plus(level), minus(past)))
        fall = self.map(f"{name}.fall", "exp", change, legs)
        keys = self.map(f"{name}.keys", "exp", Contraction((plus(level), plus(b))), rows)
        terms = [*(self.at(term, position) for term in of_query), minus(level if self.stepwise else past)]
        query_legs = tuple(dict.fromkeys(leg for term in terms for use in term.factors for leg in use.legs))
        query_legs = (*without(query_legs, self.query), self.query)
        since = Use(f"{name}.since", query_legs)
        self.before.append(Step(since.name, Contraction(tuple(terms)), query_legs))
        self.before.append(Step(f"{name}.read", Box("map", None, (("of", since),), function=EXP), query_legs))
        self.levels[pairwise] = _Level(since, Use(f"{name}.read", query_legs), fall, keys)
        return self.levels[pairwise]

    def at(self, term: Term, position: Use) -> Term:
        """A term of an exponent, evaluated at another position."""
        positions = {constant.name for decay in self.decays for constant in decay.places if constant.init == POSITION}
        return replace(term, factors=tuple(position if use.name in positions else use for use in term.factors))

    def step(self, name: str, op: Contraction | Box, legs: Legs) -> Use:
        """Adds a step of the update."""
        self.steps.append(Step(name, op, legs))
        return Use(name, legs)

    def map(self, name: str, function: str, of: Contraction, legs: Legs) -> Use:
        """Adds a map of a sum, as two steps."""
        inner = self.step(f"{name}.of", of, legs)
        return self.step(name, Box("map", None, (("of", inner),), function=Function(function)), legs)

    def apart(self, term: ScoreTerm, value: Use | None) -> ScoreTerm:
        """The term with new legs for its features if values have legs with the same names."""
        scores = self.box.uses[0].legs
        met = {leg for use in term.factors for leg in use.legs if leg not in scores} & {*(value.legs if value else ())}
        for leg in sorted(met - {*self.others}):
            old = self.graph.leg[leg]
            new = leg_like(self.graph, f"{leg}_", old.size or 1, old.kind, self.graph.leg)
            self.graph, self.others[leg] = with_legs(self.graph, [new]), new.name

        def on(uses: tuple[Use, ...]) -> tuple[Use, ...]:
            return tuple(
                Use(use.name, tuple(self.others[leg] if leg in met else leg for leg in use.legs)) for use in uses
            )

        return replace(term, query=on(term.query), key=on(term.key), core=on(term.core))

    def reads(self, own: Term, terms: Iterable[ScoreTerm], value: Use | None) -> list[Term]:
        """What queries read: the part of the chunk, and that from the past; or the new state."""
        return [*([] if self.stepwise else [own]), *(self.read(term, value) for term in terms)]

    @property
    def first(self) -> list[Step]:
        """The steps before those that read."""
        return [*(self.steps if self.stepwise else []), *self.before]

    def onto(self, recurrent: CarriedGraph, graph: Graph, masked: str) -> CarriedGraph:
        """The carried graph with these states added; `masked`: the box that remains for the chunk."""
        tensors = {tensor.name: tensor for decay in self.decays for tensor in decay.places if tensor.init != POSITION}
        tensors |= {tensor.name: tensor for tensor in self.tensors}
        tensors |= {name: Tensor(name, "input", (self.query,)) for name in (VISIBLE, PLACE)}
        with_states = with_places(with_legs(graph, self.graph.legs), tuple(tensors.values()))
        if not self.stepwise:
            with_states = replace(with_states, steps=(*with_states.steps, *self.steps))
        boxes, levels = recurrent.boxes | {masked}, recurrent.levels | {*self.largest}
        return replace(recurrent, graph=with_states, states=recurrent.states | self.states, boxes=boxes, levels=levels)


def _map(recurrent: CarriedGraph, recurrence: Recurrence) -> CarriedGraph:
    """Carries a map that is multiplied with values: the chunk's part is computed, the past comes from the state."""
    graph, name = recurrent.graph, recurrence.box.name
    attention = attentions(graph)[name]
    reader, states = (
        attention.reader(),
        _BoxStates(graph, attention.box, recurrence.decays, recurrent.stepwise and not recurrence.shifted),
    )
    assert isinstance(reader, MapReader)
    assert recurrence.value is not None
    key, box, value = str(graph.key), attention.box, recurrence.value
    assert box.box is not None
    rows = without(box.legs, key)
    legs = rows + without(value.legs, *box.legs)
    keep = replace(box, op=replace(box.box, kind="keep", numbers=()))
    map_ = Use(name, box.legs)
    read = states.reads(plus(map_, value), recurrence.terms, value)
    before = [Step(f"{name}.read", Contraction(tuple(read)), legs)]
    factors: tuple[Use, ...] = (Use(f"{name}.read", legs),)
    tensors: tuple[Tensor, ...] = ()
    if isinstance(attention.weighting, NormalizedScores):
        ones = Tensor(fresh(graph, f"{name}.{key}"), "constant", (key,), ONES)
        tensors, eps = (ones,), attention.weighting.eps
        terms = states.reads(plus(map_, ones.use), recurrence.terms, None)
        terms += [] if eps == Number(0) else [Term(eps, ())]
        of = Use(f"{name}.sums", rows)
        before.append(Step(of.name, Contraction(tuple(terms)), rows))
        before.append(Step(f"{name}.rows", Box("map", None, (("of", of),), function=Function("reciprocal")), rows))
        factors += (Use(f"{name}.rows", rows),)
    reads = reader.with_terms([replace(reader.product, factors=(*factors, *reader.others))])
    graph = with_steps(with_places(graph, tensors), {name: [keep], reader.step.name: [*states.first, *before, reads]})
    return states.onto(recurrent, graph, name)


def _mean(recurrent: CarriedGraph, recurrence: Recurrence) -> CarriedGraph:
    """Carries a mean of values whose weights are exponentials of key-only scores: the means of chunk and past.

    Each mean is weighted by its sum of exponentials: the weight is the sigmoid of the difference of their logarithms.
    """
    name = recurrence.box.name
    recurrent = _with_own_diagonal(recurrent, name, recurrence.decays[0])
    graph, attention = recurrent.graph, attentions(recurrent.graph)[name]
    reader, states, box, value = (
        attention.reader(),
        _BoxStates(graph, attention.box, recurrence.decays),
        attention.box,
        recurrence.value,
    )
    assert isinstance(reader, MapReader)
    assert isinstance(attention.weighting, SoftmaxOfScores)
    assert box.box is not None
    assert value is not None
    key, map_ = str(graph.key), Use(name, box.legs)
    rows = without(box.legs, key)
    legs = rows + without(value.legs, *box.legs)
    level = states.level((map_,))
    sums, total = states.sum((value, level.keys), level), states.sum((level.keys,), level)
    steps: list[Step] = []

    def step(suffix: str, op: Contraction | Box, legs: Legs) -> Use:
        steps.append(Step(f"{name}.{suffix}", op, legs))
        return Use(f"{name}.{suffix}", legs)

    def map_of(suffix: str, function: str, of: Use) -> Use:
        return step(suffix, Box("map", None, (("of", of),), function=Function(function)), of.legs)

    offset = minus(level.since)  # before the sum: the logarithm of few keys is little beside a level
    scores = step("scores", Contraction((Term(attention.weighting.scale, (attention.of,)), offset)), attention.of.legs)
    chunk = Box("logsumexp", key, (("of", scores),), masks=box.box.masks)
    past_log = map_of("past.log", "log", step("past.sum", Contraction((plus(total), Term(TINY, ()))), total.legs))
    log_ratio = step("more", Contraction((plus(step("lse", chunk, rows)), minus(past_log))), rows)
    share = map_of("share", "sigmoid", log_ratio)  # 0 if the chunk shows no key
    inverse = map_of("past.inverse", "reciprocal", total)
    mean = step("past", Contraction.of(sums, inverse), sums.legs)
    read = step("chunk", Contraction.of(map_, value), legs)
    terms = [Term(ONE, uses) for uses in ((share, read), (mean,), (share, mean))]
    combined = step("read", Contraction((*terms[:2], replace(terms[2], coefficient=Negative(ONE)))), legs)
    reads = reader.with_terms([replace(reader.product, factors=(combined, *reader.others))])
    recurrent = states.onto(recurrent, with_steps(graph, {reader.step.name: [*states.before, *steps, reads]}), name)
    return replace(recurrent, boxes=recurrent.boxes | {f"{name}.lse"})


def _with_own_diagonal(recurrent: CarriedGraph, name: str, decay: Decay) -> CarriedGraph:
    """With a copy of the diagonal for this map, which has the keys of the chunk alone; other readers may have all."""
    diagonal, scores = decay.diagonal, attentions(recurrent.graph)[name].scores
    if diagonal is None or scores is None:
        return recurrent
    copy = replace(diagonal, name=fresh(recurrent.graph, f"{name}.own"))
    reads = with_uses(scores, lambda use: replace(use, name=copy.name) if use.name == diagonal.name else use)
    graph = with_steps(recurrent.graph, {scores.name: [copy, reads]})
    return replace(recurrent, graph=without_dead(graph, [diagonal.name]) or graph, boxes=recurrent.boxes | {copy.name})


def _sum(recurrent: CarriedGraph, recurrence: Recurrence) -> CarriedGraph:
    """Carries a sum over keys: the sum over the chunk plus that over the past."""
    graph, box = recurrent.graph, recurrence.box
    states = _BoxStates(graph, box, recurrence.decays, recurrent.stepwise and not recurrence.shifted)
    chunk = replace(box, name=fresh(graph, f"{box.name}.chunk"))
    terms = states.reads(plus(Use(chunk.name, box.legs)), recurrence.terms, None)
    total = Step(box.name, Contraction(tuple(terms)), box.legs)
    return states.onto(recurrent, with_steps(graph, {box.name: [chunk, *states.first, total]}), chunk.name)


def _delta(recurrent: CarriedGraph, step: Step) -> CarriedGraph:
    """Lets a delta rule start from the state that the past has left."""
    graph, box = recurrent.graph, step.box
    assert box is not None
    if recurrent.stepwise and box.mode != "both" and box.other is None:
        return _erasing(recurrent, step, box)
    states = _BoxStates(graph, step)
    after = replace(box, kind="delta_state", operands=box.operands[1:])
    legs = tuple(leg for group in legs_of(after) for leg in group)
    state, name = states.hold(legs)
    past = [("state", state)]
    if box.mode in ("read", "both"):
        past += [("sum", states.sum((box.operand("key"),)))]
    if box.mode == "both":
        past += [("count", states.sum(()))]
    changed = [
        Step(step_name, replace(op, operands=(*op.operands, *past)), legs)
        for step_name, op, legs in ((step.name, box, step.legs), (name, after, legs))
    ]
    states.steps.append(changed[1])
    recurrent = states.onto(recurrent, with_steps(graph, {step.name: [changed[0]]}), step.name)
    return replace(recurrent, boxes=recurrent.boxes | {name})


def _erasing(recurrent: CarriedGraph, step: Step, box: Box) -> CarriedGraph:
    """A delta rule of one key as products: S = D past + rate (write v - key (erase D past)), read by the query."""
    graph, name = recurrent.graph, step.name
    states = _BoxStates(graph, step, stepwise=True)
    gates = {role: states.now(use) for role, use in box.operands}
    key, value, rate = gates["key"], gates["value"], gates["rate"]
    past, state = states.hold(tuple(leg for group in legs_of(replace(box, operands=box.operands[1:])) for leg in group))
    fall: tuple[Use, ...] = ()
    if "decay" in gates:
        decay = gates["decay"]
        fall = (states.step(f"{name}.fall", Box("map", None, (("of", decay),), function=EXP), decay.legs),)
    erase = (gates["erase_undecayed"],) if "erase_undecayed" in gates else (gates.get("erase", key), *fall)
    erased = states.step(f"{name}.erased", Contraction.of(*erase, past), value.legs)
    if "write" in gates:
        writes = [plus(gates["write"], states.step(f"{name}.written", Contraction.of(rate, value), value.legs))]
        change = [minus(rate, erased)]
    else:
        writes, change = [], [plus(rate, value), minus(rate, erased)]
    writes.append(plus(key, states.step(f"{name}.change", Contraction(tuple(change)), value.legs)))
    states.steps.append(Step(state, Contraction((plus(past, *fall), *writes)), past.legs))
    factors = (gates["query"], Use(state, past.legs))
    if box.mode == "read":
        rows = without(gates["query"].legs, *without(key.legs, *value.legs))
        eps = box.number("eps")
        total = [
            plus(gates["query"], states.sum((box.operand("key"),))),
            *([] if eps == Number(0) else [Term(eps, ())]),
        ]
        of = states.step(f"{name}.sums", Contraction(tuple(total)), rows)
        shares = states.step(f"{name}.rows", Box("map", None, (("of", of),), function=Function("reciprocal")), rows)
        read = states.step(f"{name}.read", Contraction.of(*factors), step.legs)
        factors = (read, shares)
    reads = Step(name, Contraction.of(*factors), step.legs)
    return states.onto(recurrent, with_steps(graph, {name: [*states.steps, reads]}), name)


def _scan(recurrent: CarriedGraph, step: Step) -> CarriedGraph:
    """Lets an elementwise recurrence start from the state that the past has left."""
    graph, box, states = recurrent.graph, step.box, _BoxStates(recurrent.graph, step)
    assert box is not None
    state, name = states.hold(without(box.of.legs, box.leg))
    box = replace(box, operands=(*box.operands, ("state", state)))
    states.steps.append(Step(name, replace(box, kind="scan_state"), state.legs))
    recurrent = states.onto(recurrent, with_steps(graph, {step.name: [replace(step, op=box)]}), step.name)
    return replace(recurrent, boxes=recurrent.boxes | {name})
