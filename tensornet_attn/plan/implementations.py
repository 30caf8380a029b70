"""The table of the planner: rewritings and implementations of each backend, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tensornet_attn.kernels import KERNELS
from tensornet_attn.kernels.attention import FUSED
from tensornet_attn.kernels.band import BAND
from tensornet_attn.kernels.blockwise import BLOCKWISE
from tensornet_attn.kernels.experts import EXPERTS
from tensornet_attn.kernels.features import FEATURES
from tensornet_attn.kernels.implementation import Implementation, Rewriting
from tensornet_attn.kernels.linear import LINEAR
from tensornet_attn.kernels.native import NATIVE
from tensornet_attn.kernels.outer import OUTER
from tensornet_attn.kernels.scan import SCAN
from tensornet_attn.kernels.states import STATES
from tensornet_attn.kernels.sums import CUMSUM
from tensornet_attn.kernels.tiles import TRITON
from tensornet_attn.kernels.total import TOTAL
from tensornet_attn.ops.registered import registered
from tensornet_attn.plan.as_maps import SUMS
from tensornet_attn.plan.convolve import WITH_WEIGHTS
from tensornet_attn.plan.distribute import DISTRIBUTION
from tensornet_attn.plan.duplicate import BESIDE_KERNELS, DUPLICATES
from tensornet_attn.plan.hoist import HOISTS
from tensornet_attn.plan.normalized import NORMALIZED
from tensornet_attn.plan.shift import SHIFTED
from tensornet_attn.plan.through import THROUGH

_ADDED: list[Implementation[Any]] = []


@dataclass(frozen=True)
class ImplementationTable:
    """Rewritings of the diagram, then implementations in the order in which they are asked: added ones first.

    Last, kernels get what they compute besides. `skipped`: names of rows that a plan skips, for each plan that is
    compared; a strict plan skips the last ones.
    """

    rewritings: tuple[Rewriting, ...]
    implementations: tuple[Implementation[Any], ...]
    skipped: tuple[tuple[str, ...], ...] = ((),)

    @property
    def rows(self) -> tuple[Implementation[Any], ...]:
        return (*_ADDED, *self.implementations, OUTER, FEATURES, TOTAL)


@contextmanager
def another_implementation(row: Implementation[Any]) -> Iterator[None]:
    """Adds an implementation to all tables inside a `with` block. Raises InputError if its kind is in use."""
    with registered(KERNELS, row.kind, row, "kind of kernel"):
        _ADDED.append(row)
        try:
            yield
        finally:
            _ADDED.remove(row)


REWRITINGS = (WITH_WEIGHTS, THROUGH, NORMALIZED, HOISTS, DUPLICATES, DISTRIBUTION, SUMS)
TORCH = ImplementationTable(
    (SHIFTED, *REWRITINGS),
    (BAND, STATES, LINEAR, CUMSUM, FUSED, EXPERTS, BLOCKWISE, SCAN),
)
# C++ kernels beside fused attention, or in its place: where scores mix several products, they need less work. They
# cannot shift a product with a table of keys, so the rewrite would leave these scores to blocks of queries.
CPP = ImplementationTable(
    REWRITINGS,
    (*TORCH.implementations[:-2], NATIVE, BLOCKWISE, SCAN),
    ((), (FUSED.name, DUPLICATES.name, DISTRIBUTION.name)),
)
# A Triton kernel reads all values of one map, and skips keys outside a band.
BESIDE_TILES = (WITH_WEIGHTS, THROUGH, NORMALIZED, BESIDE_KERNELS, DISTRIBUTION, SUMS)
TRITON_ALONE = ImplementationTable(
    BESIDE_TILES, (STATES, LINEAR, CUMSUM, TRITON, BAND, FUSED, EXPERTS, BLOCKWISE, SCAN)
)
BESIDE_FUSED = ImplementationTable(
    BESIDE_TILES, (STATES, LINEAR, CUMSUM, FUSED, TRITON, BAND, EXPERTS, BLOCKWISE, SCAN)
)
