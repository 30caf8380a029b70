"""MACs of forward and backward: one product more for each factor that gets a gradient; torch's autograd agrees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tensornet_attn as ta
from tensornet_attn.cost.report import cost
from tensornet_attn.cost.target import target_from
from tensornet_attn.cost.work import training_macs
from tensornet_attn.graph import build
from tensornet_attn.plan.make import make_plan
from tests.masked import design

LENGTHS = {"n": 24, "m": 24}
FROZEN = {
    "tensornet": 1,
    "name": "frozen",
    "legs": {"n": "query", "f": 8, "g": 6, "k": 4},
    "inputs": {"x": "n f"},
    "weights": {"W": {"legs": "f g", "frozen": True}, "U": {"legs": "g k", "frozen": True}},
    "diagram": {"P": "W[f g] U[g k] -> f k", "y": "x[n f] P[f k] -> n k"},
    "output": "y",
}


def test_a_product_without_gradient_costs_its_forward_alone():
    graph = build(ta.load(FROZEN))
    lengths = {"n": 5}
    assert cost(graph, lengths).macs == 8 * 6 * 4 + 5 * 8 * 4
    assert training_macs(graph, lengths) == 8 * 6 * 4 + 2 * 5 * 8 * 4  # the gradient of x alone


def test_a_gradient_is_a_product_where_it_sums_a_leg_of_several_entries():
    narrow = {
        "tensornet": 1,
        "name": "narrow",
        "legs": {"n": "query", "f": 6, "c": 1},
        "inputs": {"x": "n f"},
        "weights": {"W": "f c"},
        "diagram": {"y": "x[n f] W[f c] -> n c"},
        "output": "y",
    }
    assert training_macs(build(ta.load(narrow)), {"n": 5}) == 2 * 5 * 6  # the result and W; that of x sums one entry


@pytest.mark.parametrize("name", ["mhsa", "hard_fish", "mgk", "mlp"])
def test_torch_counts_the_same(name):
    """The reference writes out the same products; gradients flow to the input and all weights.

    Torch adds up the gradients of `P[g h] Q[n g d]` by elements, and those of |K|^2 sum nothing.
    """
    small = {"mlp": {"f": 16, "l": 32}}.get(name, {"f": 16, "h": 2, "d": 8})
    design = ta.load(name, legs=small | ({"g": 1} if name == "hard_fish" else {}))
    graph = build(design)
    lengths = {leg.name: 24 for leg in graph.legs if leg.sequence}
    layer = ta.compile(design, backend="reference")
    x = torch.randn(1, 24, 16, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    assert counter.get_total_flops() == 3 * forward
    by_elements = {"hard_fish": 2 * 24 * 2 * 8, "mgk": -2 * 24 * 2 * 2 * 8}.get(name, 0)
    assert training_macs(graph, lengths) == 3 * cost(graph, lengths).macs + by_elements


def test_the_batch_multiplies():
    graph = build(ta.load("mhsa"))
    assert training_macs(graph, LENGTHS, batch=3) == 3 * training_macs(graph, LENGTHS)


def planned_macs(source: dict[str, Any], backend: str) -> int:
    lengths = {"n": 4096, "m": 4096}
    return training_macs(make_plan(build(ta.Design(**source)), backend, target_from(**lengths)).schedule, lengths)


def test_blocks_that_read_relative_positions_meet_all_keys_up_to_the_query():
    def source(mask: str) -> dict[str, Any]:
        data = design(mask, wide=True, own=False)
        data["legs"] |= {"t": "relative", "d": "head 3"}
        data["weights"]["u"], data["constants"] = "h d", {"P": {"legs": "t d", "value": "sinusoid"}}
        far = {"rel_shift": "t", "to": "m", "of": "u[h d] P[t d] Q[n h d] -> h n t"}
        scores = {"map": "tanh", "of": "0.1 * Q[n h d] K[m h d] + R[h n m] -> h n m"}
        steps = data["diagram"] | {"R": far, "S": scores}
        return data | {"diagram": {name: steps[name] for name in ("Q", "K", "V", "R", "S", "A", "y")}}

    masks = ("causal", "window(w, 0)", "causal and (window(w, 0) or prefix(p))")
    every, near, first = (planned_macs(source(mask), "torch") for mask in masks)
    assert first == every > near


def test_kernels_that_also_read_what_no_mask_hides_meet_all_keys():
    def source(mask: str) -> dict[str, Any]:
        data = design(mask)
        steps = data["diagram"] | {"B": "A[h n m] + 0.1 * S[h n m] -> h n m"}
        steps["y"] = "B[h n m] V[m h d] Wo[h d f] -> n f"
        return data | {"diagram": {name: steps[name] for name in ("Q", "K", "V", "S", "A", "B", "y")}}

    near, every = (planned_macs(source(mask), "triton") for mask in ("window(w, 0)", "causal"))
    assert near == every
