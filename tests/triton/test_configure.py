"""The model that chooses tiles: what fits first, what was tuned before it, and what does not fit at all."""

from __future__ import annotations

from typing import Any

import pytest

from tensornet_attn.runtime.triton import configure

LARGE = {"BLOCK": 128, "num_warps": 4, "num_stages": 2}
SMALL = {"BLOCK": 16, "num_warps": 4, "num_stages": 1}


def square(BLOCK: int, **launch: int) -> tuple[int, int]:
    """A tile in registers, and its numbers of four bytes in shared memory."""
    return BLOCK * BLOCK, 4 * BLOCK * BLOCK


def staged(BLOCK: int, **launch: int) -> tuple[int, int]:
    """Much shared memory alone."""
    return 1, 1024 * BLOCK


def test_the_first_candidate_that_fits() -> None:
    assert configure.first_fitting([LARGE, SMALL], square, 90) == LARGE
    assert configure.first_fitting([SMALL, LARGE], square, 90) == SMALL
    assert configure.first_fitting([LARGE | {"num_warps": 2}, SMALL], square, 90) == SMALL  # 256 numbers a thread


@pytest.mark.parametrize(("target", "fits"), [(80, False), (90, False), (99, False)])
def test_shared_memory_of_all_stages_counts(target: int, fits: bool) -> None:
    assert (configure.first_fitting([LARGE, SMALL], staged, target) == LARGE) is fits


def test_the_newer_gpu_takes_more() -> None:
    one = LARGE | {"BLOCK": 100}
    assert [configure.first_fitting([one, SMALL], staged, target) for target in (80, 90)] == [SMALL, one]


def test_the_last_candidate_where_none_fits() -> None:
    assert configure.first_fitting([LARGE], staged, 80) == LARGE


def test_what_was_tuned_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    choices: dict[str, Any] = {"square 3 float32": SMALL}
    monkeypatch.setattr(configure, "CHOICES", choices)
    monkeypatch.setattr(configure, "ASKED", {})
    monkeypatch.setattr(configure, "target_of", lambda: 90)
    assert configure.configured("square", (3, "float32"), [LARGE, SMALL], square) == SMALL
    assert configure.configured("square", (4, "float32"), [LARGE, SMALL], square) == LARGE
    choices["square 5 float32"] = SMALL | {"BLOCK": 999}  # no candidate
    assert configure.configured("square", (5, "float32"), [LARGE, SMALL], square) == LARGE
    assert configure.ASKED.pop("square 5 float32") == [LARGE, SMALL]
    assert configure.ASKED == {"square 3 float32": [LARGE, SMALL], "square 4 float32": [LARGE, SMALL]}


def test_repetitions_are_left_out() -> None:
    assert configure.distinct([LARGE, SMALL, dict(LARGE)]) == [LARGE, SMALL]
