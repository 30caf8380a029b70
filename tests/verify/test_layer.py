"""`ta.verify`: right layers of every backend agree with the reference; of wrong ones it names the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.errors import InputError
from tensornet_attn.runtime import cpp, maps
from tests.designs.sizes import CASES
from tests.refusals import refusal

DESIGN = """
name: {name}
extends: differential
legs: {{f: 12, h: 2, d: 3, e: 4}}
"""
BOTH = ({}, {"mask": True, "key_mask": True})


def inputs(*batch: int, n: int = 7, m: int = 5, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(*batch, size, 12, generator=draw).to(dtype) for size in (n, m)]


def masks(form: dict[str, bool], n: int = 7, m: int = 5) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    keep = {"mask": torch.rand(n, m, generator=draw) < 0.6, "key_mask": torch.rand(2, m, generator=draw) < 0.7}
    keep["mask"][2] = False
    return {name: keep[name] for name in form}


@pytest.mark.parametrize("form", BOTH, ids=["plain", "masks"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["reference", "torch", "cpp"])
def test_right_layers_agree(
    backend: str, dtype: torch.dtype, form: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "cpp" and (cpp.reason_against_cpp() or dtype == torch.float64):
        pytest.skip("there is no C++ compiler, or it would work for a second dtype")
    monkeypatch.setenv(cpp.CPP_MORE, "-O0")
    layer = ta.compile(DESIGN.format(name="right"), backend, dtype=dtype, device_costs="generic")
    found = ta.verify(layer, *inputs(2, dtype=dtype), **masks(form))
    assert found
    assert found.first is None
    steps = {one.name for one in found.differences}
    assert {"Q1", "V", "O", "y", "x", "memory", "Wq1", "lq1"} <= steps
    assert set(found.unobserved) == ({"A1", "A2", "A"} - steps)
    assert ("A" in steps) == (backend == "reference")


@pytest.mark.parametrize("name", ["gla", "fast_weight2", "tpa", "switch", "mgk_em", "mish", "t5", "sigma_moe"])
def test_designs_of_other_forms(name: str) -> None:
    """Recurrences, factors that plans move, chosen experts, states, noise, buckets: steps agree or are not compared."""
    torch.manual_seed(0)
    layer = ta.compile(ta.load(name, legs=CASES[name].legs, settings=CASES[name].settings))
    key_mask = {"key_mask": torch.rand(2, 9) < 0.7} if layer.mask_places.keys else {}
    found = ta.verify(layer, torch.randn(2, 9, CASES[name].legs["f"]), **key_mask)
    assert found, found
    assert [one for one in found.differences if not one.agrees] == []


@pytest.mark.parametrize("where", ["value", "gradient"])
def test_the_first_step_that_differs_is_named(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = maps.rms_norm

    def wrong(x: Tensor, *rest: Any) -> Tensor:
        y = right(x, *rest)
        return y + 0.01 * y.abs() if where == "value" else y + 0.01 * (x - x.detach())

    monkeypatch.setattr(maps, "rms_norm", wrong)
    found = ta.verify(ta.compile(DESIGN.format(name=f"wrong_{where}"), "torch"), *inputs(2))
    assert not found
    assert found.first is not None
    assert not found.gradients_agree
    if where == "value":
        assert (found.first.name, found.first.gradient, found.outputs_agree) == ("O", False, False)
        assert "DIFFERS from the reference in float64\n  first difference: 'O' differs by" in str(found)
    else:  # O is right, and so is what comes back to it; what reads it on the way back is not
        assert (found.first.name, found.first.gradient, found.outputs_agree) == ("V", True, True)
        assert "first difference: the gradient of 'V' differs by" in str(found)


def test_a_layer_is_left_as_it_was() -> None:
    layer, given = ta.compile(DESIGN.format(name="left"), "torch"), inputs(2)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert ta.verify(layer.train(), *(x.clone() for x in given))
    assert layer.training
    assert all(weight.grad is None for weight in layer.parameters())
    assert ta.verify(layer, memory=given[1], x=given[0])


def test_what_is_no_layer_and_what_does_not_fit() -> None:
    assert refusal(ta.verify, torch.nn.Linear(2, 2), torch.ones(2, 2)) == (
        "verify takes a compiled design, as ta.compile returns it, not a Linear."
    )
    with pytest.raises(InputError, match="input 'x' has size 3 on leg 'f', which is 12"):
        ta.verify(ta.compile(DESIGN.format(name="left"), "torch"), torch.ones(2, 3))
