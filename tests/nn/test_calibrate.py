"""Measuring this machine: two rates, each from its best run."""

from __future__ import annotations

import pytest

from tensornet_attn.nn import calibrate
from tensornet_attn.nn.calibrate import _best


def test_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2.0, 0.5])  # of a product, of a copy
    monkeypatch.setattr(calibrate, "_best", lambda run, seconds: (run(), next(times))[1])
    found = calibrate.calibrate(0.1)
    assert (found.name, found.rate, found.bandwidth) == ("this", 2**30, 2**28)


def test_the_best_run_counts_and_there_are_two_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 4.0, 6.0, 7.0])
    monkeypatch.setattr(calibrate, "perf_counter", lambda: next(clock))
    runs: list[int] = []
    assert _best(lambda: runs.append(1), 0.5) == 2.0
    assert len(runs) == 2


def test_a_real_measurement_is_plausible() -> None:
    found = calibrate.calibrate(0.0)
    assert 10**8 < found.rate < 10**14
    assert 10**8 < (found.bandwidth or 0) < 10**13
