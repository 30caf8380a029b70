"""Outcomes of criteria, from results made by hand: the best of several, shares, growth, why there is no figure."""

from __future__ import annotations

import pytest

from tensornet_attn.bench.case import FORWARD, TRAINING
from tensornet_attn.bench.floor import PassFloor
from tensornet_attn.bench.machine import Rates
from tensornet_attn.bench.report import left_out, rates_text, remarks, target_row, target_table, text
from tensornet_attn.bench.results import Entry, PassResult, Spread, ratio
from tensornet_attn.bench.targets import BenchmarkTarget, CriterionOutcome, Growth, RateShare, Ratio, outcomes

RATES = Rates("bfloat16", 1e12, 1e12, 8192, 1 << 30)
SKIPPED = Entry("flex", "skipped", "it mixes heads: no.")
PEERS = ("eager", "flex", "torch")


def entry(name: str, milliseconds: float) -> Entry:
    times = [1e-3 * milliseconds * x for x in (0.9, 1.0, 1.1)]
    over = None if name == "triton" else ratio(times, [1e-3 * x for x in (0.9, 1.0, 1.1)])
    return Entry(name, seconds=Spread(times[1], times[0], times[2]), ratio=over, peak_bytes=int(milliseconds * 100))


def result(*entries: Entry, kind: str = TRAINING, n: int = 64, flops: int = 0) -> PassResult:
    made = PassResult("thsa", kind, n, 4, "bfloat16", "cuda", False, {"n": n}, {}, "triton", list(entries))
    made.model = PassFloor(flops, 0, 2e-4)
    return made


def one(criterion: Ratio | RateShare | Growth, *results: PassResult, rates: Rates | None = RATES) -> CriterionOutcome:
    target = BenchmarkTarget("thsa", (criterion,), {"r": 2})
    (found,) = outcomes([(target, made) for made in results], rates)
    return found


def test_a_ratio_is_over_the_fastest_that_could_run() -> None:
    found = one(Ratio(1.3, PEERS), result(entry("triton", 1), entry("eager", 3), SKIPPED, entry("torch", 1.5)))
    assert (found.over, found.reached.median, found.met) == ("best: torch", pytest.approx(1.5), True)
    assert (found.peak_ours, found.peak_other) == (100, 150)
    assert target_row(found, peaks=True) == (
        *("thsa r 2", "64", "best: torch", "1.30", "1.50", "1.50 to 1.50"),
        *("100 B", "150 B", "reached"),
    )
    found = one(Ratio(2.0, ("eager",)), result(entry("triton", 1), entry("eager", 1.9), entry("torch", 1)))
    assert (found.over, found.met) == ("eager", False)
    assert target_row(found) == ("thsa r 2", "64", "eager", "2.00", "1.90", "1.90 to 1.90", "missed")


def test_ours_is_no_peer_of_its_own() -> None:
    (mine,) = outcomes([(BenchmarkTarget("thsa", (Ratio(1.0, ("triton",)),)), result(entry("triton", 1)))], RATES)
    assert (mine.reached, mine.met, mine.reason) == (None, None, "there is no contestant to compare with.")


def test_without_ours_or_without_peers_there_is_no_ratio() -> None:
    found = one(Ratio(1.3, PEERS), result(Entry("triton", "failed", "out of memory: 9."), entry("eager", 1)))
    assert (found.reached, found.over, found.reason) == (None, "best", "triton failed: out of memory: 9.")
    found = one(Ratio(1.3, ("flex",)), result(entry("triton", 1), SKIPPED))
    assert found.reason == "flex skipped: it mixes heads: no."
    assert target_row(found, peaks=True)[-1] == "flex skipped"
    assert target_row(found)[-1] == "flex skipped: it mixes heads: no."


def test_a_share_is_of_the_measured_rate_and_forward() -> None:
    forward = result(entry("triton", 1), kind=FORWARD, flops=4 * 10**8)
    found = one(RateShare(0.4), forward, result(entry("triton", 9), flops=10**9))
    assert (found.reached.median, found.met, found.peak_ours) == (pytest.approx(0.4), True, 100)
    assert found.reached.low < found.reached.median < found.reached.high
    assert target_row(found)[2:5] == ("the matmul rate", "40.0 %", "40.0 %")
    assert one(RateShare(0.4), forward, rates=None).reason == "rates of the machine were not measured."
    assert one(RateShare(0.4), result(SKIPPED, kind=TRAINING)).reason == "not measured yet."
    assert forward.share == pytest.approx(0.2)


def test_growth_is_over_half_the_length() -> None:
    long, short = result(entry("triton", 2.3)), result(entry("triton", 1), n=32)
    found = one(Growth(2.2), long, short)
    assert (found.n, found.reached.median, found.met) == (64, pytest.approx(2.3), False)
    assert found.reached.low == pytest.approx(2.3 * 0.9 / 1.1)
    assert target_row(found)[2:5] == ("half of n", "<= 2.20", "2.30")
    assert one(Growth(2.2), long).reason == "not measured yet."
    failed = result(Entry("triton", "failed", "bad"), n=32)
    assert one(Growth(2.2), long, failed).reason == "triton failed: bad"
    assert one(Growth(2.2), result(entry("triton", 2.1)), short).met


def test_tables_of_nothing_and_what_was_left_out() -> None:
    assert target_table([]) == "design  n  against  target  reached  quartiles"
    other = Entry("dense", note="mhsa of d 64", seconds=Spread(1, 1, 1), peak_bytes=1, checked_n=32)
    results = [result(SKIPPED, other), result(SKIPPED, n=32)]
    assert left_out(results) == "thsa: flex skipped: it mixes heads: no."
    assert remarks(results) == "thsa n 64: mhsa of d 64 (dense)\nthsa n 64: compared at n 32 (dense)"


def test_a_floor_of_a_busy_machine_is_told() -> None:
    told = "of floor above 500%: other programs ran while the rates were measured. Measure again on an idle machine."
    slow, fast = (result(Entry("torch", seconds=Spread(1, 1, 1), peak_bytes=1, floor=floor)) for floor in (2.1, 5.1))
    assert told not in text([slow])
    assert text([slow, fast]).endswith(told)


def test_rates_that_moved_are_told() -> None:
    slower = Rates("bfloat16", 0.9e12, 1e12, 8192, 1 << 30)
    told = (
        "measured rates: 1.00 TFLOP/s in a product of 8192 x 8192 matrices in bfloat16; 1.00 TB/s in a copy of 1.07 GB"
    )
    assert rates_text([]) == ""
    assert rates_text([RATES, RATES]) == f"{told}."
    assert rates_text([RATES, slower]) == f"{told}; after the run -10% and +0%."
