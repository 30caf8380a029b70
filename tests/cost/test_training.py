"""MACs of forward and backward: one product more for each factor that gets a gradient; torch's autograd agrees."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.cost.report import cost
from tensornet_attn.cost.work import training_macs
from tensornet_attn.graph import build

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


@pytest.mark.parametrize("name", ["mhsa", "hard_fish", "mgk", "mlp"])
def test_torch_counts_the_same(name):
    """The reference writes out the same products; gradients flow to the input and all weights."""
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
    assert training_macs(graph, lengths) == 3 * cost(graph, lengths).macs


@pytest.mark.parametrize("name", ["mhsa", "linear", "band", "gfish", "epa"])
def test_fused_operations_cost_three_times_their_forward(name):
    graph = build(ta.load(name))
    planned = plan_of(graph).schedule
    assert planned is not None
    assert training_macs(planned, LENGTHS) == 3 * cost(planned, LENGTHS).macs


def test_the_batch_multiplies():
    graph = build(ta.load("mhsa"))
    assert training_macs(graph, LENGTHS, batch=3) == 3 * training_macs(graph, LENGTHS)
