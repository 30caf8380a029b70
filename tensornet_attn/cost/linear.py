"""Linear attention as the planner makes it: how its legs fall into heads, features and values, and what it costs.

# A.of = q k core + ...;  A = normalize over m of A.of;  A.o = A v

Multiply-adds of a term, with F the features (legs that q and k share and the scores lack) and V the values' own legs
and those that a core mixes:

    k v and q (k v)              m heads F V and n heads F V
    row sums                     n heads F, or with a core n heads and the core's legs
    what decays, chunks of C      n C heads, or n C heads F where features decay (scores inside a chunk)
    causal, chunks of C          n C heads F (scores inside a chunk) and n C heads V (what they read)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2, prod

from tensornet_attn.cost.scene import Scene
from tensornet_attn.graph.model import Box, Contraction, Graph, Kernel, Step, Use
from tensornet_attn.spec.arithmetic import ONE, Arith

Legs = tuple[str, ...]
CHUNKS = (16, 128)  # the least and the largest chunk of a causal scan


@dataclass(frozen=True)
class Sides:
    """A term of the scores: query side, key side and core, a use each or nothing.

    `groups`: the features that the core speaks of; `width`: the others. `decays`: pairs a, b of factors exp(a - b).
    """

    coefficient: Arith
    query: Use | None
    key: Use | None
    core: Use | None
    groups: Legs = ()
    width: Legs = ()
    decays: tuple[tuple[Use, Use], ...] = ()

    @property
    def features(self) -> Legs:
        return self.groups + self.width

    @property
    def decayed(self) -> Legs:
        """The features that decay each in its own way."""
        return self.features if any({*self.features} & {*use.legs} for pair in self.decays for use in pair) else ()


@dataclass(frozen=True)
class Linear:
    """`heads`: legs of the scores that queries and keys are batched over. `mixed`: those of cores and values alone.

    `own`: the values' own legs. The result is [heads..., query, mixed..., own...].
    """

    box: Step
    terms: tuple[Sides, ...]
    value: Use
    heads: Legs
    mixed: Legs
    own: Legs

    @property
    def result(self) -> Legs:
        return self.mixed + self.own


def mixed_legs(graph: Graph, legs: Legs, terms: Iterable[Sequence[Use]], value: Use) -> Legs:
    """The legs of the scores that values have and, on the scores' side, cores alone, each of them all or none.

    Nothing where a core maps features of queries to others of keys: it is part of the query side then.
    """
    pair, others = {graph.query, graph.key}, tuple(leg for leg in legs if leg not in (graph.query, graph.key))
    split = [
        ([use for use in term if pair & {*use.legs}], [use for use in term if not pair & {*use.legs}]) for term in terms
    ]
    sided = {leg for sides, _ in split for use in sides for leg in use.legs}
    mixed = tuple(leg for leg in others if leg not in sided)
    if not mixed or not {*mixed} <= {*value.legs}:
        return ()
    return mixed if all(_mixes(graph, sides, free, {*mixed}, {*others}) for sides, free in split) else ()


def _mixes(graph: Graph, sides: list[Use], free: list[Use], mixed: set[str], others: set[str]) -> bool:
    core = {leg for use in free for leg in use.legs}
    query = {leg for use in sides if graph.query in use.legs for leg in use.legs}
    key = {leg for use in sides if graph.key in use.legs for leg in use.legs}
    if not core & mixed:
        return True
    return mixed <= core and core & (query | key) - others <= query & key


def linear_of(graph: Graph, step: Step) -> Linear:
    """The parts of a kernel of kind `linear`: of each term at most one use on each side, and at most one core."""
    assert isinstance(step.op, Kernel)
    *decay, scores, box, product = step.op.body
    assert isinstance(scores.op, Contraction)
    value, decays = product.op.uses[1], _decays(decay)
    if isinstance(box.op, Box) and box.op.kind == "softmax":  # of a - b
        heads = tuple(leg for leg in box.legs if leg not in (graph.query, graph.key))
        own = tuple(leg for leg in value.legs if leg not in box.legs)
        a, b = scores.op.uses
        return Linear(box, (Sides(ONE, None, None, None, decays=((a, b),)),), value, heads, (), own)
    factors = [tuple(use for use in term.factors if use.name not in decays) for term in scores.op.terms]
    mixed = mixed_legs(graph, box.legs, [term.factors for term in scores.op.terms], value)
    others = tuple(leg for leg in box.legs if leg not in (graph.query, graph.key))
    terms = [
        replace(
            _sides(graph, term.coefficient, own, mixed, others),
            decays=tuple(decays[use.name] for use in term.factors if use.name in decays),
        )
        for term, own in zip(scores.op.terms, factors, strict=True)
    ]
    own = tuple(leg for leg in value.legs if leg not in box.legs)
    return Linear(box, tuple(terms), value, tuple(leg for leg in others if leg not in mixed), mixed, own)


def sums_of(graph: Graph, step: Step) -> Linear:
    """The parts of a kernel of kind `sums`, whose box sums the scores: there are no values."""
    assert isinstance(step.op, Kernel)
    scores, box = step.op.body
    assert isinstance(scores.op, Contraction)
    heads = tuple(leg for leg in box.legs if leg != graph.query)
    terms = [_sides(graph, term.coefficient, term.factors, (), heads) for term in scores.op.terms]
    return Linear(box, tuple(terms), Use(box.name, ()), heads, (), ())


def sums_work(scene: Scene, step: Step) -> dict[Legs, int]:
    """The multiply-adds of one batch element, by the legs they run over: those of the queries' parts with the sums."""
    parts, found = sums_of(scene.graph, step), Counter[Legs]()
    for term in parts.terms:
        found[(str(scene.graph.query), *_batches(parts, term)[1], *term.features)] += 1
    return dict(found)


