"""First values of weights and states."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tensornet_attn.graph import build
from tensornet_attn.graph.pairs import summed_dims
from tensornet_attn.nn.initial import initial
from tensornet_attn.spec import load

DESIGN: dict[str, Any] = {
    "tensornet": 1,
    "name": "test",
    "legs": {"n": "query 64", "f": 60, "h": "head 3", "d": "f / h", "r": "head 60"},
    "settings": {"size": 0.25},
    "inputs": {"x": "n f"},
    "weights": {
        "W": "f h d",
        "Wo": "h d f",
        "P": "n f",
        "s": [],
        "N": {"legs": "f r", "init": "normal(size / 2)"},
        "U": {"legs": "f r", "init": "uniform(size)"},
        "C": {"legs": "f r", "init": "kron(eye(h), ones(d, d))"},
        "F": {"legs": "h", "init": "full(1 / h)"},
        "I": {"legs": "f r", "init": "eye"},
        "O": {"legs": "f", "init": "ones"},
        "Z": {"legs": "f", "init": "zeros"},
    },
    "diagram": {
        "V": "x[n f] W[f h d] F[h] s[] -> n h d",
        "R": "x[n f] N[f r] + x[n f] U[f r] + x[n f] C[f r] + x[n f] I[f r] -> n r",
        "y": "V[n h d] Wo[h d f] + R[n f] + P[n f] + O[f] + Z[f] -> n f",
    },
    "output": "y",
}
GRAPH = build(load(DESIGN))


def first(name: str) -> torch.Tensor:
    torch.manual_seed(0)
    return initial(GRAPH.tensor[name], GRAPH, dtype=torch.float64)


def test_xavier_counts_the_legs_that_the_first_product_sums_away() -> None:
    assert summed_dims(GRAPH, GRAPH.tensor["W"]) == (0,)
    assert summed_dims(GRAPH, GRAPH.tensor["Wo"]) == (0, 1)
    for name, fans in {"W": 60 + 60, "Wo": 60 + 60, "P": 1 + 64 * 60, "s": 1 + 1}.items():
        bound = math.sqrt(6 / fans)
        assert first(name).abs().max() <= bound
    assert abs(first("W").std() - math.sqrt(2 / 120)) < 0.01


def test_a_weight_on_a_sequence_leg_has_its_maximum() -> None:
    assert first("P").shape == (64, 60)


def test_random_values_have_the_size_asked_for() -> None:
    assert abs(first("N").std() - 0.125) < 0.01
    assert 0.24 < first("U").abs().max() <= 0.25


def test_values_that_draw_nothing() -> None:
    exact = {"dtype": torch.float64}
    block = torch.ones(20, 20, **exact)
    torch.testing.assert_close(first("C"), torch.block_diag(block, block, block))
    torch.testing.assert_close(first("F"), torch.full((3,), 1 / 3, **exact))
    torch.testing.assert_close(first("I"), torch.eye(60, **exact))
    assert torch.equal(first("O"), torch.ones(60, **exact))
    assert torch.equal(first("Z"), torch.zeros(60, **exact))


@pytest.mark.parametrize("name", ["W", "C", "N"])
def test_values_have_the_dtype_asked_for(name: str) -> None:
    assert initial(GRAPH.tensor[name], GRAPH).dtype == torch.float32
    assert initial(GRAPH.tensor[name], GRAPH, dtype=torch.bfloat16).dtype == torch.bfloat16
