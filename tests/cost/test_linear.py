"""What linear attention costs: multiply-adds as torch counts them, and floats kept that grow with the length alone."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tensornet_attn as ta
from tensornet_attn.cost import sizes_at
from tensornet_attn.cost.order import split_best
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.target import TRAINING
from tensornet_attn.cost.work import polynomial, saved, work_of
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.kernels.implementation import Context
from tensornet_attn.kernels.linear import LINEAR, LinearWork
from tensornet_attn.plan.implementations import TORCH
from tensornet_attn.plan.make import make_plan
from tensornet_attn.runtime import linear, maps

SMALL = {"linear": {"f": 64, "h": 2}, "mlk": {"f": 64, "h": 2}, "thsa_elu": {"f": 16, "r": 16, "s": 16, "h": 4}}
SMALL |= {"kernel_fish": {"f": 64, "h": 4, "g": 2}, "kernel_gfish": {"f": 64, "h": 4, "g": 2}}
FORMULAS = {
    ("linear", False): "m h d d + n h d d + n h d",
    ("linear", True): "2 m h d d + 129 m h d",
    ("thsa_elu", False): "m s r + 2 n s r",
    ("thsa_elu", True): "19 m s r + 16 m s + 16 m r",
}


def summed_first(graph: Graph) -> Graph:
    return LINEAR.lowered(graph, Context({"n": 1024, "m": 1024}, TRAINING, "torch", TORCH.rows)).graph


def scene_of(name: str, causal: bool, n: int) -> SizedGraph:
    graph = summed_first(build(ta.load(name, SMALL[name]), causal))
    sizes = sizes_at(graph, {"n": n, "m": n})
    return SizedGraph(split_best(graph, sizes)[0], sizes)


@pytest.mark.parametrize(("name", "causal"), FORMULAS)
def test_formulas(name: str, causal: bool) -> None:
    graph = summed_first(build(ta.load(name), causal))
    scene = SizedGraph(split_products(graph), sizes_at(graph, {"n": 512, "m": 512}))
    assert polynomial(work_of(scene, graph.step["A.o"]).products) == FORMULAS[name, causal]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("causal", [False, True])
def test_operations_of_elements_are_linear_in_the_length(name: str, causal: bool) -> None:
    """No pair of a query and a key is among them: the kernel computes none."""
    short, long = (scene_of(name, causal, n) for n in (512, 1024))
    counts = [sum(work_of(scene, step).elementwise for step in scene.graph.steps) for scene in (short, long)]
    assert counts[1] <= 2 * counts[0]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("causal", [False, True])
def test_multiply_adds_are_those_that_torch_counts(name: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tiles, which sum rows without a product."""
    monkeypatch.setattr(linear, "tiled_takes", lambda *given, **options: False)
    monkeypatch.setattr(maps, "SMALL_CALL", 0)
    scene = scene_of(name, causal, 256)
    module = ta.compile(ta.load(name, SMALL[name]), causal=causal)
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(256, SMALL[name]["f"]))
    assert 2 * sum(work_of(scene, step).macs for step in scene.graph.steps) == counter.get_total_flops()


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("causal", [False, True])
def test_floats_kept_are_no_pairs(name: str, causal: bool) -> None:
    short, long = (scene_of(name, causal, n) for n in (1024, 4096))
    kept = [sum(LinearWork(scene, scene.graph.step["A.o"]).stored.values()) for scene in (short, long)]
    assert kept[1] <= 4 * kept[0]


def test_a_sum_that_all_queries_read_alike_saves_the_rows_of_its_query_side() -> None:
    """The sum has one row; the product of ones and a weight that it reads has all."""
    totals = {
        "tensornet": 1,
        "name": "totals",
        "legs": {"n": "query", "m": "key", "f": 16, "h": 2, "d": 8},
        "inputs": {"x": "n f"},
        "weights": {"w": "h d", "Wk": "f h d", "Wo": "h f"},
        "constants": {"one": {"legs": "n", "value": "ones"}},
        "diagram": {
            "Q": "one[n] w[h d] -> n h d",
            "K": "x[m f] Wk[f h d] -> m h d",
            "S": "Q[n h d] K[m h d] -> h n m",
            "s": {"sum": "m", "of": "S"},
            "y": "s[h n] Wo[h f] x[n f] -> n f",
        },
        "output": "y",
    }
    schedule = make_plan(build(ta.load(totals))).schedule
    scene = SizedGraph(split_products(schedule), sizes_at(schedule, {"n": 32, "m": 32}))
    assert saved(scene, scene.graph.step["s"]) == {"s: sums 0": 2 * 8, "Q": 32 * 2 * 8}
