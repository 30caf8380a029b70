"""Reductions of nothing; softmaxes that are merged by their logsumexp are right in every row, as one softmax is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.hidden_cases import F64, module_of, results

SCORES = {"S": "q[n h d] k[m h d] -> h n m"}
REGISTERS = {  # a softmax over keys and registers: each part has the logsumexp of the other as its sink
    "T": "q[n h d] R[r h d] -> h n r",
    "ls": {"logsumexp": "m", "of": "S"},
    "lt": {"logsumexp": "r", "of": "T"},
    "A": {"softmax": "m", "sink": "lt", "of": "S"},
    "B": {"softmax": "r", "sink": "ls", "of": "T"},
    "y": "A[h n m] k[m h d] + B[h n r] R[r h d] -> n h d",
}
HALVES = {  # near and far keys, weighted by the sigmoid of a difference; the row of a query may have neither
    "l": {"logsumexp": "m", "mask": ["window(4, -2)"], "of": "S"},
    "k2": {"logsumexp": "m", "mask": ["window(1, 0)"], "of": "S"},
    "A": {"softmax": "m", "mask": ["window(4, -2)"], "of": "S"},
    "B": {"softmax": "m", "mask": ["window(1, 0)"], "of": "S"},
    "w": {"map": "sigmoid", "of": "l[h n] - k2[h n] -> h n"},
    "u": {"map": "sigmoid", "of": "k2[h n] - l[h n] -> h n"},
    "C": "w[h n] A[h n m] + u[h n] B[h n m] -> h n m",
    "y": "C[h n m] k[m h d] R[h] -> n h d",
}
ONE = {"A": {"softmax": "m", "mask": ["window(4, 0)"], "of": "S"}, "y": "A[h n m] k[m h d] R[h] -> n h d"}
BACKENDS = [("reference", {}), ("torch", {}), ("torch", {"linear_memory": True}), ("cpp", {})]


def design(diagram: dict[str, Any]) -> dict[str, Any]:
    registers = "r h d]" in str(diagram)
    return {
        "tensornet": 1,
        "name": "merged",
        "legs": {"n": "query", "m": "key", "h": "head 2", "d": 4} | ({"r": 3} if registers else {}),
        "inputs": {"q": "n h d", "k": "m h d"},
        "weights": {"R": "r h d" if registers else "h"},
        "diagram": {**SCORES, **diagram},
        "output": "y",
    }


def call(n: int = 9) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Queries and keys, and a key mask with some keys of one sequence, and none of the other."""
    draw = torch.Generator().manual_seed(n)
    inputs = [torch.randn(2, n, 2, 4, generator=draw, dtype=F64) for _ in range(2)]
    return inputs, torch.stack([torch.rand(n, generator=draw) < 0.4, torch.zeros(n, dtype=torch.bool)])


@pytest.mark.parametrize("options", BACKENDS, ids=str)
def test_registers_and_keys_are_one_softmax(options: tuple[str, dict[str, Any]]) -> None:
    inputs, key_mask = call()
    merged = module_of(design(REGISTERS), options[0], F64, **options[1])
    registers = merged.R.detach()
    for keep in (key_mask, torch.ones_like(key_mask)):
        q, k, R = (x.clone().requires_grad_() for x in (*inputs, registers))
        rows = torch.cat((torch.einsum("bnhd,bmhd->bhnm", q, k), torch.einsum("bnhd,rhd->bhnr", q, R)), -1)
        shown = torch.cat((keep, torch.ones(2, 3, dtype=torch.bool)), -1)[:, None, None]
        values = torch.cat((k, R.expand(2, 3, 2, 4)), 1)
        y = torch.einsum("bhnm,bmhd->bnhd", rows.masked_fill(~shown, -torch.inf).softmax(-1), values)
        weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(5), dtype=F64)
        wanted = [y.detach(), *torch.autograd.grad((y * weight).sum(), (q, k, R))]
        torch.testing.assert_close(results(merged, inputs, {"key_mask": keep}), wanted)


