"""Which boxes sum the keys first, why others do not, and that the result is the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.cost.devices import GENERIC
from tensornet_attn.cost.linear import linear_of
from tensornet_attn.graph import build
from tensornet_attn.graph.model import Graph, Kernel
from tensornet_attn.plan.linear import lower_linear

from .linear_cases import LINEAR, REFUSED, SIZES

SHIPPED = ("linear", "mlk", "smlk", "thsa_elu", "thsa_square", "kernel_fish", "kernel_gfish")
LENGTHS = {"n": 1024, "m": 1024}


def lowered(source: Any, causal: bool = False, **lengths: int) -> Graph:
    return lower_linear(build(ta.load(source), causal), LENGTHS | lengths, GENERIC).graph


def kernels(graph: Graph) -> list[str]:
    return [step.op.kind for step in graph.steps if isinstance(step.op, Kernel)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def modules(source: Any, causal: bool, backend: str = "torch") -> tuple[Any, Any]:
    design = ta.load(source)
    ours, oracle = (ta.compile(design, own, causal, dtype=torch.float64) for own in (backend, "reference"))
    state = {name: draw(*value.shape, seed=i) for i, (name, value) in enumerate(oracle.state_dict().items())}
    ours.load_state_dict(state)
    oracle.load_state_dict(state)
    return ours, oracle


def agree(ours: Any, oracle: Any, inputs: list[Tensor], **see: Tensor) -> None:
    """Equal values, and equal gradients of inputs and weights."""
    results = []
    for module in (ours, oracle):
        leaves = [t.clone().requires_grad_() for t in inputs] + list(module.parameters())
        y = module(*leaves[: len(inputs)], **see)
        loss = (y * draw(*y.shape, seed=5)).sum()
        results.append([y, *torch.autograd.grad(loss, leaves, materialize_grads=True)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)


@pytest.mark.rotated
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LINEAR)
def test_the_keys_are_summed_first_and_the_result_is_the_same(name: str, causal: bool) -> None:
    assert kernels(lowered(LINEAR[name], causal)) == ["linear"]
    ours, oracle = modules(LINEAR[name], causal)
    heads = [SIZES[leg] for leg in ours.plan.graph.step["A"].legs if leg not in ("n", "m")]
    for (n, m), batch in itertools.product([(5, 5), (3, 6), (6, 3), (1, 1)], [(), (2,)]):
        inputs, keys = [draw(*batch, n, 4), draw(*batch, m, 4, seed=1)], draw(*batch, m, seed=2) > -0.3
        agree(ours, oracle, inputs)
        agree(ours, oracle, inputs, key_mask=keys)
        agree(ours, oracle, inputs, mask=draw(n, m, seed=3) > -0.3, key_mask=keys)
        agree(ours, oracle, inputs, mask=draw(*batch, *heads, n, m, seed=4) > -0.3)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason_and_still_right(name: str) -> None:
    source, reason = REFUSED[name]
    graph = build(ta.load(source))
    made = lower_linear(graph, LENGTHS, GENERIC)
    assert (made.graph, made.refused) == (graph, {"A": (reason,)})
    agree(*modules(source, False), [draw(2, 5, 4), draw(2, 6, 4, seed=1)])


def test_short_sequences_keep_their_scores() -> None:
    graph = build(ta.load("linear"))
    made = lower_linear(graph, {"n": 16, "m": 16}, GENERIC)
    reason = "summing over the keys first would cost 1.06 M multiply-adds instead of 262 k multiply-adds"
    assert (made.graph, made.chosen, made.refused) == (graph, {}, {"A": (reason,)})


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("causal", [False, True])
def test_shipped_designs(name: str, causal: bool) -> None:
    made = lower_linear(build(ta.load(name), causal), LENGTHS, GENERIC)
    chunk = {"thsa_elu": 16, "thsa_square": 16, "kernel_fish": 128, "kernel_gfish": 128}.get(name, 64)
    how = f", in chunks of {chunk}" if causal else ""
    assert kernels(made.graph) == ["linear"]
    assert made.chosen == {
        "A.o": f"linear attention: the keys are summed first{how}; with a mask at run time the scores are made"
    }


def test_a_second_run_changes_nothing() -> None:
    once = lowered("kernel_gfish")
    assert lower_linear(once, LENGTHS, GENERIC).graph == once


def test_parts_of_mixed_heads() -> None:
    graph = lowered(LINEAR["mixed and a bias"])
    parts = linear_of(graph, graph.step["A.o"])
    assert (parts.heads, parts.mixed, parts.own) == ((), ("h",), ("e",))
    assert [(term.groups, term.width) for term in parts.terms] == [(("g",), ("d",)), ((), ())]
    assert [term.core.name for term in parts.terms if term.core] == ["P", "b"]


@pytest.mark.parametrize("name", ["linear", "kernel_gfish"])
def test_inputs_of_any_batch_even_none(name: str) -> None:
    for causal in (False, True):
        ours, oracle = modules(ta.load(name, {"f": 8, "h": 2, "d": 4}), causal)
        for batch in ((), (0,), (2, 3)):
            agree(ours, oracle, [draw(*batch, 5, 8)])
