"""Softmax beside a sink in kernels, in the interpreter: in one pass and in two, of heads that are mixed or joined."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.agreement import in_chunks
from tests.ops.test_softmax import design, masks
from tests.triton.regions import draw, on_triton, pair, same

MIXED = {
    "tensornet": 1,
    "name": "joined",
    "extends": "mgk",
    "legs": {"f": 6, "h": "head 2"},
    "weights": {"b": "h"},
    "diagram": {"A": {"softmax": "m", "of": "S", "sink": "b[h]"}},
}
CASES: dict[str, dict[str, Any]] = {
    "window": design("blocks", "heads", "causal and window(5, 0)"),
    "prefix": design("blocks", "scalar", "causal and (window(5, 0) or prefix(2))"),
    "rows": design("blocks", "rows"),
    "number": design("blocks", "number", causal=True),
    "mixed": design("mixed", "heads", causal=True),
    "joined": MIXED,
}


@pytest.mark.parametrize("kind", ["", "boolean", "float", "keys"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, kind: str) -> None:
    ours, oracle = pair(CASES[name])
    assert on_triton(ours)
    for n in (1, 20):
        same(ours, oracle, [draw(2, n, 6)], **masks(kind, n, n))


@pytest.mark.parametrize("name", ["window", "mixed"])
def test_values_and_gradients_of_some(name: str) -> None:
    test_values_and_gradients(name, "boolean")


def test_chunks_are_the_same_as_at_once() -> None:
    ours, oracle = pair(CASES["window"])
    x = draw(1, 13, 6)
    torch.testing.assert_close(in_chunks(ours, x, [5, 1, 7]), oracle(x))
    assert "sum_with_sink" in ta.compile(CASES["rows"], "triton").source
