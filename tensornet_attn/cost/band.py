"""Attention within a band: how far a query sees, the blocks it is computed in, and what these cost.

A block of B queries meets one span of keys, from `left` before its first query to `right` after its last: B + left +
right keys for each query, however many keys there are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf, isinf

from tensornet_attn.cost.scene import Scene
from tensornet_attn.graph.causal import areas_seen, looks_back
from tensornet_attn.graph.model import FusedAttention, Graph, Step, body_graph
from tensornet_attn.graph.visibility import visible_areas
from tensornet_attn.ir.areas import Areas, distances, reach_and_prefix
from tensornet_attn.ops import OPS

BLOCKS = (32, 256)  # the least and the largest number of queries in a block


@dataclass(frozen=True)
class Reach:
    """A query sees keys at most `left` positions before it and `right` after it; below 0, not even its own.

    And some of the first `prefix` keys, wherever it stands.
    """

    left: int
    right: int
    prefix: int = 0

    @property
    def block(self) -> int:
        """Queries in a block: the power of two below half the band, the fastest as measured on a CPU.

        >>> Reach(9, 9).block, Reach(64, 64).block, Reach(4095, 0).block
        (32, 64, 256)
        """
        half = max(1, self._beyond // 2)
        return min(max(1 << half.bit_length() - 1, BLOCKS[0]), BLOCKS[1])

    @property
    def span(self) -> int:
        """Keys that each block meets.

        >>> Reach(9, 9).span
        50
        """
        return self.block + self._beyond + self.prefix

    @property
    def _beyond(self) -> int:
        return max(self.left, 0) + max(self.right, 0)


@dataclass(frozen=True)
class Band:
    """An attention whose masks let a query see no further than its reach."""

    attention: FusedAttention
    reach: Reach


@dataclass(frozen=True)
class Block:
    """Steps that are computed for a block of queries at a time: those inside of it, and the one that others read.

    `tiled`: in tiles of queries and keys, where those beyond a band are left out, and nothing stands in memory.
    """

    inside: tuple[Step, ...]
    exit: Step
    tiled: bool = False


def reach_of(graph: Graph, box: Step) -> Reach | None:
    """How far the masks of a box let a query see; None where a side has no bound that is known before run time."""
    return _reach(visible_areas(graph.masks(box), graph.values))


def _reach(areas: Areas) -> Reach | None:
    (near, far), prefix = reach_and_prefix(areas)
    return Reach(int(far), int(-near), prefix) if max(far, -near) < inf else None


def keys_met(scene: Scene, step: Step) -> int | None:
    """The keys that each query meets in a kernel that leaves out blocks beyond its bands; None where it meets all."""
    graph, form = scene.graph, step.form
    if isinstance(form, Band):
        reach: Reach | None = form.reach
    elif isinstance(form, Block) and form.tiled:
        reach = _reach(areas_seen(body_graph(graph, step)))
    elif isinstance(form, Block):
        left, right, prefix = reach_in(body_graph(graph, step))
        reach = None if left is None or right is None else Reach(left, right, prefix)
    else:
        return None
    return None if reach is None else min(reach.span, scene.sizes[str(graph.key)])


def reach_in(graph: Graph) -> tuple[int | None, int | None, int]:
    """How far a row of a block sees before and after itself, None where there is no bound, and how many first keys.

    What is read by relative positions has all keys up to those nearby.
    """
    areas = areas_seen(graph)
    (near, far), prefix = reach_and_prefix(areas)
    relative = any(step.box is not None and OPS[step.box.kind].makes_leg for step in graph.steps)
    if relative or isinf(far):
        (near, far), prefix = distances(areas) or (0, 0), 0
    near = max(near, 0) if looks_back(graph) else near
    return None if isinf(far) else int(far), None if isinf(near) else int(-near), prefix


def band_of(step: Step) -> Band:
    """The attention that a kernel 'band' computes, and its reach."""
    assert isinstance(step.form, Band)
    return step.form


def band_work(scene: Scene, step: Step) -> dict[tuple[str, ...], int]:
    """Multiply-adds of one batch element: each query meets one span of keys, and reads their values."""
    op, reach = band_of(step).attention, band_of(step).reach
    found: Counter[tuple[str, ...]] = Counter()
    for use in (op.key, op.value):
        legs = {*op.query.legs, *use.legs} if use == op.key else {*op.scores, *use.legs}
        found[tuple(leg.name for leg in scene.graph.legs if leg.name in legs - {op.leg})] += reach.span
    return found


def band_kept(scene: Scene, step: Step) -> dict[str, int]:
    """Floats kept in addition to operands and result: keys and values stand in each span, not once; log-sum-exps."""
    op, reach = band_of(step).attention, band_of(step).reach
    batch = scene.batch if step.name in scene.batched else 1
    n, m = (scene.sizes[leg] for leg in (str(scene.graph.query), op.leg))
    more = max(0, -(-n // reach.block) * reach.span - m)
    sides = {"keys": op.key, "values": op.value}
    found = {
        f"{name} in spans": more * scene.size(leg for leg in use.legs if leg != op.leg) for name, use in sides.items()
    }
    found["log-sum-exp"] = scene.size(leg for leg in op.scores if leg != op.leg)
    return {f"{step.name}: {name}": batch * floats for name, floats in found.items()}
