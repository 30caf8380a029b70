"""Sums over the keys that queries read along a feature leg, and the map that is the same if no heads are mixed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensornet_attn.graph.attention import Reader, readers_of
from tensornet_attn.graph.distance import with_places
from tensornet_attn.graph.model import Contraction, Graph, Step, Tensor, Term, Use
from tensornet_attn.graph.recurrence import ONES, cumulative
from tensornet_attn.ir.arithmetic import ONE, Arith, times
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


def _mixes(graph: Graph, step: Step, box: Step) -> bool:
    """Whether a step only mixes the state and adds other terms, without factors on the query or key leg."""
    others = [use for use in step.op.uses if use.name != box.name]
    return not any({graph.query, graph.key} & {*use.legs} for use in others) and graph.query in step.legs


def _says_nothing(graph: Graph, use: Use) -> bool:
    """Whether a factor is ones on the query leg, which only adds the leg to the sum."""
    tensor = graph.tensor.get(use.name)
    return tensor is not None and tensor.init == ONES and use.legs == (graph.query,)


def mixes_heads(found: Read) -> bool:
    """Whether legs of the state are summed with a mixture before queries read it."""
    return bool({*found.box.legs} & legs_in(found.key) - {*found.features} - {*found.legs})


def as_map(graph: Graph, box: Step) -> Graph | None:
    """The graph in which a map is applied to the values, in place of a sum; None if no query reads it by a feature."""
    read = read_of(graph, box)
    return _as_map(graph, read) if read is not None and not mixes_heads(read) else None


def placed(graph: Graph, found: Read, before: list[Step], term: Term) -> Graph:
    """The graph in which a step of its own reads the state, and the reader uses its result."""
    others = tuple(replace(own, factors=(*found.query, *own.factors)) for own in found.terms)
    own = Step(fresh(graph, f"{found.box.name}.sum"), Contraction((term, *others)), found.legs)
    reader = found.reader.with_terms([Term(ONE, (Use(own.name, own.legs), *found.rest))])
    removed = (found.box, found.between, graph.step[found.box.op.uses[0].name])
    return with_steps(graph, {step.name: [] for step in removed if step} | {reader.name: [*before, own, reader]})


def _as_map(graph: Graph, found: Read) -> Graph:
    """The graph in which a map is applied to the values."""
    box, before = found.box, list[Step]()
    assert box.box is not None
    value = found.value
    if not value:
        ones = Tensor(fresh(graph, f"{box.name}.{graph.key}"), "constant", (str(graph.key),), ONES)
        graph, value = with_places(graph, (ones,)), (Use(ones.name, ones.legs),)
    elif len(value) > 1:
        value = (joined(f"{box.name}.v", value, before),)
    used = dict.fromkeys(leg for use in (*found.query, *found.key) for leg in use.legs)
    legs = tuple(leg for leg in used if leg not in found.features)
    name = f"{box.name}.map"
    before.append(Step(f"{name}.of", Contraction((Term(found.coefficient, (*found.query, *found.key)),)), legs))
    keep = replace(box.box, kind="keep", numbers=(), operands=(("of", Use(f"{name}.of", legs)),))
    before.append(Step(name, keep, legs))
    return placed(graph, found, before, Term(ONE, (Use(name, legs), *found.mix, *value)))


def joined(name: str, uses: tuple[Use, ...], before: list[Step], needed: set[str] | None = None) -> Use:
    """The product of several uses as a step of its own, with the needed legs or all; a single use is returned."""
    if len(uses) == 1:
        return uses[0]
    legs = tuple(dict.fromkeys(leg for use in uses for leg in use.legs if needed is None or leg in needed))
    before.append(Step(name, Contraction((Term(ONE, uses),)), legs))
    return Use(name, legs)
