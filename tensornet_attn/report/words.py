"""Formats of numbers, times and lists on a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensornet_attn.cost.sizes import human

UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(number: float) -> str:
    """
    >>> [short(value) for value in (1572864, 8192, 40_000_000, 576, 0.00125)]
    ['1.57M', '8.19k', '40M', '576', '0.00125']
    """
    for size, unit in UNITS:
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def exact(number: float | None) -> str:
    """
    >>> [exact(value) for value in (1572864, 0.00125, None)]
    ['1,572,864', '0.00125', '']
    """
    if number is None:
        return ""
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.4g}"


def score(number: float | None) -> str:
    """
    >>> [score(value) for value in (0.98712, -1.25, 1.0, None)]
    ['0.9871', '-1.2500', '1.0000', '']
    """
    return "" if number is None else f"{number:.4f}"


def column(name: str) -> str:
    return name.replace("_", " ")


def joined(words: Iterable[str]) -> str:
    """
    >>> [joined(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])]
    ['', 'a', 'a and b', 'a, b and c']
    """
    *first, last = [*words] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def counted(count: int, word: str) -> str:
    """
    >>> counted(1, "design"), counted(1200, "design")
    ('1 design', '1,200 designs')
    """
    return f"{count:,} {word}{'s' * (count != 1)}"


def clock(seconds: float) -> str:
    """
    >>> [clock(seconds) for seconds in (4.2, 75, 5400)]
    ['4.2 s', '1 min 15 s', '1 h 30 min']
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    total = round(seconds)
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"


def drop(difference: float) -> str:
    """The difference between the quality that the search saw and the confirmed quality.

    >>> drop(0.0214), drop(-0.003)
    ('a drop of 0.0214', 'a rise of 0.0030')
    """
    return f"a {'drop' if difference >= 0 else 'rise'} of {abs(difference):.4f}"


def in_bytes(size: int) -> str:
    """
    >>> in_bytes(18_200_000), in_bytes(512)
    ('18.2 MB', '512 B')
    """
    readable = human(size)
    return f"{readable}B" if " " in readable else f"{readable} B"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table on a terminal: left-aligned columns; the last entry of a row does not widen its column.

    >>> aligned([("a", "bc", "d"), ("long", "words that end a row",), ("e", "f", "g")])
    ['a     bc  d', 'long  words that end a row', 'e     f   g']
    """
    widths = [
        max((len(row[index]) for row in rows if len(row) > index + 1), default=0)
        for index in range(max(map(len, rows), default=0))
    ]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
