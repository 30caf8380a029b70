"""Wraps long lines of emitted code: at the terms of a sum, else at the longest brackets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

WIDTH = 120
_INDENT = "    "
_OPEN, _CLOSE = "([{", ")]}"


def wrapped(line: str, indent: int) -> list[str]:
    """Splits a statement and its comment into lines of at most WIDTH columns if possible, at an indent of `indent`."""
    code, mark, comment = line.partition("  # ")
    if indent + len(line) <= WIDTH or not code.strip():
        return [line]
    bare = code.removesuffix(",")  # the trailing comma of an argument stays outside the brackets
    start, head = _head(bare)
    terms = _split(head, (" + ", " - "))
    if len(terms) > 1 and not code.startswith("def "):
        lines = [f"{start}(", *(part for term in terms for part in _inner(term, indent)), ")"]
    else:
        lines = _at_brackets(start, head, indent)
    lines[-1] += code[len(bare) :] + mark + comment
    return lines


def _inner(text: str, indent: int) -> list[str]:
    return [_INDENT + part for part in wrapped(text, indent + len(_INDENT))]


def filled(parts: Iterable[str], room: int) -> list[str]:
    """Joins arguments, each with its comma, into lines of at most `room` columns.

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


def _at_brackets(start: str, text: str, indent: int) -> list[str]:
    """Splits at `f(`, the arguments (as many on a line as fit), and `)`."""
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
    rows = filled(trailing, WIDTH - indent - len(_INDENT))
    return [start + before, *(line for row in rows for line in _inner(row, indent)), after]


def _head(code: str) -> tuple[str, str]:
    """Splits `name = `, `name += ` or `return ` from the rest."""
    for mark in (" += ", " |= ", " = ", "return "):
        before, found, after = code.partition(mark)
        if found and not set(before) & set(_OPEN):
            return before + found, after
    return "", code


def _split(text: str, marks: tuple[str, ...]) -> list[str]:
    """Splits a text at marks outside brackets and quotes; each part keeps the sign before it."""
    parts, place = [], 0
    for i in _outside(text):
        for mark in marks:
            if i > place and text.startswith(mark, i):
                parts.append(text[place:i])
                place = i + (2 if mark == ", " else 1)
    return [*parts, text[place:]]


def _groups(text: str) -> Iterator[tuple[int, int]]:
    """The outermost brackets."""
    for left, right in pairwise(_outside(text)):
        if right > left + 1 and text[left] in _OPEN:
            yield left, right


def _outside(text: str) -> Iterator[int]:
    """The indices outside brackets and quotes, including the brackets themselves."""
    depth, quoted = 0, False
    for i, c in enumerate(text):
        quoted ^= c == '"'
        depth -= c in _CLOSE and not quoted
        if depth == 0 and not quoted:
            yield i
        depth += c in _OPEN and not quoted
