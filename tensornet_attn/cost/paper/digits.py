"""A count in the form in which a paper prints one: its suffix, its digits, its rounding."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from tensornet_attn.cost.paper.model import PLAIN, Rounding
from tensornet_attn.errors import InputError

SCALES = {"": 1, "M": 10**6, "G": 10**9}
_PRINTED = re.compile(r"\d+(?:\.(\d+))?( ?)(M|G||%)")
_BOUND = "more than "


def as_printed(value: int, like: str, whole: int | None = None, rounding: Rounding = PLAIN) -> str:
    """A count with the suffix and the digits of another one; percentages are of `whole`. Ties go to even, as in Python.

    Raises InputError where `like` is no printed count.

    >>> as_printed(170_364_928, "170.4M"), as_printed(5, "125%", whole=4)
    ('170.4M', '125%')
    >>> as_printed(43_764_352, "40 M", rounding=Rounding(step=10))
    '40 M'
    >>> as_printed(4_509_194_496, "4618.24", rounding=Rounding(like="4.51G", times=1024))
    '4618.24'
    """
    if rounding.like is not None:
        once = as_printed(value, rounding.like, whole)
        return str(Decimal(once.rstrip("MG% ")) * rounding.times)
    match = _PRINTED.fullmatch(like.removeprefix(_BOUND))
    if match is None:
        raise InputError(f"'{like}' is no printed count, e.g. 170.4M or 125%.")
    digits, space, suffix = len(match[1] or ""), match[2], match[3]
    exact = Fraction(100 * value, whole or 1) if suffix == "%" else Fraction(value, SCALES[suffix])
    rounded = round(exact * 10**digits / rounding.step) * rounding.step
    text = str(rounded) if digits == 0 else f"{rounded // 10**digits}.{rounded % 10**digits:0{digits}}"
    return f"{text}{space}{suffix}"


def agree(printed: str, shown: str) -> bool:
    """Whether a count in printed form is what is printed; `more than 30%` is a bound.

    >>> agree("170.4M", "170.4M"), agree("more than 30%", "33%"), agree("more than 30%", "30%")
    (True, True, False)
    """
    if printed.startswith(_BOUND):
        return Decimal(shown.rstrip("%")) > Decimal(printed.removeprefix(_BOUND).rstrip("%"))
    return printed == shown