@pytest.mark.parametrize("options", BACKENDS, ids=str)
def test_parts_of_the_keys_are_one_softmax(options: tuple[str, dict[str, Any]]) -> None:
    """Also where both parts of a row are empty: zeros."""
    inputs, key_mask = call()
    merged, one = (module_of(design(diagram), options[0], F64, **options[1]) for diagram in (HALVES, ONE))
    for options_of_call in ({}, {"key_mask": key_mask}):
        found, wanted = (results(module, inputs, options_of_call) for module in (merged, one))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_empty_rows_are_finite_in_all_dtypes(backend: str, dtype: torch.dtype) -> None:
    """So are differences of empty rows; their squares and sums are finite, but for float16."""
    inputs, key_mask = call()
    square = {"z": {"map": "square", "of": "ls"}, "Z": {"mean": "n", "of": {"sum": "h", "of": "z"}}}
    data = design(HALVES | {"ls": {"logsumexp": "m", "of": "S"}, **square}) | {"losses": {"Z": 1.0}}
    layer = module_of(data, backend, dtype)
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    y, losses = layer(*leaves, key_mask=key_mask, losses=True)
    assert not y[1].any()
    assert losses["Z"].isfinite() or dtype == torch.float16
    gradients = torch.autograd.grad(y.sum() + losses["Z"], leaves)
    assert all(gradient.isfinite().all() and not gradient[1].any() for gradient in gradients)


def test_merged_with_a_cache() -> None:
    """A step whose only visible keys are registers, before and after others."""
    data = design(REGISTERS) | {"causal": True, "inputs": {"x": "n h d"}}
    data["diagram"] = {"q": "x[n h d]", "k": "x[m h d]", **data["diagram"]}
    layer = ta.compile(data, dtype=F64).eval()
    x, key_mask = call()[0][0], torch.arange(9) > torch.tensor([[3], [-1]])
    cache, parts = layer.new_cache(), []
    for first, last in ((0, 2), (2, 3), (3, 9)):
        parts.append(layer(x[:, first:last], key_mask=key_mask[:, :last], cache=cache))
    torch.testing.assert_close(torch.cat(parts, 1), layer(x, key_mask=key_mask))


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "logsumexp"])
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_no_keys_and_hidden_keys_are_alike(backend: str, kind: str) -> None:
    layer = module_of(design({"A": {kind: "m", "of": "S"}, "y": "A[h n] q[n h d] R[h] -> n h d"}), backend, F64)
    inputs, key_mask = call()
    (hidden, *gradients), (none, *others) = (
        results(layer, inputs, {"key_mask": torch.zeros_like(key_mask)}),
        results(layer, [inputs[0], inputs[1][:, :0]], {}),
    )
    torch.testing.assert_close(none, hidden)
    torch.testing.assert_close(others[0], gradients[0])
    assert not gradients[1].any()
    assert hidden.any() == (kind == "logsumexp")


@pytest.mark.parametrize("bias", [-1e9, -1e25, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("options", BACKENDS, ids=str)
def test_the_gradient_of_a_row_of_huge_scores_is_shares(options: tuple[str, dict[str, Any]], bias: float) -> None:
    """The logarithm of the number of keys is less than a rounding of such a score."""
    layer = module_of(
        design({"A": {"logsumexp": "m", "of": "S"}, "y": "A[h n] R[h] -> n h"}), options[0], torch.float32
    )
    mask = torch.full((9, 9), bias)
    q, k = (x.float().requires_grad_() for x in call()[0])
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) + mask
    weights = (scores - scores.detach().amax(-1, keepdim=True)).softmax(-1).detach()
    wanted = torch.einsum("bhnm,bmhd,h->bnhd", weights, k, layer.R).detach()
    (gradient,) = torch.autograd.grad(layer(q, k, mask=mask).sum(), q)
    torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6)
