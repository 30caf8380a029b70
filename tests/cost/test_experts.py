"""The work of grouped experts: k, not e, as counted and as torch runs it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tensornet_attn as ta
from tensornet_attn.cost import cost
from tensornet_attn.cost.work import work_of
from tensornet_attn.graph import build
from tensornet_attn.plan.make import make_plan
from tensornet_attn.runtime import experts
from tests.cost import oracle
from tests.work import flops

N, BATCH = 6, 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("epa", "m f h e + n f h e + n f h d + m f h d + m f h k d + m h k d + 2 n m h d + n f h k d + n f h k"),
        ("sigma_moe", "n f e + 2 n f k l + n f k"),
    ],
)
def test_the_formula_has_the_number_of_chosen_experts(name: str, expected: str) -> None:
    assert cost(make_plan(build(ta.load(name))).schedule, {"n": 8, "m": 8}).formula == expected


@pytest.mark.parametrize("name", ["epa", "epa_vkqo", "sigma_moe"])
def test_work_no_longer_depends_on_how_many_experts_there_are(name: str) -> None:
    few, many = (ta.cost(ta.load(name, legs={"e": e}), n=256).planned for e in (32, 64))
    assert few is not None
    assert many is not None
    gates = (64 - 32) * 256 * 512 * {"sigma_moe": 1}.get(name, 2 * 8)  # each expert has a gate
    assert many.macs - few.macs == gates


def test_what_is_kept_is_of_the_chosen_experts() -> None:
    report = ta.cost("sigma_moe", n=256, batch=3)
    kept = {step.step: step.saved_floats for step in report.planned.steps}
    rows = 3 * 256 * 4
    assert kept["G"] == 3 * 256 * 16  # the order of all experts
    assert kept["y"] == rows + rows * 128  # gates, and H after relu
    assert report.written.total.saved_floats > 2 * report.planned.total.saved_floats


@pytest.mark.parametrize("name", ["sigma_moe", "switch"])
def test_a_layer_without_keys_counts_what_lies_between_its_products(name: str) -> None:
    """Maps of the chosen rows: k of e experts."""
    graph = build(ta.load(name))
    report = ta.cost(name, n=256)
    written, planned = ({row.step: row.elementwise for row in side.steps} for side in (report.written, report.planned))
    chosen, experts = (graph.values.get("k", 1), graph.leg["e"].size)
    assert graph.key is None
    assert planned["y"] >= written["H"] * chosen / experts > 0


def test_a_layer_without_keys_counts_the_exponentials_of_the_chosen_rows() -> None:
    design = ta.load("sigma_moe").as_dict()
    design["diagram"]["H"]["map"] = "silu"
    scene = oracle.scene_at(make_plan(build(ta.load(design))).schedule, 64, 64)
    assert sum(count for _, count in work_of(scene, scene.graph.step["y"]).exponentials) == oracle.BATCH * 64 * 4 * 128


def counted(module: nn.Module, x: torch.Tensor, backward: bool = False) -> int:
    """The FLOPs of all matmuls that torch runs, those of the experts one by one."""
    return flops(lambda: module(x).sum().backward() if backward else module(x))


@pytest.mark.parametrize(
    ("name", "sums"),
    [("epa", 12 + 3 * 12), ("epa_vkqo", 3 * 12 + 3 * 12), ("sigma_moe", 12)],
    ids=lambda value: str(value),
)
def test_torch_runs_what_the_formula_says(name: str, sums: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but sums over the k chosen, which are no matmuls.

    `sums`: the width of their results before heads are added. Backward takes twice what forward does, and attention
    makes its scores once more there: seven products instead of two.
    """
    monkeypatch.setattr(experts, "suits_all", lambda *given: False)  # so few tokens would compute all experts
    sizes = {"f": 12, "e": 16} | ({"l": 6} if name == "sigma_moe" else {"h": 3, "d": 4})
    design = ta.load(name, legs=sizes, settings={"k": 2})
    module = ta.compile(design, device_costs="generic")
    x = torch.randn(BATCH, N, 12, requires_grad=True)
    planned = ta.cost(design, n=N, batch=BATCH).planned
    assert planned is not None
    attention = sum(step.macs for step in planned.steps if step.step == "A")
    rest = 2 * (planned.macs - attention - 2 * BATCH * N * sums)
    assert [counted(module, x), counted(module, x, backward=True)] == [rest + 2 * attention, 3 * rest + 7 * attention]
