"""What may vary: finite lists, drawn by shares."""

from __future__ import annotations

from typing import Any

import pytest

from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.search.read import read_values
from tensornet_attn.search.space import GRID

LISTS: list[tuple[Any, tuple[Any, ...]]] = [
    (64, (64,)),
    ([2, 4, 8], (2, 4, 8)),
    (["f / 4", 16], ("f / 4", 16)),
    ({"choices": [1, 2]}, (1, 2)),
    ({"range": [3, 6]}, (3, 4, 5, 6)),
    ({"log": [1, 4]}, (1, 2, 3, 4)),
    ({"divisors": 36}, (1, 2, 3, 4, 6, 9, 12, 18, 36)),
]


@pytest.mark.parametrize(("given", "wanted"), LISTS)
def test_a_list(given: Any, wanted: tuple[Any, ...]) -> None:
    values = read_values(given)
    assert tuple(values[place] for place in range(len(values))) == wanted
    assert {values.at((place + 0.5) / 1000) for place in range(1000)} == set(wanted)


def test_a_range_of_decimals_is_a_grid_with_both_ends() -> None:
    values = read_values({"range": [0.5, 2]})
    assert (len(values), values[0], values[GRID - 1], values.at(0.5)) == (GRID, 0.5, 2.0, 1.25)


@pytest.mark.parametrize("given", [*(given for given, _ in LISTS), {"range": [0.5, 2]}, {"log": [0.01, 1.0]}])
def test_each_value_knows_its_place(given: Any) -> None:
    values = read_values(given)
    assert [values.place(values[place]) for place in range(len(values))] == list(range(len(values)))
    assert [values.place(other) for other in (-1, 2**60, "no", None)] == [None] * 4
    assert read_values({"range": [1, 2**53]}).place(2**52) == 2**52 - 1  # nothing is walked


def test_a_log_range_draws_by_ratio() -> None:
    values = read_values({"log": [1, 1023]})
    drawn = [values.at((place + 0.5) / 10_000) for place in range(10_000)]
    assert abs(sum(value < 32 for value in drawn) - 5_000) < 10  # half of them below the root
    assert read_values({"log": [0.01, 1.0]}).at(0.5) == 0.1


REFUSED: list[tuple[Any, str]] = [
    ([], "expected a number, or a list of numbers or words."),
    ([[1]], "expected a number, or a list of numbers or words."),
    (True, "expected a number, or a list of numbers or words."),
    ([2, 2], "a value is given twice."),
    ({"range": [1]}, "'range' needs two numbers, the smallest and the largest."),
    ({"range": [4, 2]}, "'range' needs its smallest number below its largest."),
    ({"log": [0, 2]}, "'log' needs its smallest number above 0, below its largest."),
    ({"divisors": 0}, "'divisors' needs a whole number from 1."),
    ({"choices": 3}, "'choices' must be a list."),
    ({"chocies": [3]}, "expected one of choices, range, log, divisors, got chocies."),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_is_refused(given: Any, message: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_values(given)
    assert caught.value.message == message
