"""Tuformer: sizes, starts and warnings that the papers' designs have besides their function."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta

F, H, D = 12, 3, 4
KERNELS = ["thsa_elu", "thsa_square"]


def parameters(name: str, **legs: int) -> int:
    return ta.cost(ta.load(name, legs=legs), n=4).parameters


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("thsa", 1.25),
        ("heads_only", 0.015625),
        ("mhsa_core", 1.0),
        ("skip_left", 1 + 2 * 64 / 2**20),
        ("thsa_kron", 1 + (64 + 2 * 64) / 2**20),
    ],
)
def test_parameters_beside_mhsa(name, share):
    assert parameters(name) / parameters("mhsa") == share


def test_trainable_heads_only_is_the_diagram_of_thsa():
    assert ta.load("trainable_heads_only").hash == ta.load("thsa", legs={"r": 8, "s": 8}).hash


def test_thsa_elu_starts_as_linear_attention():
    torch.manual_seed(0)
    design = ta.load("thsa_elu", legs={"f": F, "r": H * D, "s": H * D, "h": H})
    module = ta.compile(design, backend="reference", dtype=torch.float64)
    linear = ta.compile(ta.load("linear", legs={"f": F, "h": H}), backend="reference", dtype=torch.float64)
    split = {name: getattr(module, name).unflatten(1, (H, D)) for name in ("Wq", "Wk", "Wv")}
    linear.load_state_dict(split | {"Wo": module.Wo.unflatten(0, (H, D))})
    x = torch.randn(2, 5, F, dtype=torch.float64)
    torch.testing.assert_close(module(x), linear(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_a_free_core_may_be_negative_and_the_checker_warns(name):
    (warning,) = ta.check(name)
    assert (warning.code, warning.severity) == ("negative-normalize", "warning")


@pytest.mark.parametrize("name", KERNELS)
def test_rows_of_kernel_maps_have_sum_one(name):
    module = ta.compile(ta.load(name, legs={"f": F, "r": 6, "s": 4, "h": 2}), backend="reference", dtype=torch.float64)
    rows = module.capture(torch.randn(2, 5, F, dtype=torch.float64), "A").sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=1e-10, atol=1e-10)
