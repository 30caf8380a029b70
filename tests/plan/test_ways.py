"""Buckets and ways to plan: the same function whatever a design is planned for, and what is chosen under a limit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.devices import DEVICES, Device
from tensornet_attn.cost.target import WORKLOADS, Target
from tensornet_attn.graph import build
from tensornet_attn.plan import make
from tensornet_attn.plan.implementations import CPP, TORCH
from tensornet_attn.plan.make import make_plan
from tensornet_attn.plan.plan import Plan
from tensornet_attn.plan.ways import WAYS, Way
from tests.agreement import same_outcome
from tests.designs.cases import CASES, compiled, drawn, inputs_of
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("in_blocks")

N = 8192
CPU = Device("two cores", rate=10**11, bandwidth=2 * 10**10)


def plan(name: str, backend: str = "torch", legs: dict[str, int] | None = None, **target: Any) -> Plan:
    return make_plan(build(ta.load(name, legs=legs)), backend, Target(**target))


def agrees_with_the_reference(name: str, module: ta.CompiledDesign) -> None:
    """Output, and gradients of all inputs and weights, in float64."""
    same_outcome(drawn(module, 0, CASES[name].positive), compiled(name, "reference"), inputs_of(name))


@pytest.mark.parametrize("name", CASES)
def test_every_plan_computes_the_design(name: str) -> None:
    """For every workload and device, and for limits of memory that leave each of the ways to plan."""
    design = ta.load(name, legs=CASES[name].legs, settings=CASES[name].settings)
    wanted: list[dict[str, Any]] = [
        {"workload": workload, "device_costs": one} for workload in WORKLOADS for one in DEVICES
    ]
    wanted += [
        {"memory": offer.bytes, "device_costs": "generic"}
        for offer in ta.compile(design, "torch", dtype=torch.float64, memory=2**50, device_costs="generic").plan.offers
    ]
    seen: set[str] = set()
    for own in wanted:
        module = ta.compile(design, "torch", dtype=torch.float64, **own)
        if module.source not in seen:
            seen.add(module.source)
            agrees_with_the_reference(name, module)


def test_workloads_differ_in_lengths_and_choice() -> None:
    assert plan("linear").lengths == (("n", 1024), ("m", 1024))
    assert plan("linear", workload="decoding").lengths == (("n", 1), ("m", 4096))
    assert plan("linear", workload="prefill", n=7).lengths == (("n", 7), ("m", 7))
    kinds = [plan("linear", workload=workload).region_of("A.o") for workload in WORKLOADS]
    assert kinds == ["A.o", "A.o", "A.o".partition(".")[0]]
    regions = {region.name: region for region in plan("linear", workload="decoding").regions}
    assert regions["A"].refused[0].name == "linear attention"


def test_blocks_on_a_gpu_are_large_and_go_through_memory() -> None:
    """Torch launches their operations one by one, so that wider scores in fused attention take less time."""
    by_name = {name: plan("hard_fish", device=DEVICES[name]) for name in ("generic", "h200-bfloat16")}
    found = {name: {region.chosen.partition(":")[0] for region in made.regions} for name, made in by_name.items()}
    assert "blockwise" in found["generic"]
    assert "fused attention" in found["h200-bfloat16"]
    for device, pairs in (("generic", 131072), ("h200", 2097152)):
        assert f"(16, {pairs})" in ta.compile("talking_heads", "torch", device_costs=device).source


def test_computing_again_is_priced_where_a_backward_follows() -> None:
    def chosen(**target: Any) -> list[str]:
        return [region.chosen for region in plan("thsa", **target).regions if "A" in region.steps]

    cpu = CPU
    assert chosen(device=cpu) == ["dense softmax"]
    assert all("queries at a time" in how for how in chosen(device=cpu, workload="prefill"))
    assert all("queries at a time" in how for how in chosen(device=DEVICES["h200"]))
    (region,) = (region for region in plan("thsa", device=cpu).regions if region.name == "A")
    (reason,) = region.refused[-1].against
    assert reason.startswith("with recomputation in the backward, they would take ")


def test_a_limit_changes_the_choice() -> None:
    cpu, free = CPU, plan("thsa", device=CPU, n=N, memory=2**40)
    held = plan("thsa", device=cpu, n=N, memory=2**30)
    assert [offer.name for offer in (free.offers[0], held.offers[0])] == [WAYS[0].name, WAYS[1].name]
    assert held.offers[0].bytes <= 2**30 < free.offers[0].bytes
    assert not held.offers[0].against
    assert f"above the limit of {2**30:,} bytes (training, n = 8,192, m = 8,192, batch 1, float32)" in held.explain()


def test_a_limit_that_does_not_bind_changes_nothing() -> None:
    """Whatever the figures of the other plans are."""
    free, held = plan("differential"), plan("differential", memory=2**50)
    assert held.schedule == free.schedule
    told = {offer.name: offer.against for offer in held.offers}
    assert told["blocks of queries instead of fused attention"] == (
        f"'{WAYS[0].name}' meets the limit and is preferred",
    )


def test_the_figure_counts_length_batch_and_dtype() -> None:
    least = plan("mhsa", n=N, memory=2**40).offers[0].bytes
    assert plan("mhsa", n=2 * N, memory=2**40).offers[0].bytes > 1.5 * least
    assert plan("mhsa", n=N, batch=2, memory=2**40).offers[0].bytes > 1.5 * least
    assert 2 * plan("mhsa", n=N, dtype="bfloat16", memory=2**40).offers[0].bytes == least
    assert plan("mhsa", n=N, workload="prefill", memory=2**40).offers[0].bytes < least


def test_a_limit_that_no_plan_meets() -> None:
    least = min(offer.bytes for offer in plan("mhsa", n=N, memory=2**50).offers)
    assert refusal(plan, "mhsa", n=N, memory=2**20).startswith(
        "mhsa: no plan fits within 1,048,576 bytes (training, n = 8,192, m = 8,192, batch 1, float32): the smallest "
        f"predicted peak is {least:,} bytes, in region '"
    )
    assert plan("mhsa", n=N, memory=least).offers[0].bytes == least


def test_linear_memory_of_what_is_dense() -> None:
    assert refusal(plan, "mhsa", "reference", linear_memory=True) == (
        "mhsa: linear_memory, but region 'A' creates a tensor [h n m]: as written, dense."
    )


def test_linear_memory_takes_blocks_where_keeping_is_cheaper() -> None:
    made = plan("thsa", device=CPU, linear_memory=True)
    assert made.offers[0].name == WAYS[1].name
    assert "region 'A' creates a tensor [r n m]" in made.explain()


MAP = {
    "tensornet": 1,
    "name": "map",
    "legs": {"n": "query", "m": "key", "f": 8, "d": 4},
    "inputs": {"x": "n f"},
    "weights": {"Wq": "f d", "Wk": "f d"},
    "diagram": {
        "Q": "x[n f] Wq[f d] -> n d",
        "K": "x[m f] Wk[f d] -> m d",
        "A": {"softmax": "m", "of": "Q[n d] K[m d] -> n m"},
    },
    "output": "A",
}


def test_linear_memory_names_the_region_and_the_reasons() -> None:
    assert refusal(ta.compile, MAP, linear_memory=True) == (
        "map: linear_memory, but region 'A' creates a tensor [n m]: not fused attention: the scores or the attention "
        "map are also used elsewhere; not blocks of queries: 'A' has both legs and is a result of the diagram."
    )


@pytest.mark.parametrize("dropout", [0, 0.1])
def test_linear_memory_of_masks_and_dropout_in_fused_attention(dropout: float) -> None:
    box = {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] K[m h d] -> h n m", "mask": ["window(2000, 0)"]}
    own = {"tensornet": 1, "name": "own", "extends": "mhsa", "diagram": {"A": box | {"dropout": dropout}}}
    usual, linear = ta.compile(own).plan, ta.compile(own, linear_memory=True, device_costs="generic").plan
    assert "A.o" in usual.schedule.step
    assert "A.o" not in linear.schedule.step
    assert "the mask [n m] of fused attention" in linear.explain()
    own["diagram"]["A"].pop("mask")
    assert ("A.o" in ta.compile(own, linear_memory=True, device_costs="generic").plan.schedule.step) == (dropout == 0)


def test_strict() -> None:
    assert set(plan("thsa", strict=True).backends.values()) == {"torch"}
    assert set(plan("mhsa", "inductor", strict=True).backends.values()) == {"inductor"}
    assert refusal(plan, "talking_heads", "inductor", strict=True) == (
        "talking_heads: strict, but region 'y.p1' runs on 'torch' instead of 'inductor': blockwise: 128 queries at a "
        "time, recomputed in the backward, without a tensor of n x m elements. Use backend 'torch', or omit strict."
    )
    assert "on torch" in plan("talking_heads", "inductor").explain()
    of_map = refusal(ta.compile, MAP, "cpp", strict=True)  # the box, not the product nested in it
    assert of_map.startswith("map: strict, but region 'A' runs on 'torch' instead of 'cpp': dense softmax.")


@pytest.mark.parametrize("name", ["abc", "fmm2", "mla", "talking_heads"])
def test_a_way_does_not_depend_on_those_planned_before(name: str) -> None:
    """One plan serves all ways that skip rows which changed nothing in it."""
    graph, target = build(ta.load(name)), Target(device=DEVICES["cpu"], memory=2**40)
    for backend, table in (("torch", TORCH), ("cpp", CPP)):
        names = [*(row.name for row in table.rewritings), *(row.name for row in table.rows)]
        ways = [*WAYS, *(Way(row, (row,)) for row in names)]
        plans = make._in_ways(graph, backend, target, table, ways)
        assert len({*map(id, plans.values())}) < len(ways)
        for way in ways:
            alone = make._in_ways(graph, backend, target, table, [way])
            assert alone[way.name].schedule == plans[way.name].schedule, way
