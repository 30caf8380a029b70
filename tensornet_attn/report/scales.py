"""The axes of plots: positions of values and ticks; templates draw them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDE = 8.0  # an axis is logarithmic if the ratio of the largest to the smallest cost exceeds this
HIGH = 0.97  # largest accuracy from which an axis separates .99 and .999
ERROR = 1e-4  # the smallest error rate that is distinguished from zero
RATES = (0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 1)
TICKS = 6  # approximate number of ticks of an axis
EDGE = 0.04  # margin at each end, as a fraction of the axis


def _rate(value: float) -> float:
    return -math.log10(1 - min(max(value, 0.0), 1.0) + ERROR)


@dataclass(frozen=True)
class Scale:
    """An axis from `first` to `last` on the page, for values with measures from `low` to `high`."""

    measure: Callable[[float], float]
    low: float
    high: float
    first: float
    last: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """The position of a value on the page."""
        share = (self.measure(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)


def linear(values: Sequence[float], first: float, last: float, zero: bool = False) -> Scale:
    """A linear axis; `zero`: starts at 0.

    >>> linear([0.0, 10.0], 0, 100, zero=True).ticks
    (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    """
    return _scale(float, ([0.0] if zero else []) + list(values), first, last, _round_ticks, zero)


def cost(values: Sequence[float], first: float, last: float) -> Scale:
    """An axis for costs, logarithmic if they differ by more than a factor of `WIDE`.

    >>> cost([100.0, 5000.0], 0, 100).ticks
    (100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
    """
    wide = values and min(values) > 0 and max(values) / min(values) > WIDE
    return _scale(math.log10, values, first, last, _decade_ticks) if wide else linear(values, first, last)


def near_one(values: Sequence[float]) -> bool:
    """Whether all values are rates and the largest is so close to 1 that the axis should show error rates."""
    return bool(values) and min(values) >= 0 and HIGH <= max(values) <= 1


def rate(values: Sequence[float], first: float, last: float) -> Scale:
    """An axis for rates, logarithmic in the error rate, which separates .99 and .999.

    >>> rate([0.4, 0.999], 0, 100).ticks
    (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
    """
    return _scale(_rate, values, first, last, lambda low, high: RATES)


def _scale(
    measure: Callable[[float], float],
    values: Sequence[float],
    first: float,
    last: float,
    ticks: Callable[[float, float], Sequence[float]],
    flush: bool = False,
) -> Scale:
    ends = [measure(value) for value in values] or [0.0, 1.0]
    low, high = min(ends), max(ends)
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - (0.5 * abs(low) or 0.5), high + (0.5 * abs(high) or 0.5)
    room = EDGE * (high - low)
    low, high = low - (0.0 if flush else room), high + room
    inside = (tick for tick in ticks(low, high) if low - 1e-9 <= measure(tick) <= high + 1e-9)
    return Scale(measure, low, high, first, last, tuple(inside))


def _round_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    step = next((size * power for size in (1, 2, 5, 10) if (high - low) / (size * power) <= TICKS), 10 * power)
    return [
        round(multiple * step, 12)
        for multiple in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def _decade_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times each power of ten; only powers of ten if there are many."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    return [size * 10.0**power for power in powers for size in ((1, 2, 5) if high - low < 2.5 else (1,))]


def readable_ticks(scale: Scale, tick: Callable[[float], str]) -> list[float]:
    """The ticks whose labels do not overlap the label before."""
    readable: list[float] = []
    free = float("-inf")
    for value in scale.ticks:
        half = 4.0 * len(tick(value)) + 3
        if scale.at(value) - half >= free:
            readable.append(value)
            free = scale.at(value) + half
    return readable
