"""Work that grows with the length, not with its square: FLOPs and bytes allocated, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import tensornet_attn as ta
from tensornet_attn.cost.target import TRAINING, Target
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Box, Graph
from tensornet_attn.plan.make import make_plan
from tests.designs.cases import CASES
from tests.regions import kernels_of
from tests.shipped import graph_of
from tests.work import allocated, flops

LENGTHS = (1024, 4096)
LONGER = {"gsa": (4096, 16384)}  # bytes by position rise once, by 8 % from 2,048 to 4,096, and not again
LINEAR = {"band", "features", "linear", "outer", "sums", "total"}  # kernels whose work is linear
# A score's square has d * d features, of which the shipped sizes have so many that sums over keys pay for long
# sequences alone. Measured of based, forward and backward, one thread: at n 1,024 sums take 1.3 times as long as blocks
# of queries, at 4,096 .56 times, and memory is linear either way.
LONG = dict.fromkeys(("mhsa_poly", "thsa_poly", "based"), Target(n=2**20, m=2**20))


def linear(graph: Graph, target: Target = TRAINING) -> bool:
    """Whether all that compares queries with keys in a plan is a band, a sum over keys or fast weights."""
    schedule = make_plan(graph, target=target).schedule
    kinds = {kernel.kind for kernel in kernels_of(schedule.steps)}
    rule = any(isinstance(step.op, Box) and step.op.kind == "delta_rule" for step in schedule.steps)
    pairs = any({graph.query, graph.key} <= {*step.legs} for step in schedule.steps)
    return bool(kinds or rule) and kinds <= LINEAR and not pairs


# The shipped designs that a plan makes linear, at the lengths of LONG or those of any plan: most of them causal too.
EITHER = """
    band fmm1 fmm1_rows fmm2 fmm2_rows fmm3 fmm3_shifted fmm_lra_release glfish kernel_fish kernel_gfish linear linear2
    linear3 linear3_shifted mhsa_poly mlk smlk thsa_elu thsa_poly thsa_square
""".split()
AS_WRITTEN = """
    abc based comba fast_weight1 fast_weight2 fmm1_causal fmm2_causal fmm3_causal fmm_fast_weight1 fmm_fast_weight2
    gated_deltanet gated_deltaproduct gla gsa kda mamba2 minimax retnet rwkv4 rwkv7
""".split()
OTHERWISE = set("gau sigmoid_attention stick_breaking".split())  # scores that are no products
FOUND = [(name, causal) for name in EITHER for causal in (None, True)] + [(name, None) for name in AS_WRITTEN]


def test_these_are_all() -> None:
    graphs = {(name, None): graph_of(name) for name in CASES}
    causal = {(name, True): graph_of(name, True) for name in CASES if True in CASES[name].causal}
    graphs |= {pair: graph for pair, graph in causal.items() if graph != graphs[pair[0], None]}
    assert {pair for pair, graph in graphs.items() if linear(graph, LONG.get(pair[0], TRAINING))} == {*FOUND}


def test_what_should_be_linear_is() -> None:
    """No box without a softmax, no band and no delta rule takes any other way; both masks of such designs do."""
    boxes = {"normalize", "keep", "delta_rule"}
    wanted = {
        name for name in CASES for step in graph_of(name).steps if isinstance(step.op, Box) and step.op.kind in boxes
    }
    assert wanted - OTHERWISE <= {name for name, _ in FOUND}
    assert not OTHERWISE & {name for name, _ in FOUND}
    assert ("band", None) in FOUND


@pytest.mark.parametrize(("name", "causal"), [pair for pair in FOUND if pair[0] in LONG])
def test_squares_of_scores_are_written_out_where_that_pays(name: str, causal: bool | None) -> None:
    """Linear for long sequences of the shipped sizes, and at once where the scores have few components."""
    assert not linear(graph_of(name, causal))
    assert linear(build(ta.load(name, legs=CASES[name].legs), causal))


def at(module: nn.Module, n: int, width: int) -> Callable[[], object]:
    """Forward and backward at a length, gradients of inputs and weights."""
    x = torch.randn(1, n, width, requires_grad=True)

    def run() -> None:
        module.zero_grad()
        module(x).sum().backward()

    return run


def slopes(name: str, causal: bool | None) -> list[float]:
    """How FLOPs and bytes allocated grow with the length: 1 is in proportion, 2 its square."""
    case = CASES[name]
    torch.manual_seed(0)
    module = ta.compile(ta.load(name, legs=case.legs, settings=case.settings), causal=causal)
    lengths = LONGER.get(name, LENGTHS)
    runs = [at(module, n, case.legs["f"]) for n in lengths]
    pairs = [flops(run) for run in runs], [allocated(run) for run in runs]
    return [math.log(long / short) / math.log(lengths[1] / lengths[0]) for short, long in pairs]


@pytest.mark.parametrize(("name", "causal"), FOUND)
def test_work_grows_with_the_length(name: str, causal: bool | None) -> None:
    assert max(slopes(name, causal)) < 1.05


def test_squares_would_show() -> None:
    assert slopes("mhsa", None)[0] > 1.5
