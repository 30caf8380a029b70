"""Sums over the keys that queries read along a feature leg, and the map that is the same if no heads are mixed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensornet_attn.graph.attention import MapReader, readers_of
from tensornet_attn.graph.distance import with_places
from tensornet_attn.graph.graph import Contraction, Graph, Step, Tensor, Term, Use
from tensornet_attn.graph.recurrence import ONES, cumulative
from tensornet_attn.ir.arithmetic import Arith, times
from tensornet_attn.ir.steps import legs_in, plus, within, without
from tensornet_attn.rewrite.change import fresh, product, read_once, with_steps


@dataclass(frozen=True)
class Read:
    """A sum over keys, and the product in which queries read it.

    `query`, `key`, `value`, `mix`: the factors of each side. `terms`: terms that are added to the sum before the query
    reads it. `rest`: the other factors of the reader's product.
    """

    box: Step
    reader: MapReader
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


def read_of(graph: Graph, box: Step) -> Read | None:
    """A sum with its reader; None if no query reads it along a feature leg."""
    form, reader = cumulative(graph, box), read_once(graph, box.name)
    if isinstance(form, str) or reader is None or reader.contraction is None:
        return None
    scores = graph.step[box.uses[0].name]
    inner = product(scores)
    if inner is None or {*scores.legs} != legs_in(inner.factors) | {graph.query}:
        return None
    between = reader if _mixes(graph, reader, box) else None
    if between is not None and read_once(graph, between.name) is None:
        return None
    return _read(graph, box, inner, between)


def _read(graph: Graph, box: Step, inner: Term, between: Step | None) -> Read | None:
    state = box if between is None else between
    reader = readers_of(graph, state.name)[0]
    if reader.term is None or reader.use.legs != state.legs or reader.values:
        return None
    use, outer, others = reader.use, reader.product, reader.others
    mixing: tuple[Term, ...] = (plus(use),)
    if between is not None and between.contraction is not None:
        mixing = between.terms
    state_terms = [term for term in mixing if any(factor.name == box.name for factor in term.factors)]
    if len(state_terms) != 1 or sum(factor.name == box.name for factor in state_terms[0].factors) != 1:
        return None
    state_use = next(factor for factor in state_terms[0].factors if factor.name == box.name)
    if state_use.legs != box.legs:
        return None
    elsewhere = legs_in(factor for factor in others if graph.query not in factor.legs)
    summed = {*use.legs} - {*reader.step.legs} - {graph.query} - elsewhere
    query = tuple(factor for factor in others if graph.query in factor.legs and summed & {*factor.legs})
    features = within(use.legs, summed & legs_in(query) & {*state_use.legs})
    keys = tuple(factor for factor in inner.factors if graph.key in factor.legs)
    key = tuple(factor for factor in keys if {*features, graph.query} & {*factor.legs})
    value = tuple(factor for factor in keys if factor not in key)
    free = tuple(factor for factor in inner.factors if factor not in keys and not _says_nothing(graph, factor))
    mix = tuple(factor for factor in state_terms[0].factors if factor != state_use)
    if not {*features} & legs_in(key) or {*features} & legs_in((*mix, *value)):
        return None
    groups = {*state_use.legs} & legs_in(key) - {*features} - legs_in(query) - {*reader.step.legs}
    mixes = tuple(factor for factor in others if groups & {*factor.legs} and graph.query not in factor.legs)
    rest = tuple(factor for factor in others if factor not in query and factor not in mixes)
    legs = dict.fromkeys((*(leg for factor in query for leg in factor.legs), *use.legs))
    legs = dict.fromkeys(leg for leg in legs if leg not in features and (leg not in groups or leg in legs_in(rest)))
    return Read(
        box,
        reader,
        times(times(outer.coefficient, state_terms[0].coefficient), inner.coefficient),
        query,
        (*key, *free),
        value,
        (*mix, *mixes),
        tuple(
            replace(term, coefficient=times(outer.coefficient, term.coefficient))
            for term in mixing
            if term not in state_terms
        ),
        rest,
        tuple(legs),
        features,
        between,
    )


def _mixes(graph: Graph, step: Step, box: Step) -> bool:
    """Whether a step only mixes the state and adds other terms, without factors on the query or key leg."""
    others = [use for use in step.uses if use.name != box.name]
    return not any({graph.query, graph.key} & {*use.legs} for use in others) and graph.query in step.legs


def _says_nothing(graph: Graph, use: Use) -> bool:
    """Whether a factor is ones on the query leg, which only adds the leg to the sum."""
    tensor = graph.tensor.get(use.name)
    return tensor is not None and tensor.init == ONES and use.legs == (graph.query,)


def mixes_heads(read: Read) -> bool:
    """Whether legs of the state are summed with a mixture before queries read it."""
    return bool({*read.box.legs} & legs_in(read.key) - {*read.features} - {*read.legs})


def as_map(graph: Graph, box: Step) -> Graph | None:
    """The graph in which a map is applied to the values, in place of a sum; None if no query reads it by a feature."""
    read = read_of(graph, box)
    return _as_map(graph, read) if read is not None and not mixes_heads(read) else None


def placed(graph: Graph, read: Read, before: list[Step], term: Term) -> Graph:
    """The graph in which a step of its own reads the state, and the reader uses its result."""
    others = tuple(replace(added_term, factors=(*read.query, *added_term.factors)) for added_term in read.terms)
    read_step = Step(fresh(graph, f"{read.box.name}.sum"), Contraction((term, *others)), read.legs)
    reader = read.reader.with_terms([plus(read_step.use, *read.rest)])
    removed = (read.box, read.between, graph.step[read.box.uses[0].name])
    return with_steps(graph, {step.name: [] for step in removed if step} | {reader.name: [*before, read_step, reader]})


def _as_map(graph: Graph, read: Read) -> Graph:
    """The graph in which a map is applied to the values."""
    box, before = read.box, list[Step]()
    assert box.box is not None
    value = read.value
    if not value:
        ones = Tensor(fresh(graph, f"{box.name}.{graph.key}"), "constant", (str(graph.key),), ONES)
        graph, value = with_places(graph, (ones,)), (ones.use,)
    elif len(value) > 1:
        value = (joined(f"{box.name}.v", value, before),)
    used = dict.fromkeys(leg for use in (*read.query, *read.key) for leg in use.legs)
    legs = without(used, *read.features)
    name = f"{box.name}.map"
    before.append(Step(f"{name}.of", Contraction((Term(read.coefficient, (*read.query, *read.key)),)), legs))
    keep = replace(box.box, kind="keep", numbers=(), operands=(("of", Use(f"{name}.of", legs)),))
    before.append(Step(name, keep, legs))
    return placed(graph, read, before, plus(Use(name, legs), *read.mix, *value))


def joined(name: str, uses: tuple[Use, ...], before: list[Step], needed: set[str] | None = None) -> Use:
    """The product of several uses as a step of its own, with the needed legs or all; a single use is returned."""
    if len(uses) == 1:
        return uses[0]
    legs = tuple(dict.fromkeys(leg for use in uses for leg in use.legs if needed is None or leg in needed))
    before.append(Step(name, Contraction.of(*uses), legs))
    return Use(name, legs)
