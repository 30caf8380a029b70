"""Auxiliary losses of designs compiled for Triton: values and gradients of the plain loops, dropped experts too."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tests.designs.cases import compiled, normal
from tests.designs.test_losses import SEEN, check_losses, each
from tests.losses import inputs, made, total
from tests.triton.agreement import near

KEYS = torch.tensor([[True, True, False, True, False], [False, True, True, True, True], [False] * 5])


@each
def test_losses_equal_plain_loops(name: str) -> None:
    module = compiled(name, "triton")
    assert "triton" in module.plan.backends.values() or name == "sigma_moe_regularised"  # too few experts for kernels
    check_losses(name, module, SEEN)


def test_losses_beside_the_kernels_of_chosen_experts() -> None:
    design = ta.load("sigma_moe_regularised", legs={"f": 64})
    module, wanted = ta.compile(design, "triton"), ta.reference(design)
    assert module.plan.backends["y"] == "triton"
    wanted.load_state_dict(module.state_dict())
    x = normal(torch.Generator().manual_seed(1), 1, 4, 64).float()
    found = [one.eval()(x, losses=True) for one in (module, wanted)]
    near(found[0][0], found[1][0])
    near(found[0][1]["entropy"], found[1][1]["entropy"])
    gradients = [
        torch.autograd.grad(y.square().sum() + losses["entropy"], one.parameters())
        for (y, losses), one in zip(found, (module, wanted), strict=True)
    ]
    for got, want in zip(*gradients, strict=True):
        near(got, want)


@pytest.mark.parametrize("name", ["scores of fused attention", "an attention map", "values of linear attention"])
def test_losses_of_what_a_kernel_makes(name: str) -> None:
    """Attention stays in its kernel, and what a loss reads of it is made beside."""
    oracle, module = made(name, "reference", causal=True), made(name, "triton", causal=True)
    assert "triton" in module.plan.backends.values()
    module.load_state_dict(oracle.state_dict())
    pairs = [one(inputs(), losses=True, key_mask=KEYS) for one in (module, oracle)]
    for key, value in pairs[1][1].items():
        near(pairs[0][1][key], value)
    gradients = [
        torch.autograd.grad(total(oracle, *pair), one.parameters())
        for one, pair in zip((module, oracle), pairs, strict=True)
    ]
    for got, want in zip(*gradients, strict=True):
        near(got, want)
