"""What each leg is to the kernels of a region, which regions have none, and how the plan tells of it."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.cost.target import target_from
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Kernel
from tensornet_attn.plan.plan import Plan
from tensornet_attn.tiles.build import tile_program
from tensornet_attn.tiles.derive import gradients, one_map
from tensornet_attn.tiles.program import Program, below
from tests.plan.blockwise_cases import TAKEN
from tests.refusals import refusal

REFUSED = {
    "top keys": "kernels have no tiles for 'topk', in 'A'",
    "a norm along the keys": "kernels have no tiles for 'l2norm', in 'A'",
    "the most of each row": "'T2' ends a kernel with a 'max', which kernels cannot end with",
}


def planned(source: Any, **load: Any) -> Plan:
    return plan_of(build(ta.load(source, **load)), "triton")


def program(source: Any, **load: Any) -> Program:
    schedule = planned(source, **load).schedule
    step = next(step for step in schedule.steps if isinstance(step.op, Kernel) and step.op.kind == "tiles")
    return tile_program(schedule, step)


@pytest.mark.parametrize(
    ("name", "heads", "whole", "widths"),
    [
        ("mhsa", {"h": 1}, "", {"d": ("d",)}),
        ("differential", {"h": 1}, "", {"d": ("d",), "e": ("e",)}),
        ("hard_fish", {"g": 4, "h": 2}, "g", {"d": ("d",)}),
        ("gqa", {"g": 1, "j": 1}, "", {"d": ("d",)}),
        ("thsa", {"r": 1}, "", {"s": ("s",)}),
        ("mgk", {"h": 1, "r": 2}, "r", {"d": ("d",)}),
        ("talking_heads", {"g": 8, "h": 8, "e": 8}, "gh", {"d": ("d",)}),
        ("heads_only", {"h": 1}, "", {}),
        ("mish", {"h": 4, "g": 4}, "g", {"d": ("d",)}),
    ],
)
def test_legs(name: str, heads: dict[str, int], whole: str, widths: dict[str, tuple[str, ...]]) -> None:
    found = program(name)
    assert (found.heads, found.whole, found.widths) == (heads, frozenset(whole), widths)


def test_a_tile_of_the_result_reads_one_map_or_several() -> None:
    for name, one in (("hard_fish", True), ("talking_heads", False)):
        found = program(name)
        assert (one_map(found) is not None) == one


def test_what_is_in_tiles_alone_is_made_once() -> None:
    found = program("hard_fish")
    made = below([found.exit.maps])
    assert [(node.heads, found.tiles(node.heads)) for node in made if node.op == "dot"] == [(("g",), 4)]
    assert [(node.heads, found.tiles(node.heads)) for node in made if node.op == "softmax"] == [(("h",), 2)]


def test_the_gradients_of_everything_that_is_loaded() -> None:
    found = program("hard_fish")
    leaves = gradients(found).leaves
    loaded = {found.operands[leaf.data[0]].use.name for leaf, _ in leaves if leaf.op == "load"}
    assert loaded == {"Q", "K", "V", "P"}
    assert all((leaf.axes, leaf.heads) == (d.axes, d.heads) for leaf, d in leaves)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    told = [low for region in planned(TAKEN[name]).regions for low in region.refused if low.name == "Triton kernels"]
    assert {reason for low in told for reason in low.against} == {REFUSED[name]}


def test_mixing_too_many_tiles() -> None:
    told = planned("hard_fish", legs={"f": 1024, "h": 128, "g": 100}).explain()
    assert "not Triton kernels: mixing over 'g' takes 100 tiles per program, but the maximum is 48" in told


def test_the_plan_tells() -> None:
    plan = planned("hard_fish")
    assert plan.backends == {"Q": "torch", "K": "torch", "V": "torch", "y.p1": "triton", "y": "torch"}
    told = "y.p1: Triton kernels, 4 g x 2 h tiles per program: no tensor of n x m elements"
    assert told in [line.strip() for line in plan.explain().splitlines()]


def test_strict() -> None:
    plan_of(build(ta.load("hard_fish")), "triton", target_from(strict=True))
    assert refusal(plan_of, build(ta.load(TAKEN["the most of each row"])), "triton", target_from(strict=True)) == (
        "one: strict, but region 'T2' runs on 'torch' instead of 'triton': blockwise: 512 queries at a time, "
        "recomputed in the backward, without a tensor of n x m elements. Use backend 'torch', or omit strict."
    )


@pytest.mark.parametrize("name", ta.list_designs())
def test_every_design_is_strict(name: str) -> None:
    plan = planned(name)
    beside = {"cope": ["y.p1"], "stick_breaking": ["y.p1"]}  # sums over later keys
    beside |= {"deberta_v2": ["y.p1"]}  # too many tiles per program
    others = [region.name for region in plan.regions if region.backend != "triton" and not region.plain]
    assert others == beside.get(name, [])