def sums_elementwise(scene: Scene, step: Step) -> int:
    """Operations over the whole batch: every number of the keys' parts is added up once, and terms are added."""
    parts = sums_of(scene.graph, step)
    batch = scene.batch if step.name in scene.batched else 1
    rows = scene.sizes[str(scene.graph.key)]
    added = sum(rows * scene.size((*_batches(parts, term)[0], *term.features)) for term in parts.terms)
    return batch * (added + (len(parts.terms) - 1) * scene.size(step.legs))


def sums_kept(scene: Scene, step: Step) -> dict[str, int]:
    """Floats kept for backward beside operands and result: the cumulative sums, or one sum for all queries."""
    parts, found = sums_of(scene.graph, step), dict[str, int]()
    batch = scene.batch if step.name in scene.batched else 1
    rows = scene.sizes[str(scene.graph.query)] if causal(scene.graph, parts) else 1
    for i, term in enumerate(parts.terms):
        found[f"{step.name}: sums {i}"] = batch * rows * scene.size((*_batches(parts, term)[0], *term.features))
    return found


def _decays(body: Sequence[Step]) -> dict[str, tuple[Use, Use]]:
    """The two sides of each exp(a - b) in a body, of which a difference and its exp stand there, by its name."""
    pairs = zip(body[::2], body[1::2], strict=True)
    return {exp.name: (difference.op.uses[0], difference.op.uses[1]) for difference, exp in pairs}


def _sides(graph: Graph, coefficient: Arith, factors: Sequence[Use], mixed: Legs, others: Legs) -> Sides:
    query = next((use for use in factors if graph.query in use.legs), None)
    key = next((use for use in factors if graph.key in use.legs), None)
    free = next((use for use in factors if use not in (query, key)), None)
    if free is not None and not {*mixed} & {*free.legs}:
        query, free = query or free, None  # without a query leg: the same for all queries
    shared = [leg for leg in (query.legs if query and key else ()) if leg in key.legs and leg not in others]  # type: ignore[union-attr]
    groups = tuple(leg for leg in shared if free is not None and leg in free.legs)
    return Sides(coefficient, query, key, free, groups, tuple(leg for leg in shared if leg not in groups))


