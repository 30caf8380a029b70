"""Output of commands: JSON, tables, and files that are written atomically."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer


def print_json(document: object) -> None:
    print(as_json_text(document), end="")


def as_json_text(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def show(shown: Any, as_json: bool, page: str | None = None, drawn: Callable[[], str] | None = None) -> None:
    """Prints a result as text or JSON, and writes its page. If the page goes to standard output, nothing else does.

    Raises BadParameter for JSON and a page that both go to standard output.
    """
    if page == "-" and as_json:
        raise typer.BadParameter("--json and the file '-' both write to standard output; leave out one of them.")
    if page is not None and drawn is not None:
        write(page, drawn())
    if page == "-":
        return
    if as_json:
        print_json(shown.as_dict())
    else:
        print(shown.to_text().rstrip("\n"))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table on a terminal, and aligned columns without a header in a pipe or file."""
    if not sys.stdout.isatty():
        from tensornet_attn.report.words import aligned

        for line in aligned(rows):
            print(line)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: rich must not read brackets as markup
    Console().print(table)


def write(path: str, content: str | bytes) -> None:
    """Writes a file atomically; `-` is standard output."""
    encoded = content.encode() if isinstance(content, str) else content
    if path != "-":
        from tensornet_attn.files import write_whole  # its imports take milliseconds

        write_whole(Path(path), encoded)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(encoded)
