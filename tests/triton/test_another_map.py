"""A map that is one more row of the table is in kernels too, in the interpreter."""

from __future__ import annotations

import torch

import tensornet_attn as ta
from tensornet_attn.ops import another_map
from tests.ops.another import LOGSIGMOID
from tests.ops.test_another import step
from tests.random_call import assert_same, results
from tests.triton.regions import on_triton


def test_values_and_gradients() -> None:
    design = step(softmax="m", of={"map": "logsigmoid", "of": "Q[n h d] K[m h d] -> h n m"})
    with another_map(LOGSIGMOID):
        torch.manual_seed(0)
        oracle, module = (ta.compile(design, backend, dtype=torch.float64) for backend in ("reference", "triton"))
        module.load_state_dict(oracle.state_dict())
        assert on_triton(module)
        inputs, mask = [torch.randn(2, 9, 6, dtype=torch.float64) for _ in range(2)], torch.rand(9, 9) < 0.6
        assert_same(results(module, inputs, {"mask": mask}), results(oracle, inputs, {"mask": mask}))
