"""The table of the planner: rewritings and implementations of each backend, in the order in which they are tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensornet_attn.plan.band import BAND
from tensornet_attn.plan.blockwise import BLOCKWISE
from tensornet_attn.plan.convolve import WITH_WEIGHTS
from tensornet_attn.plan.cumsum import CUMSUM
from tensornet_attn.plan.distribute import DISTRIBUTION
from tensornet_attn.plan.duplicate import BESIDE_KERNELS, DUPLICATES
from tensornet_attn.plan.experts import EXPERTS
from tensornet_attn.plan.fuse import FUSED
from tensornet_attn.plan.hoist import FOR_EACH, HOISTS
from tensornet_attn.plan.implementation import Implementation, Rewriting
from tensornet_attn.plan.linear import LINEAR
from tensornet_attn.plan.native import NATIVE
from tensornet_attn.plan.normalized import NORMALIZED
from tensornet_attn.plan.shift import SHIFTED
from tensornet_attn.plan.states import STATES, SUMS
from tensornet_attn.plan.through import THROUGH
from tensornet_attn.plan.triton import TRITON


@dataclass(frozen=True)
class Table:
    """Rewritings of the diagram, then implementations."""

    rewritings: tuple[Rewriting, ...]
    rows: tuple[Implementation[Any], ...]


REWRITINGS = (WITH_WEIGHTS, THROUGH, NORMALIZED, HOISTS, FOR_EACH, DUPLICATES, DISTRIBUTION, SUMS)
TORCH = Table(
    (SHIFTED, *REWRITINGS),
    (BAND, STATES, LINEAR, CUMSUM, FUSED, EXPERTS, BLOCKWISE),
)
# C++ kernels beside fused attention, and in its place: where scores mix several products, they need less work. They
# cannot shift a product with a table of keys, so the rewrite would leave these scores to blocks of queries.
CPP = (
    Table(REWRITINGS, (*TORCH.rows[:-1], NATIVE, BLOCKWISE)),
    Table(
        (WITH_WEIGHTS, THROUGH, NORMALIZED, HOISTS, FOR_EACH, SUMS),
        (BAND, STATES, LINEAR, CUMSUM, EXPERTS, NATIVE, BLOCKWISE),
    ),
)
# A Triton kernel reads all values of one map, and skips keys outside a band.
KERNELS = (WITH_WEIGHTS, THROUGH, NORMALIZED, HOISTS, BESIDE_KERNELS, DISTRIBUTION, SUMS)
TRITON_ALONE = Table(KERNELS, (STATES, LINEAR, CUMSUM, TRITON, BAND, FUSED, EXPERTS, BLOCKWISE))
BESIDE_FUSED = Table(KERNELS, (STATES, LINEAR, CUMSUM, FUSED, TRITON, BAND, EXPERTS, BLOCKWISE))
BY_KIND = {row.kind: row for row in (*TRITON_ALONE.rows, NATIVE) if row.kind}
