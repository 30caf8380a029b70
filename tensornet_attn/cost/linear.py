"""Linear attention kernels: the roles of legs as heads, features and values, and the cost.

# A.of = q k core + ...;  A = normalize over m of A.of;  A.o = A v

MACs of a term, with F the features (legs that q and k share and the scores lack) and V the values' own legs and those
that a core mixes:

    k v and q (k v)              m heads F V and n heads F V
    row sums                     n heads F, or with a core n heads and the core's legs
    with decay, chunks of C      n C heads, or n C heads F if features decay (scores inside a chunk)
    causal, chunks of C          n C heads F (scores inside a chunk) and n C heads V (scores times values)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import log2, prod

from tensornet_attn.cost.scene import Scene
from tensornet_attn.graph.attention import Legs, Masked, ScoreTerm
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of

STRETCH = 1 << 19  # scores inside chunks that a causal kernel computes at a time, so that they stay in the caches
CHUNKS = (16, 128)  # minimum and maximum chunk of a causal scan


def sums_work(scene: Scene, step: Step) -> dict[Legs, int]:
    """MACs of one batch element, by the legs they run over: the products of the query parts with the sums."""
    parts, found = recurrence_of(step), Counter[Legs]()
    for term in parts.terms:
        found[(str(scene.graph.query), *_batches(parts, term)[1], *term.features)] += 1
    return dict(found)


def sums_elementwise(scene: Scene, step: Step) -> int:
    """Operations over the whole batch: one addition per element of the key parts, and additions of terms."""
    parts = recurrence_of(step)
    batch = scene.batch if step.name in scene.batched else 1
    rows = scene.sizes[str(scene.graph.key)]
    added = sum(rows * scene.size((*_batches(parts, term)[0], *term.features)) for term in parts.terms)
    return batch * (added + (len(parts.terms) - 1) * scene.size(step.legs))


def sums_kept(scene: Scene, step: Step) -> dict[str, int]:
    """Floats saved for backward besides operands and result: the cumulative sums, or one sum for all queries."""
    parts, found = recurrence_of(step), dict[str, int]()
    batch = scene.batch if step.name in scene.batched else 1
    rows = scene.sizes[str(scene.graph.query)] if parts.causal(scene.graph) else 1
    for i, term in enumerate(parts.terms):
        found[f"{step.name}: sums {i}"] = batch * rows * scene.size((*_batches(parts, term)[0], *term.features))
    return found


def chunk_of(graph: Graph, parts: Recurrence, sizes: Mapping[str, int] | None = None) -> int:
    """Keys per chunk of a causal scan: a power of two near the square root of features times values of a head.

    With this size, scores inside chunks and states between chunks have similar size and cost. If each feature decays
    separately, the scores inside a chunk are computed feature by feature, so chunks are short.
    """
    if any(term.decayed for term in parts.terms):
        return CHUNKS[0]
    known = {leg.name: leg.size or 1 for leg in graph.legs} | dict(sizes or {})
    features = max(prod(known[leg] for leg in term.features) for term in parts.terms)
    root: int = 2 ** round(log2(features * prod(known[leg] for leg in parts.own)) / 2)
    return min(max(root, CHUNKS[0]), CHUNKS[1])


def linear_chunk(scene: Scene, step: Step) -> int:
    """Keys per chunk of a kernel; 0 if it is not causal."""
    parts = recurrence_of(step)
    return chunk_of(scene.graph, parts, scene.sizes) if parts.causal(scene.graph) else 0


def linear_work(scene: Scene, step: Step) -> dict[Legs, int]:
    """MACs of one batch element, by the legs they run over (a leg in two roles occurs twice)."""
    parts, found = recurrence_of(step), Counter[Legs]()
    chunk, key = linear_chunk(scene, step), str(scene.graph.key)
    query = key if chunk else str(scene.graph.query)  # a scan pads queries to the number of keys
    for term in parts.terms:
        stored, read = _batches(parts, term)
        found[(key, *stored, *term.features, *parts.result)] += 1
        found[(query, *read, *term.features, *parts.result)] += 1
        if _normalized(parts):
            found[(query, *read, *(term.groups + parts.mixed if term.core else term.features))] += 1
        if chunk:
            found[(query, *read, *term.features)] += chunk
            found[(query, *read, *parts.result)] += chunk
        if chunk and term.decays:
            found[(query, *read, *term.decayed)] += chunk
        if chunk and term.core:
            found[(query, *read, *term.groups, *parts.mixed)] += chunk
    return dict(found)


def _batches(parts: Recurrence, term: ScoreTerm) -> tuple[Legs, Legs]:
    """The heads for which keys and values are summed, and those for which queries read the sums."""
    values = () if parts.value is None else (parts.value,)
    stored = {leg for use in (*term.key, *term.core, *values, *(b for _, b in term.decays)) for leg in use.legs}
    read = stored.union(*(use.legs for use in (*term.query, *(a for a, _ in term.decays))))
    return tuple(leg for leg in parts.heads if leg in stored), tuple(leg for leg in parts.heads if leg in read)


def decays(scene: Scene, step: Step) -> list[int]:
    """The decay factors inside the chunks of a causal kernel, by term: one exponential each."""
    parts, chunk = recurrence_of(step), linear_chunk(scene, step)
    batch = scene.batch if step.name in scene.batched else 1
    rows = batch * scene.sizes[str(scene.graph.query)] * chunk
    return [rows * scene.size((*_batches(parts, term)[1], *term.decayed)) * bool(term.decays) for term in parts.terms]


def _normalized(parts: Recurrence) -> bool:
    return not isinstance(parts.weighting, Masked)


def linear_kept(scene: Scene, step: Step) -> dict[str, int]:
    """Floats saved for backward besides operands and result: states, row sums, and scores inside the chunks."""
    parts, found = recurrence_of(step), dict[str, int]()
    batch = scene.batch if step.name in scene.batched else 1
    rows, chunk = scene.sizes[str(scene.graph.query)], linear_chunk(scene, step)
    for i, (term, factors) in enumerate(zip(parts.terms, decays(scene, step), strict=True)):
        stored, read = _batches(parts, term)
        state = scene.size((*stored, *term.features, *parts.result))
        found[f"{step.name}: states {i}"] = batch * state * (-(-rows // chunk) if chunk else 1)
        if chunk:
            own = scene.size((*read, *(term.groups or parts.mixed))) + scene.size((*read, *parts.mixed)) * bool(
                term.core
            )
            found[f"{step.name}: scores {i}"] = batch * rows * chunk * own
        if factors:  # and the scores before decay
            found[f"{step.name}: decay {i}"] = 2 * factors
    if _normalized(parts):
        found[f"{step.name}: row sums"] = batch * rows * scene.size((*parts.heads, *parts.mixed))
    return found
