"""What commands print and write: JSON, tables, and files that appear whole or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tensornet_attn.files import write_whole


def print_json(value: object) -> None:
    print(as_json_text(value), end="")


def as_json_text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for people on a terminal; aligned columns without a header where another program reads."""
    if sys.stdout.isatty():
        _print_rich(header, rows)
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: brackets in a cell are no markup
    Console().print(table)


def write(path: str, content: str | bytes) -> None:
    """Writes a file, whole or not at all; `-` is standard output."""
    data = content.encode() if isinstance(content, str) else content
    if path != "-":
        write_whole(Path(path), data)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
