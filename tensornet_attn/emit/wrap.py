"""Wraps long lines of emitted code: at the terms of a sum, else at the longest brackets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

WIDTH = 120
INDENT = "    "
_OPEN, _CLOSE = "([{", ")]}"


def wrapped(line: str, indent: int) -> list[str]:
    """Splits a statement and its comment into lines of at most WIDTH columns if possible, at an indent of `indent`."""
    code, mark, comment = line.partition("  # ")
    if indent + len(line) <= WIDTH or not code.strip():
        return [line]
    bare = code.removesuffix(",")  # the trailing comma of an argument stays outside the brackets
    start, head = _head(bare)
    terms, inner = _split(head, (" + ", " - ")), indent + len(INDENT)
    if len(terms) > 1 and not code.startswith("def "):
        lines = [f"{start}(", *(row for term in terms for row in indented(wrapped(term, inner))), ")"]
    else:
        lines = _at_brackets(start, head, indent)
    lines[-1] += code[len(bare) :] + mark + comment
    return lines


def indented(lines: Iterable[str]) -> list[str]:
    """The lines with an indent, except empty ones."""
    return [INDENT + line if line else "" for line in lines]


def tuple_text(members: Iterable[object]) -> str:
    """A tuple as Python.

    >>> tuple_text("a"), tuple_text([1, 2])
    ('(a,)', '(1, 2)')
    """
    texts = [str(member) for member in members]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def filled(arguments: Iterable[str], width: int) -> list[str]:
    """Joins arguments, each with its comma, into lines of at most `width` columns.

    >>> filled(["a,", "b,", "cd,"], 5)
    ['a, b,', 'cd,']
    """
    lines: list[str] = []
    for argument in arguments:
        if lines and len(lines[-1]) + 1 + len(argument) <= width:
            lines[-1] += f" {argument}"
        else:
            lines.append(argument)
    return lines


def _at_brackets(start: str, code: str, indent: int) -> list[str]:
    """Splits at `f(`, the arguments (as many on a line as fit), and `)`."""
    groups = list(_groups(code))
    if not groups:
        return [start + code]
    left, right = max(groups, key=lambda group: group[1] - group[0])
    before, inside, after = code[: left + 1], code[left + 1 : right], code[right:]
    if not inside:
        return [start + code]
    inner = indent + len(INDENT)
    if inner + len(inside) <= WIDTH:
        return [start + before, INDENT + inside, after]
    arguments = _split(inside, (", ",))
    trailing = [f"{argument}," for argument in arguments] if len(arguments) > 1 else arguments
    rows = filled(trailing, WIDTH - inner)
    return [start + before, *(line for row in rows for line in indented(wrapped(row, inner))), after]


def _head(code: str) -> tuple[str, str]:
    """Splits `name = `, `name += ` or `return ` from the rest."""
    for mark in (" += ", " |= ", " = ", "return "):
        before, separator, after = code.partition(mark)
        if separator and not set(before) & set(_OPEN):
            return before + separator, after
    return "", code


def _split(code: str, marks: tuple[str, ...]) -> list[str]:
    """Splits a text at marks outside brackets and quotes; each part keeps the sign before it."""
    pieces, start = [], 0
    for i in _outside(code):
        for mark in marks:
            if i > start and code.startswith(mark, i):
                pieces.append(code[start:i])
                start = i + (2 if mark == ", " else 1)
    return [*pieces, code[start:]]


def _groups(code: str) -> Iterator[tuple[int, int]]:
    """The outermost brackets."""
    for left, right in pairwise(_outside(code)):
        if right > left + 1 and code[left] in _OPEN:
            yield left, right


def _outside(code: str) -> Iterator[int]:
    """The indices outside brackets and quotes, including the brackets themselves."""
    depth, quoted = 0, False
    for i, character in enumerate(code):
        quoted ^= character == '"'
        depth -= character in _CLOSE and not quoted
        if depth == 0 and not quoted:
            yield i
        depth += character in _OPEN and not quoted
