"""Designs whose regions have kernels written by hand: compiled for Triton, they equal their plain loops."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tests.designs.cases import CASES, check, compiled, drawn, inputs_of, normal, steadied
from tests.triton.agreement import near

LINEAR, DELTA, TILES = "triton_linear_attention(", "triton_delta_rule(", "tiled("
SUMS, ROWS, ONE = "triton_expert_sums(", "triton_expert_rows(", "triton_gated_expert_sums("
DESIGNS = {
    "band": (TILES,),
    "linear": (LINEAR,),
    "fmm2": (TILES, LINEAR),
    "fmm_fast_weight2": (TILES, LINEAR, DELTA),
    "kernel_gfish": (LINEAR,),
}
EXPERTS = {  # at sizes where the chosen ones alone are computed
    "sigma_moe": ({"f": 64}, (SUMS, ROWS)),
    "epa": ({}, (ONE,)),
}
OTHERS = {
    "fmm1": (TILES, LINEAR),
    "fmm3": (TILES, LINEAR),
    "fmm1_causal": (TILES, LINEAR),
    "fmm_fast_weight1": (TILES, DELTA),
    "kernel_fish": (LINEAR,),
    "thsa_elu": (LINEAR,),
    "mlk": (LINEAR,),
}


def equal_to_loops(name: str, calls: tuple[str, ...], causal: bool | None) -> None:
    module = compiled(name, "triton", causal)
    assert [call for call in calls if call not in module.source] == []
    assert "triton" in module.plan.backends.values()
    check(name, module, steadied(name, module, inputs_of(name)), causal)


@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_equals_its_plain_loops(name: str) -> None:
    equal_to_loops(name, DESIGNS[name], True)


@pytest.mark.parametrize("name", ["sigma_moe", pytest.param("epa", marks=pytest.mark.slow)])
def test_chosen_experts_equal_all_of_them(name: str) -> None:
    legs, calls = EXPERTS[name]
    design = ta.load(name, legs=legs)
    module, wanted = drawn(ta.compile(design, "triton", dtype=torch.float64)), ta.reference(design, dtype=torch.float64)
    assert [call for call in calls if call not in module.source] == []
    wanted.load_state_dict(module.state_dict())
    x = 0.1 * normal(torch.Generator().manual_seed(1), 1, 4, dict(design.legs)["f"])  # else one key is all of a map
    own = [one(x) for one in (module, wanted)]
    near(*own)
    found = [
        torch.autograd.grad(y.square().sum(), one.parameters()) for y, one in zip(own, (module, wanted), strict=True)
    ]
    for one, other in zip(*found, strict=True):
        near(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), [(name, causal) for name in OTHERS for causal in CASES[name].causal])
def test_the_others(name: str, causal: bool) -> None:
    equal_to_loops(name, OTHERS[name], causal)


def test_a_choice_is_a_kernel_too() -> None:
    of_choice = {"G.of.of": "torch", "G.of": "torch"}  # the product with the router and its map
    assert ta.compile("sigma_moe", "triton").plan.backends == {**of_choice, "G": "triton", "y": "triton"}


@pytest.mark.parametrize("name", ["band", "linear"])
def test_a_module_in_one_graph(name: str) -> None:
    module, (x,) = compiled(name, "triton", True), inputs_of(name)
    torch._dynamo.reset()
    found = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, module(x))
