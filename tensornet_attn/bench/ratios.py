"""Medians, quartiles and ratios of measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers and the quarters on either side."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; between two values the quartile is interpolated.

    >>> spread([4.0, 1.0, 3.0, 2.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        return Spread(*values * 3)
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Spread(median(values), low, high)


def ratio(other: Sequence[float], ours: Sequence[float]) -> Spread:
    """How many times as long the other took: the ratio of medians, and quartiles of the ratios round by round.

    Both of a pair stand in one round, moments apart, so that what slows the machine down slows both.

    >>> ratio([4.0, 8.0, 6.0], [2.0, 2.0, 3.0])
    Spread(median=3.0, low=2.0, high=3.0)
    """
    pairs = spread([a / b for a, b in zip(other, ours, strict=True)])
    return Spread(median(other) / median(ours), pairs.low, pairs.high)
