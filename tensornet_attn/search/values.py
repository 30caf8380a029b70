"""What a number or word may be: choices, a range, a log range, or the divisors of a number; always finitely many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log
from typing import Any

from tensornet_attn.spec.report import printable
from tensornet_attn.spec.tokens import Refusal

Value = int | float | str
GRID = 1001  # how many decimals a range of decimals stands for
_LARGEST = 2**53  # whole numbers up to here are exact as decimals
_KEYS = ("choices", "range", "log", "divisors")


@dataclass(frozen=True)
class Values:
    """The values of one choice. `items`, or else the whole numbers, or a grid of decimals, from `low` to `high`."""

    items: tuple[Value, ...] = ()
    low: int | float = 0
    high: int | float = 0
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __len__(self) -> int:
        return len(self.items) or (int(self.high) - int(self.low) + 1 if self.whole else GRID)

    def at(self, unit: float) -> Value:
        """The value at a number between 0 and 1: equal shares, or shares by ratio where `log`."""
        if self.items:
            return self.items[int(unit * len(self.items))]
        if self.whole:
            ends = self.low, self.high + 1
            number = ends[0] * (ends[1] / ends[0]) ** unit if self.log else ends[0] + unit * (ends[1] - ends[0])
            return min(int(self.high), int(number))
        return self[int(unit * GRID)]

    def __getitem__(self, place: int) -> Value:
        if not 0 <= place < len(self):
            raise IndexError(place)
        if self.items:
            return self.items[place]
        if self.whole:
            return int(self.low) + place
        step = place / (GRID - 1)
        number = self.low * (self.high / self.low) ** step if self.log else self.low + step * (self.high - self.low)
        return float(f"{number:.6g}")

    def place(self, value: Any) -> int | None:
        """The place of a value, or of the nearest one in a range of decimals; None where it is none of them."""
        if self.items or not _number(value) or not self.low <= value <= self.high:
            return self.items.index(value) if value in self.items else None
        if self.whole:
            return value - int(self.low) if _whole(value) else None
        ends = self.high / self.low if self.log else self.high - self.low
        return round((log(value / self.low, ends) if self.log else (value - self.low) / ends) * (GRID - 1))


def read_values(value: Any) -> Values:
    """The values that a space file gives for a leg, a setting or an option. Raises Refusal.

    >>> tuple(read_values({"divisors": 12}))
    (1, 2, 3, 4, 6, 12)
    """
    if isinstance(value, Mapping):
        return _described(value)
    items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not items or not all(_number(item) or isinstance(item, str) for item in items):
        raise Refusal("wrong-type", "a number, or a list of numbers or words, is wanted here.", "e.g. [2, 4, 8].")
    if len(set(items)) < len(items):
        raise Refusal("wrong-value", "a value stands here twice.", "each choice is given once.")
    return Values(items)


def _described(value: Mapping[str, Any]) -> Values:
    if len(value) != 1 or next(iter(value)) not in _KEYS:
        keys = printable(", ".join(map(str, value)) or "nothing")
        message = f"one of {', '.join(_KEYS)} is wanted here, {keys} given."
        raise Refusal("wrong-value", message, "e.g. {choices: [2, 4, 8]} or {range: [1, 8]}.")
    ((key, given),) = value.items()
    if key == "divisors":
        if not _whole(given) or not 1 <= given <= 2**31:
            raise Refusal("wrong-value", "'divisors' wants a whole number from 1.", "e.g. {divisors: 64}.")
        small = [one for one in range(1, int(given**0.5) + 1) if given % one == 0]
        return Values(tuple(sorted({*small, *(given // one for one in small)})))
    listed, example = isinstance(given, (list, tuple)), f"e.g. {{{key}: [1, 8]}}."
    if key == "choices":
        if not listed:
            raise Refusal("wrong-type", "'choices' is a list.", "e.g. {choices: [2, 4, 8]}.")
        return read_values(given)
    if not listed or len(given) != 2 or not all(map(_number, given)):
        raise Refusal("wrong-type", f"'{key}' wants two numbers, the least and the greatest.", example)
    low, high = given
    if not low < high or max(abs(low), abs(high)) > _LARGEST or (key == "log" and low <= 0):
        least = "above 0, " if key == "log" else ""
        raise Refusal("wrong-value", f"'{key}' wants its least number {least}below its greatest.", example)
    kind = int if _whole(low) and _whole(high) else float  # whole where both are
    return Values(low=kind(low), high=kind(high), log=key == "log")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float) and isfinite(value))
