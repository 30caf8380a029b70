"""The plan: regions with their lowering and backend, the lengths searched for, and its text."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tensornet_attn.cost.target import WORKLOADS
from tensornet_attn.graph import build
from tensornet_attn.kernels import KERNELS
from tensornet_attn.plan.make import make_plan


@pytest.mark.parametrize("name", ta.list_designs())
def test_every_step_of_the_diagram_is_in_a_region(name: str) -> None:
    graph = build(ta.load(name))
    for backend in ("torch", "reference"):
        plan = make_plan(graph, backend)
        named = [step.name for step in graph.steps if not step.nested]
        held = {step for region in plan.regions for step in region.steps}
        assert not {name for name in named if name not in held} & plan.schedule.step.keys()  # a rewrite took it apart
        assert set(plan.backends.values()) == {backend}
        assert plan.graph == graph


@pytest.mark.parametrize("backend", ["torch", "cpp", "triton"])
def test_explain_names_every_step_that_runs(backend: str) -> None:
    """Also those that a diagram nests in others. Factors multiplied first belong to a product, joined ones to a
    call."""
    for name in ta.list_designs():
        plan = make_plan(build(ta.load(name)), backend)
        named = {step for region in plan.regions for step in (region.name, *region.steps)}
        for step in reversed(plan.schedule.steps):
            readers = {reader.name for reader, _ in plan.schedule.readers.get(step.name, ()) if reader.contraction}
            joined = step.kernel is not None and KERNELS[step.kernel.kind].in_reader
            told = {step.name, *(step.kernel.steps if step.kernel else ())} & named
            assert told or joined or (step.contraction and readers & named), (name, step.name)
            named.add(step.name)


@pytest.mark.parametrize("name", ta.list_designs())
def test_a_plan_is_a_pure_function(name: str) -> None:
    first, second = (make_plan(build(ta.load(name))) for _ in range(2))
    assert first == second
    assert first.explain() == second.explain()


def test_what_a_rewrite_removes_runs_nowhere() -> None:
    """hard_glfish has nothing for Triton's kernels to compute."""
    plan = make_plan(build(ta.load("hard_glfish")), "triton")
    assert "KVk" in {region.name for region in plan.regions}
    assert set(plan.backends.values()) == {"torch"}


def test_the_reference_is_planned_as_written() -> None:
    plan = make_plan(build(ta.load("mhsa")), "reference")
    assert plan.schedule == plan.graph
    assert {region.chosen for region in plan.regions} == {"as written, dense"}


def test_lengths_are_those_of_the_workload_up_to_the_maximum() -> None:
    data = ta.load("mhsa").to_yaml().replace("n: query", "n: query 64")
    plan = make_plan(build(ta.load(data)))
    assert plan.lengths == (("n", 64), ("m", WORKLOADS["training"].keys))


def test_a_refusal_is_said() -> None:
    plan = make_plan(build(ta.load("talking_heads")))
    (region,) = (region for region in plan.regions if "A" in region.steps)
    assert region.chosen.startswith("blockwise: ")
    assert [(lowering.name, lowering.against) for lowering in region.refused] == [
        (
            "fused attention",
            ("the scores are a product of 3 tensors, not two", "the product with the attention map keeps the key leg"),
        )
    ]
