"""Scores that several maps read: those maps that can then be lowered by themselves get scores of their own."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.agreement import modules, same_outcome

from .explained import ways
from .linear_cases import SCORES, diagram

pytestmark = pytest.mark.usefixtures("in_blocks")

NEAR = {"softmax": "m", "mask": ["band(4)"], "of": "S"}
WIDE, FAR = {"softmax": "m", "scale": "d ** -0.5", "of": "S"}, {"normalize": "m", "of": "S"}
TWO = "near[h n m] V[m h e] Wo[h e f] + wide[h n m] V[m h e] Wo[h e f] -> n f"
BLEND = {"A": "near[h n m] + b[h] wide[h n m] -> h n m", "y": "A[h n m] V[m h e] Wo[h e f] -> n f"}
LSE = {"wide": WIDE, "sink": {"map": "sigmoid", "of": {"logsumexp": "m", "of": "S"}}}
READ = "wide[h n m] V[m h e] sink[h n] Wo[h e f] -> n f"
TANH = {"softmax": "m", "of": {"map": "tanh", "of": "S"}}
SUM = "Q[n h d] K[m h d] + q[n h] k[m h] -> h n m"
BAND, LINEAR, FUSED, ROWS = "banded attention", "linear attention", "fused attention", "blockwise"
# Steps; how each map is computed on torch; which has scores of its own there; and in a Triton kernel.
CASES: dict[str, tuple[dict[str, Any], dict[str, str], str, str]] = {
    "near and wide": ({"near": NEAR, "wide": WIDE, "y": TWO}, {"near.o": BAND, "wide": FUSED}, "wide", "near"),
    "a blend": ({"near": NEAR, "wide": WIDE, **BLEND}, {"near.o": BAND, "wide": FUSED}, "wide", "near"),
    "near and far": ({"near": NEAR, "wide": FAR, **BLEND}, {"near.o": BAND, "wide.o": LINEAR}, "wide", ""),
    "beside its sum": (LSE | {"y": READ}, {"sink.of": ROWS, "wide": FUSED}, "wide", ""),
    "beside a map that no lowering takes": (
        {"near": NEAR, "wide": TANH, "y": TWO}, {"near.o": BAND, "y.p2": ROWS}, "near", "near"
    ),
    "a blend with one": ({"near": NEAR, "wide": TANH, **BLEND}, {"y.p1": ROWS}, "", ""),
    "scores of two terms": (
        {"S": SUM, "near": TANH, "wide": {**TANH, "mask": ["causal"]}, "y": TWO}, {"y.p1": ROWS, "y.p3": ROWS}, "", ""
    ),
}  # fmt: skip


def source(steps: dict[str, Any]) -> Any:
    return diagram({"S": SCORES} | steps)


@pytest.mark.parametrize("name", CASES)
def test_which_get_scores_of_their_own(name: str) -> None:
    steps, wanted, own, in_kernel = CASES[name]
    plan = ta.compile(source(steps), device_costs="generic").plan
    assert ways(plan.explain()) == wanted
    readers = {region.steps for region in plan.regions if "S.copy" in region.steps}
    assert {steps[:2] for steps in readers} == ({("S.copy", own)} if own else set())
    assert not any({"n", "m"} <= {*step.legs} for step in plan.schedule.steps)  # no scores are stored
    text = ta.emit_source(source(steps), backend="triton")  # a comment names the steps of each region
    assert re.findall(r"# S\.copy, (\w+), .*: ", text) == [in_kernel] * bool(in_kernel)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients(name: str, causal: bool) -> None:
    plain, ours = modules(ta.load(source(CASES[name][0])), causal=causal)
    x, z = (torch.randn(2, 37, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(own)) for own in (0, 1))
    same_outcome(ours, plain, [x, z])


def test_what_the_plan_says() -> None:
    told = ta.compile(source(CASES["near and wide"][0]), device_costs="generic").explain()
    assert "near.o: banded attention" in told
    assert "wide: fused attention" in told
    assert "used elsewhere" not in told


def test_scores_that_are_wanted_for_themselves_stay() -> None:
    design = source({"wide": WIDE, "y": "wide[h n m] V[m h e] Wo[h e f] -> n f"})
    design["diagram"]["far"] = {"mean": "n", "of": {"mean": "m", "of": "S"}}
    design["state"] = {"seen": {"legs": "h", "init": "ones", "update": "far"}}
    module = ta.compile(design)
    assert "wide: fused attention" in module.explain()
    assert module.plan.backends.keys() >= {"far"}
