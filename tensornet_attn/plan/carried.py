"""Sums over keys that a state carries from chunk to chunk: the past is one tensor, whatever its length.

# A = keep over m of q k;  o = A v     ->     o = A v + q past;  state = past + sum over the chunk of k v
# s = sum over m of q k                ->     s = the same + q past;  state = past + sum over the chunk of k

Where rows are divided by their sums, these are carried likewise. `m` then has the positions of the chunk alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tensornet_attn.graph.attention import Normalize, Reader, ScoreTerm, attentions
from tensornet_attn.graph.distance import with_places
from tensornet_attn.graph.model import Box, Contraction, Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.graph.recurrence import CAUSAL, ONES, Recurrence, cumulative, linear, sums
from tensornet_attn.ir.arithmetic import ONE, Number
from tensornet_attn.rewrite.change import fresh, leg_like, with_legs, with_steps

VISIBLE = "chunk.visible"  # an input [n]: 1, or 0 where the key mask of the call hides a position


@dataclass(frozen=True)
class Carried:
    """A graph with states. `states`: the step that gives a state, by the input that holds it before.

    `boxes`: the maps and sums that are carried.
    """

    graph: Graph
    states: dict[str, str] = field(default_factory=dict)
    boxes: frozenset[str] = frozenset()


def carried(graph: Graph) -> Carried:
    """Every map and every sum over the keys that is a recurrence without decay, with its states."""
    made = Carried(graph)
    for name, found in attentions(graph).items():
        form = linear(attentions(made.graph)[name]) if found.compares and name in attentions(made.graph) else ""
        if isinstance(form, Recurrence) and not form.decays and not form.alone and _sees_all(made.graph, form):
            made = _map(made, name, form)
    for step in sums(graph):
        form = cumulative(made.graph, made.graph.step[step.name])
        if isinstance(form, Recurrence) and not form.decays and _sees_all(made.graph, form):
            made = _sum(made, form)
    return made


def _sees_all(graph: Graph, form: Recurrence) -> bool:
    """Whether no mask but causality hides keys."""
    return all(mask == CAUSAL for mask in graph.masks(form.box))


@dataclass
class _States:
    """The states of one box: inputs that hold them, and the steps that give them anew."""

    graph: Graph
    box: Step
    tensors: list[Tensor] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)  # legs of features, by those that values have of their name
    known: dict[tuple[Use, ...], Use] = field(default_factory=dict)  # what holds the sum of these products

    def read(self, term: ScoreTerm, value: Use | None) -> Term:
        """What a query reads of the past through a term; the state of it is new."""
        graph, pair = self.graph, (self.graph.query, self.graph.key)
        name = fresh(graph, f"{self.box.name}.state{len(self.states) + 1}")
        term = self.apart(term, value)
        keys = (*term.key, *((value,) if value else ()))
        if keys in self.known:
            return Term(term.coefficient, (*term.query, *term.core, self.known[keys]))
        legs = tuple(dict.fromkeys(leg for use in keys for leg in use.legs if leg not in pair))
        past, query = f"{name}.past", str(graph.query)
        self.tensors.append(Tensor(past, "input", legs))
        now = [Use(use.name, tuple(query if leg == graph.key else leg for leg in use.legs)) for use in keys]
        terms = (Term(ONE, (Use(past, legs),)), Term(ONE, (Use(VISIBLE, (query,)), *now)))
        self.steps.append(Step(name, Contraction(terms), legs))
        self.states[past] = name
        self.known[keys] = Use(past, legs)
        return Term(term.coefficient, (*term.query, *term.core, Use(past, legs)))

    def apart(self, term: ScoreTerm, value: Use | None) -> ScoreTerm:
        """The term with other legs for its features, where values have legs of their names."""
        scores = self.box.op.uses[0].legs
        met = {leg for use in term.factors for leg in use.legs if leg not in scores} & {*(value.legs if value else ())}
        for leg in sorted(met - {*self.others}):
            old = self.graph.leg[leg]
            new = leg_like(self.graph, f"{leg}_", old.size or 1, old.kind, self.graph.leg)
            self.graph, self.others[leg] = with_legs(self.graph, [new]), new.name

        def on(uses: tuple[Use, ...]) -> tuple[Use, ...]:
            return tuple(Use(use.name, tuple(self.others[x] if x in met else x for x in use.legs)) for use in uses)

        return replace(term, query=on(term.query), key=on(term.key), core=on(term.core))

    def onto(self, made: Carried, graph: Graph, masked: str) -> Carried:
        """The carried graph with these states behind the others; `masked`: its box of the chunk."""
        tensors = [*self.tensors, *([] if VISIBLE in graph.tensor else [Tensor(VISIBLE, "input", (str(graph.query),))])]
        whole = replace(
            with_legs(graph, self.graph.legs),
            tensors=(*graph.tensors, *tensors),
            steps=(*graph.steps, *self.steps),
        )
        return Carried(whole, made.states | self.states, made.boxes | {masked})


def _map(made: Carried, name: str, form: Recurrence) -> Carried:
    """A map that reads values: of the chunk, and of the past through the state."""
    graph, found = made.graph, attentions(made.graph)[name]
    reader, own = found.reader(), _States(graph, found.box)
    assert isinstance(reader, Reader)
    assert form.value is not None
    key, box, value = str(graph.key), found.box, form.value
    assert box.box is not None
    rows = tuple(leg for leg in box.legs if leg != key)
    legs = rows + tuple(leg for leg in value.legs if leg not in box.legs)
    keep = replace(box, op=replace(box.box, kind="keep", numbers=()))
    map_ = Use(name, box.legs)
    read = [Term(ONE, (map_, value)), *(own.read(term, value) for term in form.terms)]
    before = [Step(f"{name}.read", Contraction(tuple(read)), legs)]
    result: tuple[Use, ...] = (Use(f"{name}.read", legs),)
    tensors: tuple[Tensor, ...] = ()
    if isinstance(found.weighting, Normalize):
        ones = Tensor(fresh(graph, f"{name}.{key}"), "constant", (key,), ONES)
        tensors, eps = (ones,), found.weighting.eps
        terms = [Term(ONE, (map_, Use(ones.name, ones.legs))), *(own.read(term, None) for term in form.terms)]
        terms += [] if eps == Number(0) else [Term(eps, ())]
        of = Use(f"{name}.sums", rows)
        before.append(Step(of.name, Contraction(tuple(terms)), rows))
        before.append(Step(f"{name}.rows", Box("map", None, (("of", of),), function=Function("reciprocal")), rows))
        result += (Use(f"{name}.rows", rows),)
    reads = reader.with_terms([replace(reader.product, factors=(*result, *reader.others))])
    graph = with_steps(with_places(graph, tensors), {name: [keep], reader.step.name: [*before, reads]})
    return own.onto(made, graph, name)


def _sum(made: Carried, form: Recurrence) -> Carried:
    """A sum over keys: of the chunk, and of the past."""
    graph, box = made.graph, form.box
    own, chunk = _States(graph, box), replace(box, name=fresh(graph, f"{box.name}.chunk"))
    terms = (Term(ONE, (Use(chunk.name, box.legs),)), *(own.read(term, None) for term in form.terms))
    new = Step(box.name, Contraction(terms), box.legs)
    return own.onto(made, with_steps(graph, {box.name: [chunk, new]}), chunk.name)
