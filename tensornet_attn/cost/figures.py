"""Predicted times in the messages of a plan: enough digits, one unit, singular and plural."""

from __future__ import annotations

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


def as_long(seconds: float, baseline: float) -> str:
    """A time as a multiple of another.

    >>> as_long(0.321, 0.112)
    '2.87 times as long'
    """
    return f"{seconds / baseline:.3g} times as long"


def instead(seconds: float, baseline: float) -> str:
    """'One time instead of another', with the 3 to 6 digits that distinguish them.

    >>> instead(853.4e-6, 853.1e-6), instead(853e-6, 853e-6)
    ('853.4 microseconds instead of 853.1 microseconds', '853 microseconds either way')
    """
    for digits in range(3, 7):
        shown, baseline_shown = duration(seconds, digits), duration(baseline, digits)
        if shown != baseline_shown:
            return f"{shown} instead of {baseline_shown}"
    return f"{duration(seconds)} either way"
