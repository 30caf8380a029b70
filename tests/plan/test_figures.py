"""Times in sentences: singular, plural and unit; no figure stands instead of itself."""

from __future__ import annotations

import re

import pytest

import tensornet_attn as ta
from tensornet_attn.cost.figures import duration, instead

DURATIONS = {
    0.0: "0 microseconds",
    4.512e-7: "0.451 microseconds",
    9.996e-7: "1 microsecond",
    1e-6: "1 microsecond",
    1.5e-6: "1.5 microseconds",
    853.4e-6: "853 microseconds",
    999.6e-6: "1 millisecond",
    1e-3: "1 millisecond",
    2.0149e-3: "2.01 milliseconds",
    0.9996: "1 second",
    1.0: "1 second",
    59.94: "59.9 seconds",
    1234.5: "1,230 seconds",
}


@pytest.mark.parametrize("seconds", DURATIONS)
def test_durations(seconds: float) -> None:
    assert duration(seconds) == DURATIONS[seconds]


def test_as_many_digits_as_tell_two_figures_apart() -> None:
    assert instead(2e-3, 721e-6) == "2 milliseconds instead of 721 microseconds"
    assert instead(853.44e-6, 853.41e-6) == "853.44 microseconds instead of 853.41 microseconds"
    assert instead(1.0, 1.0 + 1e-9) == "1 second either way"


@pytest.mark.parametrize("name", ta.list_designs())
def test_no_plan_compares_a_figure_with_itself(name: str) -> None:
    for workload in ("training", "prefill", "decoding"):
        told = "\n".join(ta.explain(name, backend, workload=workload) for backend in ("torch", "triton"))
        found = re.findall(r"(?:take|cost) (.*) instead of (.*)$", told, re.MULTILINE)
        assert [pair for pair in found if pair[0] == pair[1]] == []
        assert not re.search(r"\d m?s\b|(?<![\d.])1 (micro|milli)?seconds", told)
