"""Predicted peaks against the allocator's: near enough to choose between plans that differ by orders."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.price import price_of
from tensornet_attn.cost.target import Target
from tensornet_attn.graph import build
from tensornet_attn.kernels.attention import FUSED
from tensornet_attn.kernels.experts import EXPERTS
from tensornet_attn.kernels.linear import LINEAR
from tensornet_attn.plan.make import candidates, make_plan
from tests.memory import peak, training_peak

N, F = 1024, 128
DESIGNS = ("mhsa", "talking_heads", "transformer_xl", "mgk", "linear", "band", "differential", "mlp", "epa", "mgk_em")
DESIGNS = (*DESIGNS, "mamba1", "retnet", "rwkv4")


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


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", ["moa", "head_gated", "epa", "based", "mamba2", "linear", "trainable_heads_only"])
def test_each_choice_is_that_of_the_cheaper_plan(name: str, backward: bool) -> None:
    """Of the rows that compare times: what they compare is what the price of the whole plan says."""
    graph = build(ta.load(name, legs={"f": 256}))
    ways = [f"{one.name} forced" for one in (EXPERTS, LINEAR, FUSED)] + [f"without {EXPERTS.name}"]
    for n in (256, 1024):
        target = Target("training" if backward else "prefill", n=n, device=DEVICES["cpu"])
        chosen, *others = (
            price_of(plan.schedule, target.sizes(graph), target).seconds
            for plan in (make_plan(graph, "torch", target), *candidates(graph, target, ways).values())
        )
        assert chosen <= 1.01 * min(others)


def test_attention_of_chosen_heads_saves_that_of_all_heads() -> None:
    told = ta.explain("moa", n=1024, device_costs="cpu")
    assert "  y: grouped experts: rows sorted by expert, only the 8 chosen of 16 computed, also in 'A'" in told
    assert "not grouped experts" in ta.explain("moa", n=64, device_costs="cpu")  # a call for each head takes longer


def test_linear_attention_is_chosen_by_time_where_rates_are_measured() -> None:
    based = {"n": 1024, "workload": "prefill"}
    told = ta.explain("based", device_costs="generic", **based)
    assert "not linear attention: summing over the keys first would take 2.16 times as long at the rates of cpu" in told
    told = ta.explain("based", **based, device_costs="cpu")
    assert "not linear attention: summing over the keys first would take" in told
    assert "milliseconds instead of" in told
