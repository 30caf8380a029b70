"""A mask that is one more row of the table is in kernels too, in the interpreter."""

from __future__ import annotations

import pytest
import torch

from tensornet_attn.ops import another_mask
from tests.agreement import modules
from tests.ops.another import LATE
from tests.ops.test_another_mask import CASES, design
from tests.random_call import same_results
from tests.triton.regions import on_triton

F64 = torch.float64


@pytest.mark.parametrize("masks", [*CASES, ("late(3, -1)", "window(4, 0)")])
def test_values_and_gradients(masks: tuple[str, ...]) -> None:
    with another_mask(LATE):
        oracle, module = modules(design(*masks), "triton")
        assert on_triton(module)
        x = torch.randn(1, 70, 6, dtype=F64)
        same_results(module, oracle, [x])
        options = {"mask": torch.rand(70, 70) < 0.6}
        same_results(module, oracle, [x], options)
