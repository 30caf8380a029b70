"""Random designs, random calls: the compiled module is the reference, in value, gradients and states."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph
from tests.random_call import F64, Call, assert_same, results, usable
from tests.random_design import random_design
from tests.random_text import transposed

seeds = st.integers(0, 2**32)
filtered = [HealthCheck.filter_too_much, HealthCheck.too_slow]


def checked(seed: int) -> dict[str, Any]:
    """A random design that the checker accepts (nineteen in twenty do)."""
    data = random_design(random.Random(seed))
    assume(not any(problem.severity == "error" for problem in ta.check(data)))
    return data


def pair(data: dict[str, Any], seed: int, causal: bool | None, backend: str = "torch") -> tuple[Any, Any]:
    """The reference and the compiled module with the same random weights; training in one case of two.

    In one case of three without tensors of queries x keys, where that can be.
    """
    torch.manual_seed(seed)
    oracle = ta.reference(data, causal, dtype=F64)
    state = {name: torch.rand_like(value) * 1.2 - 0.5 for name, value in oracle.state_dict().items()}
    modules = oracle, made(data, backend, causal, seed % 3 == 0)
    for module in modules:
        module.load_state_dict(state)
        module.train(seed % 2 == 0)
    return modules


def made(data: dict[str, Any], backend: str, causal: bool | None, linear: bool) -> Any:
    """The compiled module, with linear memory where that is asked for and can be."""
    try:
        return ta.compile(data, backend, causal, dtype=F64, linear_memory=linear)
    except ta.InputError:
        return ta.compile(data, backend, causal, dtype=F64)


def causal_of(data: dict[str, Any], draw: random.Random) -> bool | None:
    """Causal in one case of three, where the design allows it."""
    if draw.random() > 1 / 3:
        return None
    try:
        build(ta.load(data), True)
    except ta.DesignError:
        return None
    return True


@settings(max_examples=60, suppress_health_check=filtered)
@given(seeds)
@example(1606)  # a kernel whose inner steps have names that others have outside of it
@example(7002307)  # values of a band that have some of its heads
@example(40071)  # a sum of a softmax, to which a float mask is added where a key mask hides
def test_a_compiled_design_is_the_reference(seed: int) -> None:
    data, draw = checked(seed), random.Random(seed)
    oracle, module = pair(data, seed, causal_of(data, draw))
    inputs, options = Call(module.plan.graph, draw, seed).arguments()
    wanted = results(oracle, inputs, options)
    assume(usable(wanted))
    found = results(module, inputs, options)
    assert_same(found, wanted)
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    missing = [name for name in trained & reaching(module.plan.graph) if found[f"gradient of {name}"] is None]
    assert missing == []  # zeros where a weight cannot matter, never None


def reaching(graph: Graph) -> set[str]:
    """The tensors and steps that reach the output, and not only a state."""
    found = {graph.output}
    for step in reversed(graph.steps):
        if step.name in found:
            found |= {use.name for use in step.op.uses}
    return found


@pytest.mark.slow
@settings(max_examples=600, suppress_health_check=filtered)
@given(seeds)
def test_many_compiled_designs_are_the_reference(seed: int) -> None:
    test_a_compiled_design_is_the_reference.hypothesis.inner_test(seed)


@settings(max_examples=20, suppress_health_check=filtered)
@given(seeds)
def test_other_names_and_stored_orders_mean_the_same(seed: int) -> None:
    data, draw = checked(seed), random.Random(seed)
    other, orders = transposed(random_design(random.Random(seed), "other_"), draw)
    assert ta.check(other) == [] or all(problem.severity == "warning" for problem in ta.check(other))
    first, second = (ta.compile(each, "torch", dtype=F64).eval() for each in (data, other))
    weights = {f"other_{name}": value for name, value in first.state_dict().items()}
    second.load_state_dict(
        {name: value.permute(orders.get(name, tuple(range(value.ndim)))) for name, value in weights.items()}
    )
    inputs, options = Call(first.plan.graph, draw, seed).arguments()
    noise = {f"other_{name}": value for name, value in options.get("noise", {}).items()}
    wanted = results(first, inputs, options)
    assume(usable(wanted))
    found = {}
    for name, value in results(second, inputs, options | ({"noise": noise} if noise else {})).items():
        order = orders.get(name.removeprefix("gradient of "))
        back = value if value is None or order is None else value.permute(inverse(order))
        found[name.replace("other_", "", 1)] = back
    assert_same(found, wanted)


def inverse(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=lambda place: order[place])
