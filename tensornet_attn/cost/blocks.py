"""Banded attention: how far a query sees, the blocks in which it is computed, and their cost.

A block of B queries reads one span of keys, from `left` before its first query to `right` after its last: B + left +
right keys per query, independent of the number of keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf

from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.causal import areas_seen, looks_back
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Graph, Step, cached
from tensornet_attn.graph.visibility import visible_areas
from tensornet_attn.ir.areas import Areas, distances, reach_and_prefix

BLOCKS = (32, 256)  # minimum and maximum number of queries in a block within a band
BUDGET = 1 << 22  # bytes of the largest float32 tensor of a block: fastest on two cores of a CPU; 2 to 8 MB are similar
BUDGET_ON_GPU = 1 << 26  # an H200 reads and writes as many bytes in 30 microseconds, and launches an operation in 10
CHUNKS = (16, 128)  # minimum and maximum keys in a chunk of a causal scan
LEAST = 16  # minimum rows of a block
IN_BAND = 64  # rows of a block within a band: fewer spend more time on calls than they save, more leave the cache


@dataclass(frozen=True)
class Reach:
    """A query sees keys from `left` positions before it to `right` after it; negative: not even its own position.

    It also sees some of the first `prefix` keys, at any distance.
    """

    left: int
    right: int
    prefix: int = 0

    @property
    def block(self) -> int:
        """Queries in a block: the largest power of two up to half the band, which is the fastest on a CPU.

        >>> Reach(9, 9).block, Reach(64, 64).block, Reach(4095, 0).block
        (32, 64, 256)
        """
        half = max(1, self._beyond // 2)
        return min(max(1 << half.bit_length() - 1, BLOCKS[0]), BLOCKS[1])

    @property
    def span(self) -> int:
        """Keys that each block reads.

        >>> Reach(9, 9).span
        50
        """
        return self.block + self._beyond + self.prefix

    @property
    def keys(self) -> int:
        """Keys that a block of `IN_BAND` queries reads.

        >>> Reach(9, 9).keys
        82
        """
        return IN_BAND + self._beyond + self.prefix

    @property
    def _beyond(self) -> int:
        return max(self.left, 0) + max(self.right, 0)


@dataclass(frozen=True)
class BlockedSteps:
    """Steps that are computed for one block of queries at a time: the inner steps, and the one that others read.

    `tiled`: computed in tiles of queries and keys, skipping tiles beyond a band, without storing inner values.
    """

    inside: tuple[Step, ...]
    exit: Step
    tiled: bool = False


def budget_of(device: Device) -> int:
    """Bytes of the largest float32 tensor of a block."""
    return BUDGET_ON_GPU if device.gpu else BUDGET


def reach_of(graph: Graph, box: Step) -> Reach | None:
    """How far the masks of a box let a query see; None if a side has no bound that is known before run time."""
    return bounded(visible_areas(graph.masks(box), graph.values))


def bounded(areas: Areas) -> Reach | None:
    (near, far), prefix = reach_and_prefix(areas)
    return Reach(int(far), int(-near), prefix) if max(far, -near) < inf else None


def reach_in_both(graph: Graph) -> Reach | None:
    """`reach_in` as a Reach; None if a side is unbounded."""
    left, right, prefix = reach_in(graph)
    return None if left is None or right is None else Reach(left, right, prefix)


@cached
def reach_in(graph: Graph) -> tuple[int | None, int | None, int]:
    """How far a row of a block sees before and after itself, None if unbounded, and the number of visible first keys.

    If values are read by relative position, all keys up to the nearby ones count as visible.
    """
    areas = areas_seen(graph)
    (near, far), prefix = reach_and_prefix(areas)
    relative = any(operation_of(step).makes_leg for step in graph.steps)
    if relative or isinf(far):
        (near, far), prefix = distances(areas) or (0, 0), 0
    near = max(near, 0) if looks_back(graph) else near
    return None if isinf(far) else int(far), None if isinf(near) else int(-near), prefix
