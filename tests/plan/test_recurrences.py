"""A design has a cache of constant size if, and only if, it trains in a time that is linear in the length."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.compiler import build
from tensornet_attn.cost.target import Target
from tensornet_attn.errors import InputError
from tensornet_attn.graph.graph import Graph
from tensornet_attn.kernels import KERNELS
from tensornet_attn.plan.decoding import as_decoder, decoding_of
from tensornet_attn.plan.make import plan_of
from tensornet_attn.tiles.legs import quadratic
from tests.relations.found import FOUND

N = 1 << 16
GATED = [
    design for design in FOUND if design["name"] in ("map_that_a_sum_and_values_read", "gated_square", "earlier_keys")
]


def for_all_pairs(graph: Graph) -> list[str]:
    """The steps of a plan whose work is that of all pairs of queries and keys."""
    schedule = plan_of(graph, "torch", Target(n=N)).schedule
    pairs = {kind for kind, row in KERNELS.items() if row.pairs and kind not in ("band", "scan")}
    return [
        step.name
        for step in schedule.steps
        if (step.kernel.kind in pairs if step.kernel else quadratic(schedule, step.legs))
    ]


@pytest.mark.parametrize(
    "design", [*ta.list_designs(), *GATED], ids=lambda design: getattr(design, "get", lambda _: design)("name")
)
def test_constant_states_train_linearly(design: str | dict[str, Any]) -> None:
    graph = build(ta.load(design))
    try:
        decoding = decoding_of(graph)
    except InputError:
        return  # no cache
    if graph.key is None or decoding.memory or all(kept.reach for kept in decoding.kept):
        return
    assert (decoding.floats(N) == decoding.floats(2 * N)) == (not for_all_pairs(graph))


def test_states_of_powers_are_not_larger_than_keys() -> None:
    """Values share the leg of keys, so that a state has the leg twice: 8 heads of 64 ** 3 elements."""
    assert as_decoder(build(ta.load("mhsa_poly"))).floats(1024) == 2 * 1024 * 512
