"""Pieces of Markdown: tables without empty columns, and texts that may hold signs Markdown would take for its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SIGNS = re.compile(r"[\\*<|~]|(?<!\w)_|_(?!\w)|\](?=\()")


def prose(text: str) -> str:
    """A text as Markdown that shows it as it is.

    >>> prose("scale d ** -0.5 where g < h")
    'scale d \\\\*\\\\* -0.5 where g \\\\< h'
    """
    return _SIGNS.sub(lambda match: f"\\{match[0]}", text)


def code(text: str) -> str:
    """A text as code; a bar in it would end a cell of a table."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """The lines of a table; columns named in `right` are aligned right, and columns without any entry are left out.

    >>> print(*table(("leg", "size", "note"), [("n", "8", "")], right=("size",)), sep="\\n")
    | leg | size |
    | --- | ---: |
    | n | 8 |
    """
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    marks = ["---:" if name in right else "---" for name in header]
    return ["| " + " | ".join(row[i] for i in kept) + " |" for row in (header, marks, *rows)]


def fenced(language: str, text: str) -> list[str]:
    return [f"```{language}", text.rstrip("\n"), "```"]


def section(title: str, *blocks: Sequence[str]) -> list[str]:
    """A titled section: its blocks of lines, separated by blank ones; nothing where all are empty."""
    filled = [["", *block] for block in blocks if block]
    return ["", f"## {title}", *(line for block in filled for line in block)] if filled else []
