"""Long lines of emitted code, broken as a formatter would: at the terms of a sum, else at the longest brackets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

WIDTH = 120
_INDENT = "    "
_OPEN, _CLOSE = "([{", ")]}"


def wrapped(line: str, indent: int, packed: bool = False) -> list[str]:
    """A statement, with its comment, as lines of at most WIDTH columns where that can be, behind `indent` columns.

    `packed`: arguments stand side by side, as many as a line takes, where a formatter would give each a line.
    """
    code, mark, comment = line.partition("  # ")
    if indent + len(line) <= WIDTH or not code.strip():
        return [line]
    bare = code.removesuffix(",")  # of an argument: a sum in brackets does not take it in
    start, head = _head(bare)
    terms = _split(head, (" + ", " - "))
    if len(terms) > 1 and not code.startswith("def "):
        lines = [f"{start}(", *(part for term in terms for part in _inner(term, indent, packed)), ")"]
    else:
        lines = _at_brackets(start, head, indent, packed)
    lines[-1] += code[len(bare) :] + mark + comment
    return lines


def _inner(text: str, indent: int, packed: bool = False) -> list[str]:
    return [_INDENT + part for part in wrapped(text, indent + len(_INDENT), packed)]


def filled(parts: Iterable[str], room: int) -> list[str]:
    """Arguments, each with its comma, side by side in lines of so many columns.

    >>> filled(["a,", "b,", "cd,"], 5)
    ['a, b,', 'cd,']
    """
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= room:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines


def _at_brackets(start: str, text: str, indent: int, packed: bool) -> list[str]:
    """`f(` / the arguments, on one line or one each / `)`."""
    groups = list(_groups(text))
    if not groups:
        return [start + text]
    left, right = max(groups, key=lambda group: group[1] - group[0])
    before, inside, after = text[: left + 1], text[left + 1 : right], text[right:]
    if not inside:
        return [start + text]
    if indent + len(_INDENT) + len(inside) <= WIDTH:
        return [start + before, _INDENT + inside, after]
    parts = _split(inside, (", ",))
    trailing = [f"{part}," for part in parts] if len(parts) > 1 else parts
    trailing = filled(trailing, WIDTH - indent - len(_INDENT)) if packed else trailing
    return [start + before, *(line for part in trailing for line in _inner(part, indent, packed)), after]


def _head(code: str) -> tuple[str, str]:
    """`name = `, `name += ` or `return `, and what follows."""
    for mark in (" += ", " |= ", " = ", "return "):
        before, found, after = code.partition(mark)
        if found and not set(before) & set(_OPEN):
            return before + found, after
    return "", code


def _split(text: str, marks: tuple[str, ...]) -> list[str]:
    """The parts of a text between marks outside of all brackets and quotes; a part keeps the sign before it."""
    parts, place = [], 0
    for i in _outside(text):
        for mark in marks:
            if i > place and text.startswith(mark, i):
                parts.append(text[place:i])
                place = i + (2 if mark == ", " else 1)
    return [*parts, text[place:]]


def _groups(text: str) -> Iterator[tuple[int, int]]:
    """The brackets that stand in no others."""
    for left, right in pairwise(_outside(text)):
        if right > left + 1 and text[left] in _OPEN:
            yield left, right


def _outside(text: str) -> Iterator[int]:
    """The places outside of all brackets and quotes, the brackets themselves included."""
    depth, quoted = 0, False
    for i, c in enumerate(text):
        quoted ^= c == '"'
        depth -= c in _CLOSE and not quoted
        if depth == 0 and not quoted:
            yield i
        depth += c in _OPEN and not quoted
