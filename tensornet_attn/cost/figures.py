"""Predicted times and counts in the messages of a plan: enough digits, one unit, singular and plural."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tensornet_attn.cost.sizes import human

Number = TypeVar("Number", int, float)
UNITS = (("second", 1.0), ("millisecond", 1e3), ("microsecond", 1e6))


def duration(seconds: float, digits: int = 3) -> str:
    """A time in seconds, milliseconds or microseconds, with `digits` significant digits.

    >>> duration(853e-6), duration(1e-6), duration(0.99996), duration(0.0020149, 4)
    ('853 microseconds', '1 microsecond', '1 second', '2.015 milliseconds')
    """
    for unit, factor in UNITS:
        figure = f"{seconds * factor:.{digits}g}"
        if float(figure) >= 1 or unit == UNITS[-1][0]:
            break
    figure = f"{float(figure):,.0f}" if float(figure) >= 1000 else figure
    return f"{figure} {unit}{'s' * (figure != '1')}"


def counted(operations: float, digits: int = 3) -> str:
    """
    >>> counted(1_073_741_824), counted(1)
    ('1.07 G multiply-adds', '1 multiply-add')
    """
    return f"{human(int(operations), digits)} multiply-add{'s' * (operations != 1)}"


def as_long(seconds: float, baseline: float) -> str:
    """A time as a multiple of another.

    >>> as_long(0.321, 0.112)
    '2.87 times as long'
    """
    return f"{seconds / baseline:.3g} times as long"


def instead(figure: Number, baseline: Number, formatted: Callable[[Number, int], str]) -> str:
    """'One figure instead of another', with the 3 to 6 digits that distinguish them.

    >>> instead(853.4e-6, 853.1e-6, duration)
    '853.4 microseconds instead of 853.1 microseconds'
    >>> instead(853e-6, 853e-6, duration)
    '853 microseconds either way'
    """
    for digits in range(3, 7):
        shown, baseline_shown = formatted(figure, digits), formatted(baseline, digits)
        if shown != baseline_shown:
            return f"{shown} instead of {baseline_shown}"
    return f"{formatted(figure, 3)} either way"
