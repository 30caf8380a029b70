"""What is kept in at least float32 whatever the dtype of a layer."""

from __future__ import annotations

import pytest

from tensornet_attn.graph.precision import kept_wide, scores
from tensornet_attn.plan.decoding import decoding_of
from tests.shipped import graph_of

WIDE = {
    "mhsa": set(),
    "linear": set(),
    "fox": {"u", "g", "c", "c.each"},
    "retnet": {"i", "gap", "share.of", "share", "gamma.of", "gamma", "D.of", "D"},
    "t5": set(),
    "rg_lru": {"r", "s.of", "speed", "decay"},
    "kda": {"g", "rates", "steps"},
}


@pytest.mark.parametrize("name", WIDE)
def test_constants_decays_and_their_sums_are_kept_wide(name: str) -> None:
    graph = graph_of(name)
    assert kept_wide(graph) == WIDE[name]


def test_scores_are_exponents_of_queries_and_keys() -> None:
    assert scores(graph_of("gla")) == {"D.of", "c.each"}
    assert scores(graph_of("linear")) == set()


def test_parts_that_read_no_state_are_wide_by_the_same_rule() -> None:
    parts = {part.value_name: part for part in decoding_of(graph_of("fox")).parts}
    assert {value for value, part in parts.items() if part.wide} == {"g", "c.chunk", "c", "c.state1"}
    assert {tensor.name for tensor in parts["y"].graph.tensors if tensor.wide} == {"c", "c.all"}
