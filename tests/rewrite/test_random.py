"""Random designs, random calls, masks of every form: the simple diagram is the diagram, and so is every choice."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.graph import Graph, build
from tensornet_attn.nn.initial import initial
from tensornet_attn.reference import evaluate
from tensornet_attn.rewrite import simplified
from tensornet_attn.rewrite.engine import everywhere
from tensornet_attn.rewrite.table import CHOICES
from tests.random_call import Call
from tests.random_design import random_design

seeds = st.integers(0, 2**32)
filtered = [HealthCheck.filter_too_much, HealthCheck.too_slow]


def drawn(seed: int) -> tuple[Graph, Call]:
    data = random_design(random.Random(seed))
    assume(not any(problem.severity == "error" for problem in ta.check(data)))
    graph = build(ta.load(data))
    return graph, Call(graph, random.Random(seed), seed)


def output(graph: Graph, call: Call, leaves: dict[str, Tensor], options: dict) -> list[Tensor]:
    """The output in training, and the gradients of its sum of squares."""
    given_leaves = {**leaves, **options.get("noise", {})}
    masks = {key: value for key, value in options.items() if key != "noise"}
    y = evaluate(graph, given_leaves, lengths=call.lengths, **masks)[graph.output]
    y = y + 0 * sum(leaf.sum() for leaf in leaves.values())  # some designs read no leaf at all
    return [y, *torch.autograd.grad(y.square().sum(), list(leaves.values()))]


def leaves_of(graph: Graph, inputs: list[Tensor]) -> dict[str, Tensor]:
    leaves = {t.name: x for t, x in zip(graph.of_role("input"), inputs, strict=True)}
    for tensor in graph.tensors:
        if tensor.role in ("weight", "state"):
            leaves[tensor.name] = torch.rand_like(initial(tensor, graph, dtype=torch.float64)) * 1.2 - 0.5
    return {name: value.requires_grad_() for name, value in leaves.items()}


def same(got: list[Tensor], want: list[Tensor]) -> None:
    assume(all(x.isfinite().all() and (x.numel() == 0 or x.abs().max() < 1e6) for x in want))
    for a, b in zip(got, want, strict=True):
        scale = max(1.0, b.abs().max().item()) if b.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9 * scale)


REWRITINGS = {"simplified": simplified} | {group.name: partial(everywhere, rules=group.rules) for group in CHOICES}


@pytest.mark.parametrize("name", REWRITINGS)
@settings(max_examples=40, suppress_health_check=filtered)
@given(seed=seeds)
def test_a_rewritten_diagram_is_the_diagram(name: str, seed: int) -> None:
    graph, call = drawn(seed)
    torch.manual_seed(seed)
    inputs, options = call.arguments()
    made, trace = REWRITINGS[name](graph)
    assert REWRITINGS[name](made) == (made, ())
    leaves = leaves_of(graph, inputs)
    if trace:
        same(output(made, call, leaves, options), output(graph, call, leaves, options))
