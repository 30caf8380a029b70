"""What `docs/results/compare_commits.py` says of figures; the measuring itself is outside the suite."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripts import script

VERDICT = script("results/compare_commits").verdict


def row(name: str, speed: float = 1.0, memory: float = 1.0) -> dict[str, Any]:
    return {"design": name, "speed": speed, "memory": memory}


WRONG = [
    ([row("a", 1.0), row("b", 0.97)], []),
    ([row("a", 0.97), row("b", 0.96)], ["the geometric mean of speeds is 0.965, below 0.98"]),
    ([row("a", 1.2), row("b", 0.94)], ["b has speed 0.940, below 0.95"]),
    ([row("a", memory=1.02), row("b", memory=1.03)], ["b takes 1.030 times the memory, above 1.02"]),
    ([row("a"), {"design": "b", "new_error": "InputError: no"}], ["b no longer runs: InputError: no"]),
    ([row("a"), {"design": "b", "old_error": "no", "new_error": "no"}], []),
]


@pytest.mark.parametrize(("rows", "wrong"), WRONG)
def test_verdict(rows: list[dict[str, Any]], wrong: list[str]) -> None:
    assert VERDICT(rows)[1] == wrong


def test_nothing_measured_is_no_verdict() -> None:
    assert VERDICT([{"design": "a", "old_error": "no", "new_error": "no"}]) == (None, [])
