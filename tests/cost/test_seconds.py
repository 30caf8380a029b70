"""Predicted seconds at the rates of a table in which every rate is a round number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.cost.devices import device_of
from tensornet_attn.cost.kernels import steps_of
from tensornet_attn.cost.price import price_of, scene_of
from tensornet_attn.cost.products import MeasuredRate, Shape
from tensornet_attn.cost.rates import Each, Efficiency, Machine, Pair, RateTable
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.seconds import efficient, parts_of
from tensornet_attn.cost.target import Target
from tensornet_attn.cost.work import work_of
from tensornet_attn.graph import build
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.kernels.blockwise import BlockWork
from tensornet_attn.kernels.native import NATIVE
from tensornet_attn.plan.make import candidates, make_plan

FLOPS, BYTES = 1e9, 1e12


def table(*efficiency: Efficiency) -> RateTable:
    return RateTable(
        Machine("a processor", 1, 1, "2.0"),
        "2026-01-01",
        "by hand",
        (MeasuredRate(Shape(1, 512, 512, 512), FLOPS),),
        (1 << 19, 2 * FLOPS),
        ((1024, BYTES),),
        BYTES,
        1e9,
        (),
        (1e-12, 1e-12),
        (1e-3, 2e-3),
        (Pair(256, 64, 1e-6, 3e-6), Pair(1024, 64, 5e-7, 1.5e-6)),
        efficiency,
    )


def scene_of_plan(name: str, n: int, backward: bool = False, way: str = "", **legs: int) -> SizedGraph:
    """The scene of the plan that is made in one way, or of the cheapest plan."""
    target = Target("training" if backward else "prefill", n=n)  # the plan does not depend on the table
    graph = build(ta.load(name, legs=legs))
    plan = candidates(graph, target, (way,))[way] if way else make_plan(graph, "torch", target)
    return scene_of(split_products(plan.schedule), target.sizes(graph), target)


def parts(
    name: str, rates: RateTable, backward: bool = False, n: int = 256, **legs: Any
) -> dict[str, dict[str, float]]:
    scene = scene_of_plan(name, n, backward, **legs)
    return {step.name: dict(parts_of(scene, step, rates, backward)) for step in scene.graph.steps}


def test_a_projection_takes_its_multiply_adds_and_writes_its_result() -> None:
    found = parts("mhsa", table(), f=64, h=4)
    macs = 256 * 64 * 64
    assert found["Q"]["product"] == pytest.approx(2 * macs / FLOPS + 4 * 256 * 64 / BYTES)
    both = parts("mhsa", table(), backward=True, f=64, h=4)
    assert both["Q"]["product"] == pytest.approx(3 * 2 * macs / FLOPS, rel=1e-3)


def test_a_large_product_with_a_weight_has_its_own_rate_unless_rows_are_divided_by_sums_near_zero() -> None:
    for n, rate in ((1024, FLOPS), (2048, 2 * FLOPS)):
        found = parts("mhsa", table(), n=n, f=256, h=4)
        assert found["Q"]["product"] == pytest.approx(2 * n * 256 * 256 / rate, rel=1e-2)
    both = parts("mhsa", table(), backward=True, n=2048, f=256, h=4)  # the gradient of the weight is no such product
    assert both["Q"]["product"] == pytest.approx((2 / 2 + 1) * 2 * 2048 * 256 * 256 / FLOPS, rel=1e-2)
    doubtful = parts("linear3", table(), n=2048, f=256, h=4)
    assert doubtful["Q"]["product"] == pytest.approx(2 * 2048 * 256 * 256 / FLOPS, rel=1e-2)


def test_where_onednn_saves_even_in_parts_exact_products_and_gradients_of_wide_weights_have_its_rate() -> None:
    zen5 = replace(table(), projected=(2**16, 2 * FLOPS))
    for name in ("mhsa", "linear3"):
        both = parts(name, zen5, backward=True, n=2048, f=256, h=4)
        assert both["Q"]["product"] == pytest.approx(3 * 2048 * 256 * 256 / FLOPS, rel=2e-2)
    slow = replace(zen5, passes=((1, BYTES / 1e6),))
    whole, exact = (parts(name, slow, n=2048, f=256, h=4)["Q"]["product"] for name in ("mhsa", "linear3"))
    one_pass = 4 * 2048 * 256 / (BYTES / 1e6)
    assert exact - whole == pytest.approx((3 + 2) * one_pass)  # a sum of two parts, which are copied before


def test_a_band_takes_the_pairs_of_each_block_with_its_span() -> None:
    found = parts("band", table(), n=1024, f=256, h=4)
    assert found["A.o"]["masked attention"] == pytest.approx(4 * 1024 * 36 * 1e-6)  # 32 queries, 2 more keys each side


def test_grouped_experts_take_the_products_of_the_chosen_ones() -> None:
    for chosen in (1, 2):
        graph = build(ta.load("sigma_moe", legs={"f": 128}, settings={"k": chosen}))
        target = Target("prefill", n=1024)
        schedule = split_products(make_plan(graph, "torch", target).schedule)
        found = parts_of(scene_of(schedule, target.sizes(graph), target), schedule.step["y"], table(), False)
        assert found["product"] == pytest.approx(2 * chosen * 2 * 1024 * 128 * 128 / FLOPS, rel=2e-2)
        assert found["call"] == pytest.approx((31 + 12 * 2 * 16) * 1e-12)


def test_attention_of_chosen_heads_takes_their_pairs() -> None:
    graph, target = build(ta.load("head_gated", settings={"k": 2})), Target("prefill", n=2048)
    schedule = split_products(make_plan(graph, "torch", target).schedule)
    found = parts_of(scene_of(schedule, target.sizes(graph), target), schedule.step["y"], table(), False)
    assert found["attention"] == pytest.approx(2 * 2048 * 2048 * 5e-7)


def test_a_core_mixes_heads_of_values_in_one_product() -> None:
    """Of features and values, not one for each value."""
    graph, target = build(ta.load("thsa_elu")), Target("prefill", n=1024)
    schedule = split_products(make_plan(graph, "torch", target).schedule)
    scene = scene_of(schedule, target.sizes(graph), target)
    assert {shape for shape, _, _ in work_of(scene, schedule.step["A.o"]).matmuls} == {Shape(1, 1024, 512, 512)}


def test_passes_of_a_long_causal_kernel_stay_in_the_caches() -> None:
    slow = replace(table(), passes=((2**23, BYTES), (2**23 + 1, BYTES / 1000)))
    short, long = (parts("rwkv4", slow, n=n, f=256)["A.o"]["linear in chunks"] for n in (1024, 4096))
    assert long < 5 * short


def test_fused_attention_takes_its_pairs_at_the_most_similar_length() -> None:
    for n, each in ((256, 1e-6), (1024, 5e-7)):
        found = parts("mhsa", table(), n=n, f=256, h=4)
        assert found["A.o"]["attention"] == pytest.approx(4 * n * n * each)
        both = parts("mhsa", table(), backward=True, n=n, f=256, h=4)
        assert both["A.o"]["attention"] == pytest.approx(3 * 4 * n * n * each)


def test_an_efficiency_multiplies_its_part_and_others_count_as_elementwise() -> None:
    slow = table(Efficiency("product", 2.0, 5.0), Efficiency("elementwise", 3.0, 3.0))
    graph = build(ta.load("mhsa", legs={"f": 64, "h": 4}))
    target = Target("prefill", device_of(slow), n=256)
    scene = scene_of(split_products(graph), target.sizes(graph), target)
    query, weights = scene.graph.step["Q"], scene.graph.step["A"]
    own = parts_of(scene, query, slow, False)
    assert efficient(parts_of(scene, query, slow, False), slow, False) == pytest.approx(
        2 * own["product"] + 3 * own["call"]
    )
    assert "softmax" in parts_of(scene, weights, slow, False)
    assert slow.efficiency_of("softmax", False) == 3


def test_kernels_in_cpp_take_their_products_passes_and_the_calls_of_one_kernel() -> None:
    """As blocks of queries do, but the number of blocks adds no calls, and no operation inside is one."""
    graph = build(ta.load("talking_heads", legs={"f": 64}))
    for workload, backward in (("prefill", False), ("training", True)):
        target = Target(workload, n=1024)
        schedule = split_products(make_plan(graph, "torch", target).schedule)
        step = next(one for one in schedule.steps if one.kernel is not None and one.kernel.kind == "blockwise")
        scene = scene_of(schedule, target.sizes(graph), target)
        cpp, blocks = (parts_of(scene, one, table(), backward) for one in (NATIVE.as_kernel(step), step))
        assert {*cpp} == {"native", "native passes", "native calls"}
        assert cpp["native calls"] == pytest.approx(60 * 1e-12)
        assert cpp["native"] == pytest.approx(blocks["blockwise"], rel=1e-6)
        assert cpp["native passes"] == pytest.approx(blocks["elementwise"] + blocks["softmax"], rel=1e-6)


@pytest.mark.parametrize("name", ["linear3", "mlk", "lfish"])
def test_linear_attention_in_cpp_computes_its_features_in_the_calls_of_its_kernels(name: str) -> None:
    """Sums of several kernels too; nothing but products with weights is left to torch."""
    graph, target = build(ta.load(name, legs={"f": 256})), Target(n=1024)
    schedule = split_products(make_plan(graph, "cpp", target).schedule)
    scene = scene_of(schedule, target.sizes(graph), target)
    kernels = [step for step in schedule.steps if step.kernel]
    kinds = [parts_of(scene, step, table(), True) for step in kernels]
    assert all({*by_kind} == {"native linear", "native calls", "pages"} for by_kind in kinds)
    calls = sum(by_kind["native calls"] for by_kind in kinds) / (60 * 1e-12)
    assert calls == pytest.approx({"linear3": 3, "mlk": 1, "lfish": 2}[name])
    features = {"phiK1", "phiQ3"} if name == "linear3" else {"phiK", "phiQ"}
    assert features <= {*steps_of(kernels[0])}


def test_a_plan_is_priced_in_seconds_and_has_the_time_of_a_module() -> None:
    graph, target = build(ta.load("mhsa")), Target("prefill", device_of(table()), n=256)
    price = price_of(make_plan(graph, "torch", target).schedule, target.sizes(graph), target)
    assert price.seconds == pytest.approx(1e-3 + 8 * 256 * 256 * 1e-6 + 2 * 4 * 256 * 512 * 512 / FLOPS, rel=0.01)


def test_a_state_takes_no_time_in_a_forward_and_no_backward() -> None:
    predicted = {}
    for name in ("mgk", "mgk_em"):  # mgk_em stores the mean over pairs
        graph, target = build(ta.load(name, legs={"f": 64})), Target("prefill", device_of(table()), n=1024)
        predicted[name] = price_of(make_plan(graph, "torch", target).schedule, target.sizes(graph), target).seconds
    assert predicted["mgk_em"] == pytest.approx(predicted["mgk"], rel=0.01)
    forward, both = (parts("mgk_em", table(), backward=backward, n=1024, f=64) for backward in (False, True))
    assert both["prior.of"] == forward["prior.of"]


def test_blocks_of_queries_are_computed_again_in_the_backward() -> None:
    forward = parts("talking_heads", table(), n=2048, f=64)
    both = parts("talking_heads", table(), backward=True, n=2048, f=64)
    (kernel,) = (name for name, own in forward.items() if "blockwise" in own)
    assert both[kernel]["blockwise"] == pytest.approx(4 * forward[kernel]["blockwise"], rel=0.05)


def test_blocks_of_a_causal_kernel_have_the_keys_that_they_read_on_average() -> None:
    """Of 1,024 keys 520: passes over results of a whole block, of 32 MB, are slow here, and none is as large."""
    slow = replace(table(), passes=((520 << 15, BYTES), (1 << 25, BYTES / 1000)))
    assert parts("cope", slow, n=1024) == parts("cope", table(), n=1024)


def test_blocks_of_a_strictly_causal_kernel_have_half_of_the_keys_too() -> None:
    found = parts("stick_breaking", table(), n=1024)["y.p1"]
    every, pairs = parts("sigmoid_attention", table(), n=1024)["y.p1"], 1024 * 1024
    assert found["blockwise"] == pytest.approx((pairs / 2 + 1024 * 64) / pairs * every["blockwise"], rel=1e-2)


def test_decays_inside_chunks_take_an_exponential_each() -> None:
    count = 256 * 16 * 4 * 32  # of 256 rows with the 16 keys of a chunk, for each of 32 features of 4 heads
    slow, fast = (parts("gla", replace(table(), exponentials=rate), f=256) for rate in (1e6, 1e12))
    assert slow["A.o"]["linear in chunks"] - fast["A.o"]["linear in chunks"] == pytest.approx(count / 1e6, rel=1e-5)


def test_a_sum_of_products_of_elements_writes_and_reads_them() -> None:
    """Which is all that is left of a product of queries x keys with a factor of the keys."""
    pairs = 8 * 32 * 256 * 256  # of 32 numbers in each head
    way = "without shift after the product"
    found = parts("deberta_v2", table(), n=256, way=way, f=256)["y.p1"]["elementwise"]
    assert found == pytest.approx(4 * (1 + 3) * pairs / BYTES, rel=0.2)  # a gather writes them before


@pytest.mark.parametrize("backward", [False, True])
def test_hidden_keys_are_replaced_before_and_after_the_softmax(backward: bool) -> None:
    """With a backward, in the gradient too."""
    target, size = Target("training" if backward else "prefill", n=256), 4 * 256 * 256
    for causal in (False, True):
        graph = build(ta.load("mhsa", legs={"f": 64, "h": 4}), causal)
        scene = scene_of(split_products(graph), target.sizes(graph), target)
        found = parts_of(scene, scene.graph.step["A"], table(), backward)
        passes = 2 * 4 * size / BYTES
        assert found.get("mask", 0.0) == pytest.approx((2 + backward) * passes if causal else 0.0)


def test_a_sum_that_all_queries_read_alike_has_one_row() -> None:
    """It is one product of keys and values; what depends on it alone takes no longer for more queries."""
    short, long = (parts("hard_glfish", table(), n=n, f=64, g=2, h=4) for n in (64, 128))
    d = e = 64 // 4
    assert "sums" not in long["KV"]
    assert long["KV"]["product"] == pytest.approx(2 * 128 * 2 * d * e / FLOPS, rel=1e-2)
    assert "KV.k" not in long
    assert short["KVk.of.up"] == long["KVk.of.up"]
    assert short["KVh"] == long["KVh"]


def test_maps_and_noise_take_their_measured_seconds_for_each_number() -> None:
    """In blocks of queries too: a backward computes a map again, and draws the same noise again."""
    rates, pairs = replace(table(), maps=(Each("sigmoid", 1e-9, 3e-9), Each("noise", 5e-9, 5e-9))), 8 * 1024 * 1024
    for backward, each in ((False, 1e-9), (True, 4e-9)):
        found = parts("sigmoid_attention", rates, backward, n=1024, f=256, h=8)
        assert found["y.p1"]["maps"] == pytest.approx(each * pairs)
    forward, both = (parts("mish", rates, backward, n=1024, f=256, h=8)["y.p1"] for backward in (False, True))
    assert forward.get("maps", 0.0) == 0
    assert both["maps"] == pytest.approx(2 * 5e-9 * pairs)


def test_a_block_of_queries_meets_as_many_relative_positions_as_it_has_rows_and_keys() -> None:
    scene = scene_of_plan("transformer_xl", 1024)
    block, _ = BlockWork(scene, scene.graph.step["y.p1"]).block_of()
    assert block.sizes["p"] == block.sizes["n"] + 1024 - 1


def test_a_scan_in_parts_has_calls_for_each_position_of_a_part() -> None:
    rates = replace(table(), call=(1.0, 1.0))
    short, long = (parts("hgrn", rates, n=n, f=64)["H"]["call"] for n in (256, 4096))
    assert (short, long) == (1 + 7 * 16, 1 + 7 * 64)


def test_a_scan_is_as_fast_as_copies() -> None:
    slow = replace(table(), bandwidth=BYTES / 10)
    assert parts("hgrn", slow, f=64)["H"]["scan"] > 5 * parts("hgrn", table(), f=64)["H"]["scan"]


def test_a_scan_of_long_rows_that_one_product_reads_stores_no_states() -> None:
    found = {f: parts("mamba1", table(), f=f, a=f, s=16) for f in (16, 256)}  # channels
    assert {*found[16]["Y.p1"]} >= {"scan", "elementwise"}
    assert {*found[256]["Y.p1"]} == {"elementwise", "call"}
    passes = found[256]["Y.p1"]["elementwise"] * BYTES / (4 * 256 * 256 * 16)
    assert passes == pytest.approx(12)
