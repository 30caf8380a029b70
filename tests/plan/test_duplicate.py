"""Scores that several maps read: those maps that can then be lowered by themselves get scores of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.devices import GENERIC
from tensornet_attn.graph import build
from tensornet_attn.plan.duplicate import lower_duplicates

from .linear_cases import SCORES, diagram

NEAR = {"softmax": "m", "mask": ["band(4)"], "of": "S"}
WIDE, FAR = {"softmax": "m", "scale": "d ** -0.5", "of": "S"}, {"normalize": "m", "of": "S"}
TWO = "near[h n m] V[m h e] Wo[h e f] + wide[h n m] V[m h e] Wo[h e f] -> n f"
BLEND = {"A": "near[h n m] + b[h] wide[h n m] -> h n m", "y": "A[h n m] V[m h e] Wo[h e f] -> n f"}
LSE = {"wide": WIDE, "sink": {"map": "sigmoid", "of": {"logsumexp": "m", "of": "S"}}}
READ = "wide[h n m] V[m h e] sink[h n] Wo[h e f] -> n f"
TANH = {"softmax": "m", "of": {"map": "tanh", "of": "S"}}
SUM = "Q[n h d] K[m h d] + q[n h] k[m h] -> h n m"
CASES: dict[str, tuple[dict[str, Any], str, str]] = {  # steps; who reads scores of its own, on torch and before Triton
    "near and wide": ({"near": NEAR, "wide": WIDE, "y": TWO}, "wide", "near"),
    "a blend": ({"near": NEAR, "wide": WIDE, **BLEND}, "wide", "near"),
    "near and far": ({"near": NEAR, "wide": FAR, **BLEND}, "wide", "wide"),
    "beside its sum": (LSE | {"y": READ}, "wide", ""),
    "beside a map that no lowering takes": ({"near": NEAR, "wide": TANH, "y": TWO}, "near", "near"),
    "a blend with one": ({"near": NEAR, "wide": TANH, **BLEND}, "", ""),
    "scores of two terms": ({"S": SUM, "near": TANH, "wide": {**TANH, "mask": ["causal"]}, "y": TWO}, "", ""),
}
SIZES = {"n": 1024, "m": 1024}


def source(steps: dict[str, Any]) -> Any:
    return diagram({"S": SCORES} | steps)


@pytest.mark.parametrize("name", CASES)
def test_which_get_scores_of_their_own(name: str) -> None:
    steps, lowered, before_triton = CASES[name]
    graph = build(ta.load(source(steps)), False)
    for fused, wanted in ((True, lowered), (False, before_triton)):
        made = lower_duplicates(graph, SIZES, GENERIC, fused).graph
        readers = {own: [step.name for step, _ in made.readers[own]] for own in made.step if own.startswith("S.")}
        assert readers == ({"S.copy": [wanted]} if wanted else {})
        assert wanted not in [step.name for step, _ in made.readers["S"]]
        assert lower_duplicates(made, SIZES, GENERIC, fused).graph == made
        assert (made == graph) == (not wanted)


@pytest.mark.rotated
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients(name: str, causal: bool) -> None:
    design = ta.load(source(CASES[name][0]))
    ours, plain = (ta.compile(design, backend=own, causal=causal).double() for own in ("torch", "reference"))
    ours.load_state_dict(plain.state_dict())
    x, z = (torch.randn(2, 37, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(own)) for own in (0, 1))
    found = []
    for module in (ours, plain):
        y = module(x, z)
        found.append([y, *torch.autograd.grad(y.square().sum(), list(module.parameters()))])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_what_the_plan_says() -> None:
    told = ta.compile(source(CASES["near and wide"][0])).explain()
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
