"""Costs of the kernel `states`: sums over the keys that are mixed over heads before queries read them.

# S.of = k v;  S = sum over m of S.of;  O = q mix S

MACs, with H the heads of queries, G those of keys and values, F the features (legs that q and k share and O lacks), V
the values' own legs:

    k v                   m G F V
    mix                   H G F V, causal in chunks of C: m / C times
    q S                   n H F V
    causal, inside chunks n C H G F and n C H G V
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import log2, prod

from tensornet_attn.cost.linear import CHUNKS
from tensornet_attn.cost.scene import Scene
from tensornet_attn.graph.attention import Legs
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of


def with_rows(graph: Graph, step: Step) -> Step | None:
    """The kernel to compute in one call with this one: one sums keys and values, the other only the same keys."""
    at = next((place for place, other in enumerate(graph.steps) if other.name == step.name), None)
    if at is None:
        return None
    own = recurrence_of(step)
    for place, other in enumerate(graph.steps):
        parts = other.form
        if not isinstance(parts, Recurrence) or not parts.mixes or place == at:
            continue
        same = (parts.terms, parts.mix, parts.heads) == (own.terms, own.mix, own.heads)
        first = min(at, place)
        made = {*graph.tensor, *(one.name for one in graph.steps[:first])}
        ready = all(use.name in made for one in (step, other) for use in one.op.uses)
        if same and ready and (parts.value is None) != (own.value is None) and _masked_alike(graph, parts, own):
            return other
    return None


def _masked_alike(graph: Graph, one: Recurrence, other: Recurrence) -> bool:
    return {*graph.masks(one.box)} == {*graph.masks(other.box)}


def states_chunk(graph: Graph, parts: Recurrence, sizes: Mapping[str, int] | None = None) -> int:
    """Keys per chunk: fewer than in linear attention, by the number of mixed heads with scores inside a chunk."""
    known = {leg.name: leg.size or 1 for leg in graph.legs} | dict(sizes or {})
    root: int = 2 ** round(log2(prod(known[leg] for leg in (*parts.features, *parts.own))) / 2)
    return min(max(root // prod(known[leg] for leg in parts.mixed), CHUNKS[0]), CHUNKS[1])


def states_work(scene: Scene, step: Step) -> dict[Legs, int]:
    """MACs of one batch element, by the legs they run over."""
    parts, found = recurrence_of(step), Counter[Legs]()
    key, width = str(scene.graph.key), (*parts.features, *parts.own)
    scan = parts.causal(scene.graph)
    query = key if scan else str(scene.graph.query)  # a scan pads queries to the number of keys
    chunk, scored = _chunk(scene, step)
    if parts.value is not None:
        found[(key, *parts.mixed, *width)] += 1
    found[(*parts.heads, *parts.mixed, *width)] += -(-scene.sizes[key] // chunk) if scan else 1
    found[(query, *parts.heads, *width)] += 1
    if scan:
        if scored:
            found[(query, *parts.heads, *parts.mixed, *parts.features)] += chunk
        if parts.value is not None:
            found[(query, *parts.heads, *parts.mixed, *parts.own)] += chunk
    return dict(found)


def states_elementwise(scene: Scene, step: Step) -> int:
    """Operations over the whole batch: sums of keys without values, additions to states; if causal also the mask inside
    chunks, and the sums of states and of the values that mixed heads read."""
    parts = recurrence_of(step)
    batch = scene.batch if step.name in scene.batched else 1
    rows, (chunk, scored) = scene.sizes[str(scene.graph.key)], _chunk(scene, step)
    found = rows * scene.size((*parts.mixed, *parts.features)) if parts.value is None else 0
    if parts.added is not None:
        found += scene.size(parts.added.legs)
    if parts.causal(scene.graph):
        found += rows * scene.size((*parts.heads, *parts.mixed)) * (chunk * scored + scene.size(parts.own))
        found += -(-rows // chunk) * scene.size((*parts.mixed, *parts.features, *parts.own))
    return batch * found


def states_kept(scene: Scene, step: Step) -> dict[str, int]:
    """Floats saved for backward besides operands and result: states, mixed states, and scores inside the chunks."""
    parts = recurrence_of(step)
    batch = scene.batch if step.name in scene.batched else 1
    rows, width = scene.sizes[str(scene.graph.key)], (*parts.features, *parts.own)
    if not parts.causal(scene.graph):
        return {f"{step.name}: {name}": batch * scene.size((*legs, *width)) for name, legs in _states(parts)}
    chunk, scored = _chunk(scene, step)
    chunks = -(-rows // chunk)
    found = {f"{step.name}: {name}": batch * chunks * scene.size((*legs, *width)) for name, legs in _states(parts)}
    heads = scene.size((*parts.heads, *parts.mixed))
    return found | ({f"{step.name}: scores": batch * rows * chunk * heads} if scored else {})


def states_chunked(scene: Scene, step: Step) -> int:
    """Keys per chunk of a kernel; 0 if it is not causal."""
    return _chunk(scene, step)[0] if recurrence_of(step).causal(scene.graph) else 0


def _chunk(scene: Scene, step: Step) -> tuple[int, bool]:
    """Keys per chunk, and whether scores are computed; sums of keys alone use the scores of their keys and values."""
    parts, other = recurrence_of(step), with_rows(scene.graph, step)
    scored = parts.value is not None or other is None
    lead = parts if scored or other is None else recurrence_of(other)
    return states_chunk(scene.graph, lead, scene.sizes), scored


def _states(parts: Recurrence) -> tuple[tuple[str, Legs], ...]:
    return ("states", parts.mixed), ("mixed states", parts.heads)
