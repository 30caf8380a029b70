"""Predicted peaks against the allocator's: near enough to choose between plans that differ by orders."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.plan.make import make_plan
from tensornet_attn.plan.price import price_of
from tensornet_attn.plan.target import Target
from tests.memory import peak, training_peak

N, F = 1024, 128
DESIGNS = ("mhsa", "talking_heads", "transformer_xl", "mgk", "linear", "band", "differential", "mlp", "epa", "mgk_em")


def measured(name: str, backend: str, backward: bool) -> int:
    """The most bytes of a call with its module, gradients of weights and the input."""
    layer = ta.compile(ta.load(name, legs={"f": F}), backend)
    weights = sum(4 * weight.numel() for weight in layer.parameters())
    if backward:
        return training_peak(layer, N, F) + 2 * weights + 4 * N * F
    x = torch.randn(1, N, F)
    with torch.no_grad():
        layer.eval()(x)
        return peak(lambda: layer(x)) + weights + 4 * N * F


@pytest.mark.rotated
@pytest.mark.parametrize("workload", ["training", "prefill"])
@pytest.mark.parametrize("name", DESIGNS)
def test_peaks_are_predicted_within_a_factor_of_two(name: str, workload: str) -> None:
    target, graph = Target(workload, n=N), build(ta.load(name, legs={"f": F}))
    found = price_of(make_plan(graph, "torch", target).schedule, target.sizes(graph), target).bytes
    assert 0.5 <= found / measured(name, "torch", target.backward) <= 2


def test_dense_and_fused_are_told_apart() -> None:
    target, graph = Target(n=N), build(ta.load("mhsa", legs={"f": F}))
    prices = [
        price_of(make_plan(graph, b, target).schedule, target.sizes(graph), target).bytes
        for b in ("reference", "torch")
    ]
    truth = [measured("mhsa", backend, backward=True) for backend in ("reference", "torch")]
    assert prices[0] > 4 * prices[1]
    assert truth[0] > 4 * truth[1]


def test_a_longer_run_takes_longer_and_a_backward_more() -> None:
    graph = build(ta.load("talking_heads"))

    def predicted(**target: object) -> float:
        own = Target(**target)  # type: ignore[arg-type]
        return price_of(make_plan(graph).schedule, own.sizes(graph), own).seconds

    assert predicted(n=2048) > 2 * predicted(n=1024)
    assert predicted(batch=2) > 1.5 * predicted()
    assert 3 * predicted(n=N, workload="prefill") <= predicted(n=N) <= 4 * predicted(n=N, workload="prefill")
