"""A map and a box that are registered have their tiles in kernels, in the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.ops import another_map, another_operation
from tests.ops.another import LOGSIGMOID, SQUARES
from tests.ops.test_another import step
from tests.random_call import same_results
from tests.triton.regions import on_triton


def check(design: dict[str, Any], causal: bool = False, **options: Any) -> None:
    """The same outputs and gradients from kernels as from the oracle."""
    torch.manual_seed(0)
    oracle, module = (ta.compile(design, backend, causal, dtype=torch.float64) for backend in ("reference", "triton"))
    module.load_state_dict(oracle.state_dict())
    assert on_triton(module)
    inputs = [torch.randn(2, 9, 6, dtype=torch.float64) for _ in range(2)]
    same_results(module, oracle, inputs, options)


def test_a_map() -> None:
    with another_map(LOGSIGMOID):
        scores = {"map": "log_of_sigmoid", "of": "Q[n h d] K[m h d] -> h n m"}
        check(step(softmax="m", of=scores), mask=torch.rand(9, 9) < 0.6)


@pytest.mark.parametrize("causal", [False, True])
def test_a_sum_along_the_keys(causal: bool) -> None:
    with another_operation(SQUARES):
        design = step(squares="m", of="Q[n h d] K[m h d] -> h n m")
        design["diagram"]["y"] = "A[h n] Q[n h d] Wo[h d f] + V[n h d] Wo[h d f] -> n f"
        design["diagram"]["V"] = "x[n f] Wv[f h d] -> n h d"
        check(design, causal, mask=torch.rand(9, 9) < 0.6)


def test_a_sum_over_tiles_beside_each_other() -> None:
    with another_operation(SQUARES):
        design = step(softmax="m", of={"squares": "h", "of": "Q[n h d] K[m h d] -> h n m"})
        design["diagram"]["y"] = "A[n m] V[m h d] Wo[h d f] -> n f"
        check(design, mask=torch.rand(9, 9) < 0.6)
