"""Operations, bytes and floors beside what can be counted by hand."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tensornet_attn.bench.case import FORWARD, TRAINING, Case
from tensornet_attn.bench.floor import PassFloor, model_of
from tensornet_attn.bench.machine import Rates
from tensornet_attn.cost.products import MeasuredRate, Shape

RATES = Rates("float32", 1e6, 1e6, 512, 1 << 20)
PROJECTIONS = 4 * 6 * 8 * 8  # multiply-adds of one sequence: four of 6 positions, 8 by 8


def model(name: str, kind: str, rates: Rates | None = None, backend: str = "torch", **options: object) -> PassFloor:
    return model_of(Case(ta.load(name, legs={"f": 8, "h": 2}), 6, 2, **options), kind, backend, rates)


@pytest.mark.parametrize("backend", ["torch", "inductor", "triton"])
def test_mhsa(backend: str) -> None:
    pairs = 2 * 6 * 6 * 8
    found = model("mhsa", FORWARD, backend=backend)
    assert found.flops == 2 * 2 * (PROJECTIONS + pairs)
    x = y = 2 * 6 * 8
    weights = 4 * 8 * 8
    assert (found.bytes, found.floor) == (4 * (x + y + weights), None)
    found = model("mhsa", TRAINING, backend=backend)
    assert found.flops == 3 * 2 * 2 * (PROJECTIONS + pairs)
    assert found.bytes == 4 * (3 * x + 3 * weights + 2 * y)
    assert model("mhsa", TRAINING, backend=backend, dtype="bfloat16").bytes == found.bytes // 2


def test_causal_pairs_that_are_hidden_are_no_work() -> None:
    seen = 2 * 8 * (6 * 7 // 2)
    assert model("mhsa", FORWARD, causal=True).flops == 2 * 2 * (PROJECTIONS + seen)


def test_a_plan_for_longer_sequences_sums_keys_first() -> None:
    case = Case(ta.load("linear", legs={"f": 8, "h": 2}), 1000, 1)
    whole, half = (model_of(one, FORWARD, "torch", None).flops for one in (case, case.at(500)))
    assert 1.9 < whole / half < 2.1


def test_the_floor_is_the_longer_of_both() -> None:
    found = model("mhsa", FORWARD, RATES)
    assert found.floor == max(found.flops, found.bytes) / 1e6 == found.flops / 1e6
    slow = Rates("float32", 1e6, 1e3, 512, 1 << 20)
    assert model("mhsa", FORWARD, slow).floor == found.bytes / 1e3


def test_products_count_at_the_rate_of_their_shape_and_exponentials_are_added() -> None:
    narrow = (MeasuredRate(Shape(1, 512, 512, 512), 5e5),)
    found = model("mhsa", FORWARD, Rates("float32", 1e6, 1e6, 512, 1 << 20, narrow, 1e3))
    assert found.exponentials == 2 * 2 * 6 * 6
    assert found.floor == pytest.approx(found.flops / 5e5 + found.exponentials / 1e3)


def test_plans_are_made_for_the_machine_the_length_and_the_pass() -> None:
    case = Case(ta.load("mhsa"), 6, 2)
    assert case.wanted(FORWARD) == {}
    planned = Case(ta.load("mhsa"), 6, 2, costs=RATES.device)
    wanted = {"workload": "training", "device_costs": RATES.device, "n": 6, "batch": 2}
    assert planned.wanted(TRAINING) == wanted
    assert planned.wanted(FORWARD) == wanted | {"workload": "prefill"}
