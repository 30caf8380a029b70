"""Expert projections: which experts win."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta

from .cases import BACKENDS, CASES, compiled, inputs_of, same
from .sizes import CHOICES

backends = pytest.mark.parametrize("backend", BACKENDS)
EXPERTS = ["epa", *(f"epa_{letters}" for letters in CHOICES), "epa_rope", "epa_xl", "moa", "moa_sigmoid", "sigma_moe"]


@backends
@pytest.mark.parametrize("name", EXPERTS)
def test_among_equal_gates_the_first_experts_win(name, backend):
    module, x, gates = closed(name, backend), inputs_of(name), ("Ss", "Sd", "Sg", "Ws")
    y = module(*x)
    k, e = CASES[name].settings["k"], CASES[name].legs["e"]
    changed = {key: first(value, e, k) for key, value in module.state_dict().items() if key not in gates}
    module.load_state_dict(changed, strict=False)
    same(module(*x), y, "output without the others")
    assert y.abs().max() > 1e-3


def test_without_a_gate_on_the_output_its_choice_is_not_trained():
    """Eq. 10 as printed weighs the chosen experts of the output by 1: that choice has no gradient, and cannot learn."""
    printed = {
        "extends": "epa",
        "name": "epa_eq_10",
        "constants": {"one": {"legs": "n h e", "value": "ones"}},
        "diagram": {"Gd": {"topk": "e", "k": "k", "of": "one", "by": "x[n f] Sd[f h e] -> n h e"}},
    }
    (x,) = inputs_of("epa")
    for design, trained in ((printed, False), ("epa", True)):
        case = CASES["epa"]
        module = ta.compile(ta.load(design, legs=case.legs, settings=case.settings), dtype=torch.float64)
        module(x).square().sum().backward()
        gradient = module.Sd.grad
        assert (gradient is not None and gradient.abs().max() > 1e-6) == trained
        assert module.Ss.grad.abs().max() > 1e-6


def closed(name: str, backend: str) -> torch.nn.Module:
    """The design with equal gates everywhere."""
    module = compiled(name, backend)
    zeros = {key: torch.zeros_like(v) for key, v in module.state_dict().items() if key in ("Ss", "Sd", "Sg", "Ws")}
    module.load_state_dict(zeros, strict=False)
    return module


def first(weight: Tensor, e: int, k: int) -> Tensor:
    """The weight with zeros for all but the first k of e experts, along the leg that has that size, if any."""
    axes = [axis for axis, size in enumerate(weight.shape) if size == e]
    return weight if not axes else weight.clone().index_fill(axes[0], torch.arange(k, e), 0.0)
