"""Measuring this machine: two rates, each from its best run."""

from __future__ import annotations

import pytest

from tensornet_attn.nn import calibrate


def test_the_best_run_counts_and_there_are_two_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    product = [0.0, 1.0, 4.0, 4.0, 6.0, 7.0]  # when it begins; begin and end of two runs, of 3 and of 2 s; when it ends
    copy = [0.0, 0.0, 0.5, 1.0, 3.0, 4.0]
    clock = iter([*product, *copy])
    monkeypatch.setattr(calibrate, "perf_counter", lambda: next(clock))
    found = calibrate.calibrate(0.5)
    assert (found.name, found.rate, found.bandwidth) == ("this", 2**30, 2**28)
    assert next(clock, None) is None


def test_a_real_measurement_is_plausible() -> None:
    found = calibrate.calibrate(0.0)
    assert 10**8 < found.rate < 10**14
    assert 10**8 < (found.bandwidth or 0) < 10**13