def causal(graph: Graph, parts: Linear) -> bool:
    return bool(graph.masks(parts.box))


def chunk_of(graph: Graph, parts: Linear, sizes: Mapping[str, int] | None = None) -> int:
    """Keys of a chunk in a causal scan: a power of two near the root of features times values of a head.

    There the scores inside a chunk and the states between chunks are as many numbers, and about as much work. Where
    each feature decays in its own way, the scores inside a chunk are made feature by feature: few keys then.
    """
    if any(term.decayed for term in parts.terms):
        return CHUNKS[0]
    known = {leg.name: leg.size or 1 for leg in graph.legs} | dict(sizes or {})
    features = max(prod(known[leg] for leg in term.features) for term in parts.terms)
    root: int = 2 ** round(log2(features * prod(known[leg] for leg in parts.own)) / 2)
    return min(max(root, CHUNKS[0]), CHUNKS[1])


def linear_work(scene: Scene, step: Step) -> dict[Legs, int]:
    """The multiply-adds of one batch element, by the legs they run over (a leg in two roles stands twice)."""
    parts, found = linear_of(scene.graph, step), Counter[Legs]()
    chunk = chunk_of(scene.graph, parts, scene.sizes) if causal(scene.graph, parts) else 0
    key = str(scene.graph.key)
    query = key if chunk else str(scene.graph.query)  # in a scan, queries are padded to the keys
    for term in parts.terms:
        stored, read = _batches(parts, term)
        found[(key, *stored, *term.features, *parts.result)] += 1
        found[(query, *read, *term.features, *parts.result)] += 1
        if _normalized(parts):
            found[(query, *read, *(term.features if term.core is None else term.groups + parts.mixed))] += 1
        if chunk:
            found[(query, *read, *term.features)] += chunk
            found[(query, *read, *parts.result)] += chunk
        if chunk and term.decays:
            found[(query, *read, *term.decayed)] += chunk
        if chunk and term.core is not None:
            found[(query, *read, *term.groups, *parts.mixed)] += chunk
    return dict(found)


def _batches(parts: Linear, term: Sides) -> tuple[Legs, Legs]:
    """The heads that keys and values are summed for, and those that queries read them for."""
    stored = {
        leg for use in (term.key, term.core, parts.value, *(b for _, b in term.decays)) if use for leg in use.legs
    }
    read = stored.union(*(use.legs for use in (term.query, *(a for a, _ in term.decays)) if use))
    return tuple(leg for leg in parts.heads if leg in stored), tuple(leg for leg in parts.heads if leg in read)


def _normalized(parts: Linear) -> bool:
    return isinstance(parts.box.op, Box) and parts.box.op.kind in ("normalize", "softmax")


def linear_kept(scene: Scene, step: Step) -> dict[str, int]:
    """Floats kept for backward beside operands and result: states, row sums, and scores inside the chunks."""
    parts, found = linear_of(scene.graph, step), dict[str, int]()
    batch = scene.batch if step.name in scene.batched else 1
    rows, chunk = scene.sizes[str(scene.graph.query)], 0
    if causal(scene.graph, parts):
        chunk = chunk_of(scene.graph, parts, scene.sizes)
    for i, term in enumerate(parts.terms):
        stored, read = _batches(parts, term)
        state = scene.size((*stored, *term.features, *parts.result))
        found[f"{step.name}: states {i}"] = batch * state * (-(-rows // chunk) if chunk else 1)
        if chunk:
            own = scene.size((*read, *(term.groups or parts.mixed))) + scene.size((*read, *parts.mixed)) * bool(
                term.core
            )
            found[f"{step.name}: scores {i}"] = batch * rows * chunk * own
        if chunk and term.decays:  # the scores before they decay, and what they decay by
            found[f"{step.name}: decay {i}"] = 2 * batch * rows * chunk * scene.size((*read, *term.decayed))
    if _normalized(parts):
        found[f"{step.name}: row sums"] = batch * rows * scene.size((*parts.heads, *parts.mixed))
    return found
