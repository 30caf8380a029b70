"""Measuring this machine: the best of several samples of a clock, and efficiencies from measured designs."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
import torch

from tensornet_attn.bench import calibrate
from tensornet_attn.bench.calibrate import Timing
from tensornet_attn.cost.rates import Efficiency, from_dict, shipped


def test_two_long_calls_are_enough_and_need_no_warm_up() -> None:
    # two calls of 9 s and 8 s, and the end of the measurement
    clock = iter([0.0, 9.0, 9.0, 17.0, 17.0, 17.0])
    assert Timing(4.0, lambda: next(clock)).best(lambda: None) == 8.0


def test_a_further_sample_counts_if_it_is_shorter() -> None:
    # the start; another call; the end
    for length in (7.0, 9.0):
        clock = iter([0.0, 1.0, 1.0 + length, 9.0])
        assert Timing(4.0, lambda clock=clock: next(clock)).best(lambda: None, 8.0) == min(8.0, length)


def test_a_short_second_call_makes_the_first_a_warm_up() -> None:
    # a cold call of 500 ms; one of 8 ms, which sets the number of calls; samples of 30 ms and 25 ms; the end
    clock = iter([0.0, 0.5, 1.0, 1.008, 2.0, 3.0, 3.030, 4.0, 4.025, 9.0])
    assert Timing(4.0, lambda: next(clock)).best(lambda: None) == pytest.approx(0.025)


def test_samples_end_with_the_time_of_a_rate() -> None:
    ticks = count(0.0, 0.01)
    calls = []
    found = Timing(0.04, lambda: next(ticks)).best(lambda: calls.append(1))
    assert found == pytest.approx(0.01)
    assert 3 <= len(calls) <= 8


def test_every_kind_of_part_gets_an_efficiency(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that says that all calls take equally long, a table can be made and read again."""
    monkeypatch.setattr(calibrate, "LEGS", {"f": 16})
    ticks = count(0.0, 0.001)
    table = calibrate.calibrate(0.0, lambda: next(ticks), (("mhsa", "", (8,)), ("linear", "dense", (8,))))
    assert from_dict(table.as_dict()) == table
    assert table.machine.threads == torch.get_num_threads()
    kinds = {one.kind: one for one in table.efficiency}
    assert {"module", "product", "call", "attention", "elementwise", "normalize"} <= kinds.keys()
    for one in kinds.values():
        assert 0.05 <= one.forward <= 20
        assert 0.05 <= one.training <= 20


def test_factors_of_parts_are_found_again() -> None:
    """Also far from 1; a kind that takes little of all calls keeps its prediction."""
    true = {"softmax": 1.3, "delta_rule": 9.0, "band": 0.2}
    shares = [(1.0, 0.01, 0.0), (0.3, 0.7, 0.0), (0.2, 0.0, 0.8), (0.9, 0.2, 0.1), (0.0, 1.0, 0.0), (0.1, 0.0, 3.0)]
    rows = []
    for own in shares:
        parts = dict(zip(true, own, strict=True))
        rows.append((parts | {"calls": 1e-6}, sum(true[kind] * part for kind, part in parts.items())))
    found = calibrate.factors(rows)
    assert found == pytest.approx(true | {"calls": 1.0}, rel=0.05)


def test_products_and_attention_were_measured_and_leave_differences_to_others() -> None:
    rows = [({"attention": 1.0, "softmax": 0.1}, 1.2), ({"attention": 0.5, "softmax": 1.0}, 2.5)]
    found = calibrate.factors(rows)
    assert found["attention"] == pytest.approx(1.0, abs=0.05)
    assert found["softmax"] == pytest.approx(2.0, rel=0.05)


def test_noise_of_a_tenth_moves_factors_little() -> None:
    rows = [({"a": 1.0, "b": 0.1}, 1.1), ({"a": 0.9, "b": 0.2}, 1.0), ({"a": 0.1, "b": 1.0}, 1.2)]
    others = [(parts, own * (1.1 if place % 2 else 1.0)) for place, (parts, own) in enumerate(rows)]
    assert calibrate.factors(others) == pytest.approx(calibrate.factors(rows), rel=0.15)


def test_kinds_at_a_bound_are_named() -> None:
    table = replace(shipped(), efficiency=(Efficiency("a", 1.0, 20.0), Efficiency("b", 0.9, 1.1)))
    assert calibrate.at_bounds(table) == ["a"]
    assert calibrate.at_bounds(shipped()) == []


def test_the_better_of_two_measurements_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that take 1 s in the first round, and 2 s in the second, or the other way; both make the same table."""
    made = []
    monkeypatch.setattr(calibrate, "_fitted", lambda table, *_: table)
    for lengths in ((1.0, 2.0), (2.0, 1.0)):
        found = iter([length for length in lengths for _ in range(100)])
        monkeypatch.setattr(Timing, "best", lambda self, call, known=9.0, found=found: min(next(found), known))
        monkeypatch.setattr(
            calibrate, "primitives", lambda best: replace(shipped(), bandwidth=sum(best(len) for _ in range(100)))
        )
        made.append(calibrate.calibrate())
    assert made[0] == made[1]
    assert made[0].bandwidth == 100.0
