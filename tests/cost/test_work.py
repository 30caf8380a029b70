"""The products of a step by shape, the rate of a shape that was not measured, and exponentials."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.blocks import BlockedSteps
from tensornet_attn.cost.products import MeasuredRate, Shape, rate_at
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.sizes import sizes_at
from tensornet_attn.cost.work import work_of
from tensornet_attn.graph import build
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.kernels.blockwise import BlockWork
from tensornet_attn.spec import library

RATES = [MeasuredRate(Shape(1, 512, 512, 512), 8e10), MeasuredRate(Shape(1, 512, 512, 8), 2e10)]
SIZES = {"f": 32, "h": 4}


def scene_of(name: Any, backend: str = "torch", batch: int = 2, n: int = 64, **legs: int) -> SizedGraph:
    graph = build(ta.load(name, legs=legs))
    graph = split_products(ta.compiler.plan_of(graph, backend).schedule)
    return SizedGraph(graph, sizes_at(graph, {leg.name: n for leg in graph.legs if leg.sequence}), batch)


def test_a_projection_and_a_fused_attention() -> None:
    scene = scene_of("mhsa", f=32, h=4)
    (query,) = work_of(scene, scene.graph.step["Q"]).matmuls
    assert query[0] == Shape(1, 2 * 64, 32, 32)
    attention = next(step for step in scene.graph.steps if step.kernel is not None)
    scores, values = (shape for shape, _, _ in work_of(scene, attention).matmuls)
    assert (scores, values) == (Shape(2 * 4, 64, 64, 8), Shape(2 * 4, 64, 8, 64))
    assert work_of(scene, attention).exponentials == [(("h", "n", "m"), 2 * 4 * 64 * 64)]


def test_a_product_with_the_one_row_of_a_sum_over_keys_is_one_for_all_queries() -> None:
    found = scene_of("glfish", n=64, f=64, h=4, d=16, e=16)
    ((shape, _, _),) = work_of(found, found.graph.step["y.p2"]).matmuls
    assert shape == Shape(2 * 4, 64, 16, 16)


def test_a_block_of_queries() -> None:
    scene = scene_of("talking_heads", n=2048, batch=1)
    (kernel,) = (step for step in scene.graph.steps if step.kernel is not None)
    found = [shape for shape, legs, _ in work_of(scene, kernel).matmuls if "n" in legs]
    assert found[0] == Shape(8, 2048, 64, 64)  # 64 queries at a time, 2,048 keys
    assert sum(count for _, count in work_of(scene, kernel).exponentials) == 8 * 2048 * 2048


def test_a_block_of_queries_within_a_band() -> None:
    """The price counts the rows and keys that each block has when it runs."""
    source: dict[str, Any] = {"tensornet": 1, "name": "near", "extends": "talking_heads", "causal": True}
    source["diagram"] = {"A": {
        "softmax": "m", "scale": "d ** -0.5", "mask": ["window(5, 0)"], "of": "Pl[g h] Q[n g d] K[m g d] -> h n m"
    }}  # fmt: skip
    scene = scene_of(source, n=2048, batch=1, f=32, g=4, h=4, e=4)
    (kernel,) = (step for step in scene.graph.steps if step.kernel is not None)
    block, _ = BlockWork(scene, kernel).block_of()
    assert (block.sizes["n"], block.sizes["m"]) == (64, 69)
    module = ta.compile(ta.load(source, legs={"f": 32, "g": 4, "h": 4, "e": 4}))
    with torch.profiler.profile(record_shapes=True) as profile, torch.no_grad():
        module(torch.randn(2048, 32))
    met = {tuple(event.input_shapes[0][-2:]) for event in profile.events() if event.name == "aten::_softmax"}
    assert met == {(64, 64), (64, 69)}  # no key precedes the first block


def test_pairs_in_chunks() -> None:
    scene = scene_of("retnet", batch=1, n=64, f=64, h=4)
    kernel = next(step for step in scene.graph.steps if step.kernel is not None and step.kernel.kind == "linear")
    found = {shape for shape, _, _ in work_of(scene, kernel).matmuls}
    assert Shape(4, 64, 16, 16) in found  # states: features times values, summed over positions
    assert Shape(4 * 4, 16, 16, 16) in found  # scores and values of 16 positions at a time


def test_a_band_and_grouped_experts() -> None:
    scene = scene_of("band", batch=1, n=64, f=32, h=4)
    scores, values = (shape for shape, _, _ in work_of(scene, scene.graph.step["A.o"]).matmuls)
    assert (scores, values) == (Shape(4 * 2, 32, 36, 8), Shape(4 * 2, 32, 8, 36))  # two blocks of 32 queries
    scene = scene_of("sigma_moe", batch=1, n=1024, f=32)  # 4 of 16 experts: 256 rows for each
    assert [shape for shape, _, _ in work_of(scene, scene.graph.step["y"]).matmuls] == [
        Shape(1, 256, 128, 32),
        Shape(1, 256, 32, 128),
    ]


@pytest.mark.parametrize("name", library.names())
def test_all_multiply_adds_have_a_shape(name: str) -> None:
    scene = scene_of(name)
    for step in scene.graph.steps:
        counted, every = sum(macs for _, _, macs in work_of(scene, step).of_one_row.matmuls), work_of(scene, step).macs
        if isinstance(step.form, BlockedSteps) and any(leg.kind == "relative" for leg in scene.graph.legs):
            assert counted <= 1.02 * every, step.name  # a block meets some of the relative positions
        else:
            assert counted == pytest.approx(every, rel=0.02), step.name


def test_the_rate_of_a_measured_shape_of_its_transpose_and_of_one_between() -> None:
    assert rate_at(Shape(1, 512, 512, 512), RATES) == 8e10
    assert rate_at(Shape(1, 2048, 4096, 1024), RATES) == rate_at(Shape(1, 1024, 1024, 1024), RATES)
    assert rate_at(Shape(1, 64, 32, 16), RATES) == rate_at(Shape(1, 32, 64, 16), RATES)
    assert 2e10 < rate_at(Shape(1, 512, 512, 64), RATES) < 8e10
