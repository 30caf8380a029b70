"""Sums over the keys that queries read along a feature leg: linear attention written with explicit states.

# S = sum over m of k[m g d] v[m g e];  T = P[g h] S[n g d e];  O = q[n h d] T[n h d e]
#     ->   if no heads are mixed    A = keep over m of q k;  O = A v        a map, which linear attention computes
#     ->   otherwise                O = states(q, P, k, v); what T adds to its states is added to them in the kernel

In a causal diagram S has a value per query; neither lowering stores these values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tensornet_attn.cost.scene import Scene
from tensornet_attn.cost.states import states_chunk, states_work, with_rows
from tensornet_attn.graph.attention import Reader, ScoreTerm, readers_of
from tensornet_attn.graph.distance import with_places
from tensornet_attn.graph.model import Contraction, Graph, Step, Tensor, Term, Use
from tensornet_attn.graph.recurrence import ONES, Recurrence, cumulative, recurrence_of, sums
from tensornet_attn.ir.arithmetic import ONE, Arith, times
from tensornet_attn.plan.figures import counted
from tensornet_attn.plan.implementation import Context, Cost, Lowered, OfBoxes, Rewriting, kernel
from tensornet_attn.plan.linear import DENSE, LINEAR
from tensornet_attn.rewrite.change import fresh, legs_in, product, read_once, with_steps


@dataclass(frozen=True)
class Read:
    """A sum over keys, and the product in which queries read it.

    `query`, `key`, `value`, `mix`: the factors of each side. `terms`: terms that are added to the sum before the query
    reads it. `rest`: the other factors of the reader's product.
    """

    box: Step
    reader: Reader
    coefficient: Arith
    query: tuple[Use, ...]
    key: tuple[Use, ...]
    value: tuple[Use, ...]
    mix: tuple[Use, ...]
    terms: tuple[Term, ...]
    rest: tuple[Use, ...]
    legs: tuple[str, ...]  # of the result of the read
    features: tuple[str, ...]
    between: Step | None  # the step that mixes the states


class States(OfBoxes["Mixed"]):
    """Sums over keys that are mixed before queries read them, if this needs fewer MACs than scores."""

    name, kind = "mixed states", "states"

    def places(self, graph: Graph) -> list[str]:
        return [step.name for step in sums(graph)]

    def form(self, graph: Graph, place: str) -> Mixed | None:
        read = read_of(graph, graph.step[place])
        decays = read is not None and graph.query in legs_in(read.key)
        return Mixed(graph, read) if read is not None and _mixed(read) and not decays else None

    def unsupported(self, form: Mixed, context: Context) -> tuple[str, ...]:
        return (form.parts,) if isinstance(form.parts, str) else ()

    def cost(self, form: Mixed, context: Context) -> Cost:
        """MACs of the states, and of the scores."""
        made, parts = form.made, form.parts
        assert not isinstance(parts, str)
        known = {leg.name: leg.size or 1 for leg in made.legs} | dict(context.sizes)
        work = states_work(Scene(made, known), made.step[f"{form.read.box.name}.read"])
        linear = sum(count * prod(known[leg] for leg in legs) for legs, count in work.items())
        heads = prod(known[leg] for leg in (str(made.query), str(made.key), *parts.heads, *parts.mixed))
        dense = heads * (prod(known[leg] for leg in parts.features) + prod(known[leg] for leg in parts.own))
        return Cost(linear, dense, counted, "states would cost")

    def lower(self, form: Mixed, context: Context) -> Lowered:
        made, parts = form.made, form.parts
        assert not isinstance(parts, str)
        how = f", in chunks of {states_chunk(made, parts, context.sizes)}" if parts.causal(form.graph) else ""
        over = " and ".join(f"'{leg}'" for leg in parts.mixed)
        description = f"the keys are summed first, then mixed over {over} and read by queries{how}; {DENSE}"
        return Lowered(made, {f"{form.read.box.name}.read": f"{self.name}: {description}"})

    def in_cpp(self, graph: Graph, step: Step) -> bool:
        form = recurrence_of(step)
        return form.one_product and not form.causal(graph) and with_rows(graph, step) is not None


STATES = States()


@dataclass(frozen=True)
class Mixed:
    """A sum over the keys that is mixed before queries read it."""

    graph: Graph
    read: Read

    @cached_property
    def found(self) -> tuple[Recurrence | str, tuple[Step, ...]]:
        """The states, or why they cannot be used, and the steps that compute their operands."""
        before: list[Step] = []
        return _recurrence(self.graph, self.read, before), tuple(before)

    @property
    def parts(self) -> Recurrence | str:
        return self.found[0]

    @cached_property
    def made(self) -> Graph:
        """The graph with the states as one kernel."""
        parts, before = self.found
        assert not isinstance(parts, str)
        graph, box, name = self.graph, self.read.box, f"{self.read.box.name}.read"
        assert box.box is not None
        (term,), of, legs = parts.terms, box.box.operand("of"), (*parts.heads, str(graph.query), *parts.own)
        value, mix = (() if use is None else (use,) for use in (parts.value, parts.mix))
        states = [(Use(box.name, box.legs), *mix), *([(parts.added,)] if parts.added else [])]
        inside = Step(of.name, Contraction((Term(ONE, (*term.key, *value)),)), of.legs)
        read = Contraction(tuple(Term(ONE, (*term.query, *state)) for state in states))
        body = (inside, box, Step(name, read, legs))
        own = Step(name, kernel(STATES.kind, graph, before, body, parts), legs)
        found = replace(self.read, terms=()) if parts.added else self.read
        late = [step for step in before if parts.added is None or step.name != parts.added.name]
        early = [step for step in before if step not in late]
        return _placed(_early(graph, early), found, [*late, own], Term(found.coefficient, (Use(name, legs),)))


def sums_as_maps(graph: Graph, context: Context) -> Lowered:
    """Turns each sum over keys that queries read along a feature leg into a map, if linear attention accepts it."""
    made = graph
    for box in sums(graph):
        trial = as_map(made, made.step[box.name])
        if trial is not None:
            made = trial if LINEAR.takes(trial, f"{box.name}.map", context) else made
    return Lowered(made)


def as_map(graph: Graph, box: Step) -> Graph | None:
    """The graph in which a map is applied to the values, in place of a sum; None if no query reads it by a feature."""
    read = read_of(graph, box)
    return _as_map(graph, read) if read is not None and not _mixed(read) else None


def read_of(graph: Graph, box: Step) -> Read | None:
    """A sum with its reader; None if no query reads it along a feature leg."""
    form, reader = cumulative(graph, box), read_once(graph, box.name)
    if isinstance(form, str) or reader is None or reader.contraction is None:
        return None
    scores = graph.step[box.op.uses[0].name]
    inner = product(scores)
    if inner is None or {*scores.legs} != legs_in(inner.factors) | {str(graph.query)}:
        return None
    between = reader if _mixes(graph, reader, box) else None
    if between is not None and read_once(graph, between.name) is None:
        return None
    return _read(graph, box, inner, between)


def _mixes(graph: Graph, step: Step, box: Step) -> bool:
    """Whether a step only mixes the state and adds other terms, without factors on the query or key leg."""
    others = [use for use in step.op.uses if use.name != box.name]
    return not any({graph.query, graph.key} & {*use.legs} for use in others) and graph.query in step.legs


def _read(graph: Graph, box: Step, inner: Term, between: Step | None) -> Read | None:
    state = box if between is None else between
    reader = readers_of(graph, state.name)[0]
    if reader.term is None or reader.use.legs != state.legs or reader.values:
        return None
    use, outer, others = reader.use, reader.product, reader.others
    mixing: tuple[Term, ...] = (Term(ONE, (use,)),)
    if between is not None and between.contraction is not None:
        mixing = between.contraction.terms
    own = [term for term in mixing if any(one.name == box.name for one in term.factors)]
    if len(own) != 1 or sum(one.name == box.name for one in own[0].factors) != 1:
        return None
    state_use = next(one for one in own[0].factors if one.name == box.name)
    if state_use.legs != box.legs:
        return None
    elsewhere = legs_in(one for one in others if graph.query not in one.legs)
    summed = {*use.legs} - {*reader.step.legs} - {str(graph.query)} - elsewhere
    query = tuple(one for one in others if graph.query in one.legs and summed & {*one.legs})
    features = tuple(leg for leg in use.legs if leg in summed & legs_in(query) & {*state_use.legs})
    keys = tuple(one for one in inner.factors if graph.key in one.legs)
    key = tuple(one for one in keys if {*features, graph.query} & {*one.legs})
    value = tuple(one for one in keys if one not in key)
    free = tuple(one for one in inner.factors if one not in keys and not _says_nothing(graph, one))
    mix = tuple(one for one in own[0].factors if one != state_use)
    if not {*features} & legs_in(key) or {*features} & legs_in((*mix, *value)):
        return None
    groups = {*state_use.legs} & legs_in(key) - {*features} - legs_in(query) - {*reader.step.legs}
    mixes = tuple(one for one in others if groups & {*one.legs} and graph.query not in one.legs)
    rest = tuple(one for one in others if one not in query and one not in mixes)
    legs = dict.fromkeys((*(leg for one in query for leg in one.legs), *use.legs))
    legs = dict.fromkeys(leg for leg in legs if leg not in features and (leg not in groups or leg in legs_in(rest)))
    return Read(
        box,
        reader,
        times(times(outer.coefficient, own[0].coefficient), inner.coefficient),
        query,
        (*key, *free),
        value,
        (*mix, *mixes),
        tuple(
            replace(term, coefficient=times(outer.coefficient, term.coefficient)) for term in mixing if term not in own
        ),
        rest,
        tuple(legs),
        features,
        between,
    )


def _says_nothing(graph: Graph, use: Use) -> bool:
    """Whether a factor is ones on the query leg, which only adds the leg to the sum."""
    tensor = graph.tensor.get(use.name)
    return tensor is not None and tensor.init == ONES and use.legs == (graph.query,)


def _mixed(found: Read) -> bool:
    """Whether legs of the state are summed with a mixture before queries read it."""
    return bool({*found.box.legs} & legs_in(found.key) - {*found.features} - {*found.legs})


def _as_map(graph: Graph, found: Read) -> Graph:
    """The graph in which a map is applied to the values."""
    box, before = found.box, list[Step]()
    assert box.box is not None
    value = found.value
    if not value:
        ones = Tensor(fresh(graph, f"{box.name}.{graph.key}"), "constant", (str(graph.key),), ONES)
        graph, value = with_places(graph, (ones,)), (Use(ones.name, ones.legs),)
    elif len(value) > 1:
        value = (_joined(f"{box.name}.v", value, before),)
    used = dict.fromkeys(leg for use in (*found.query, *found.key) for leg in use.legs)
    legs = tuple(leg for leg in used if leg not in found.features)
    name = f"{box.name}.map"
    before.append(Step(f"{name}.of", Contraction((Term(found.coefficient, (*found.query, *found.key)),)), legs))
    keep = replace(box.box, kind="keep", numbers=(), operands=(("of", Use(f"{name}.of", legs)),))
    before.append(Step(name, keep, legs))
    return _placed(graph, found, before, Term(ONE, (Use(name, legs), *found.mix, *value)))


def _recurrence(graph: Graph, found: Read, before: list[Step]) -> Recurrence | str:
    """The states with one use each for query, key, values and mixture, computed `before`; or why not."""
    name = found.box.name
    query, key = (
        _joined(fresh(graph, f"{name}.{side}"), uses, before) for side, uses in (("q", found.query), ("k", found.key))
    )
    value = _joined(fresh(graph, f"{name}.v"), found.value, before) if found.value else None
    needed = legs_in((query, key, *((value,) if value else ())))
    mix = _joined(fresh(graph, f"{name}.mix"), found.mix, before, needed) if found.mix else None
    pair, features = {graph.query, graph.key}, {*found.features}
    mixed = {*key.legs} - features - pair
    own = ({*value.legs} if value else set()) - mixed - pair
    heads = {*query.legs} - features - pair
    fits = (
        not mixed & heads
        and not own & ({*query.legs} | {*key.legs})
        and (value is None or mixed <= {*value.legs})
        and features <= {*query.legs} & {*key.legs}
        and ({*mix.legs} if mix else set()) <= heads | mixed
        and {*found.legs} - pair - own <= heads
    )
    if not fits:
        return "queries, keys, values and mixing weights do not share heads in the way that mixed states need"
    term = ScoreTerm(ONE, (query,), (key,), width=tuple(leg for leg in key.legs if leg in features))
    outer = tuple(leg for leg in query.legs if leg in heads)
    inner = tuple(leg for leg in (value.legs if value else ()) if leg in own)
    return Recurrence(
        found.box,
        (term,),
        value,
        outer,
        tuple(leg for leg in found.box.legs if leg not in (graph.query, *features, *own)),
        inner,
        mixes=True,
        mix=mix,
        added=_added(found, (*outer, *term.features, *inner), before),
    )


def _added(found: Read, legs: tuple[str, ...], before: list[Step]) -> Use | None:
    """The terms that are added to the state, as a step; None if queries read them on their own: they lack some leg."""
    used = legs_in(use for term in found.terms for use in term.factors)
    outside = used & {*found.between.legs} if found.between else used
    if not found.terms or found.coefficient != ONE or outside != {*legs}:
        return None
    before.append(Step(f"{found.box.name}.added", Contraction(found.terms), legs))
    return Use(before[-1].name, legs)


def _early(graph: Graph, added: Sequence[Step]) -> Graph:
    """The graph with these steps as soon as their operands are known, so that kernels that need them share a call."""
    for step in added:
        read = {use.name for use in step.op.uses}
        place = max((at + 1 for at, other in enumerate(graph.steps) if other.name in read), default=0)
        graph = replace(graph, steps=(*graph.steps[:place], step, *graph.steps[place:]))
    return graph


def _joined(name: str, uses: tuple[Use, ...], before: list[Step], needed: set[str] | None = None) -> Use:
    """The product of several uses as a step of its own, with the needed legs or all; a single use is returned."""
    if len(uses) == 1:
        return uses[0]
    legs = tuple(dict.fromkeys(leg for use in uses for leg in use.legs if needed is None or leg in needed))
    before.append(Step(name, Contraction((Term(ONE, uses),)), legs))
    return Use(name, legs)


def _placed(graph: Graph, found: Read, before: list[Step], term: Term) -> Graph:
    """The graph in which a step of its own reads the state, and the reader uses its result."""
    others = tuple(replace(own, factors=(*found.query, *own.factors)) for own in found.terms)
    own = Step(fresh(graph, f"{found.box.name}.sum"), Contraction((term, *others)), found.legs)
    reader = found.reader.with_terms([Term(ONE, (Use(own.name, own.legs), *found.rest))])
    removed = (found.box, found.between, graph.step[found.box.op.uses[0].name])
    return with_steps(graph, {step.name: [] for step in removed if step} | {reader.name: [*before, own, reader]})


SUMS = Rewriting("sums as maps", sums_as_maps)
