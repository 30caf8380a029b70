"""The costs that papers print, transcribed: one text file per paper, one section per table, one line per printed row.

    # a comment
    [table 2] what the table is about
    Model | n_heads | MACs
    EPA | 2 | 170.4M

The cost tables are derived from these files row by row, so that no printed row is missing. Figures that print no number
are rows with a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tensornet_attn.cost.paper.model import Count, Row
from tensornet_attn.errors import InputError

FOLDER = Path(__file__).parent / "printed"


@dataclass(frozen=True)
class Section:
    """A printed table: `where` it is, what it is `about`, and its rows, each a mapping from column to cell."""

    where: str
    about: str
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, str]]


@cache
def printed(paper: str) -> Mapping[str, Section]:
    """The sections of a paper by name, in the order of its file.

    >>> printed("fish")["table 5"].rows[0]["Params"]
    '28.3M'
    """
    return read((FOLDER / f"{paper}.txt").read_text(encoding="utf-8"), f"{paper}.txt")


def read(text: str, file: str) -> dict[str, Section]:
    """The sections of a text. Raises InputError, with the line number, if a row does not fit its columns."""
    found: dict[str, Section] = {}
    where = about = ""
    rows: list[Mapping[str, str]] | None = None  # rows of the current section, after its columns are read
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            where, _, about = (part.strip() for part in line.removeprefix("[").partition("]"))
            rows = None
            continue
        cells = tuple(cell.strip() for cell in line.split(" | "))
        if rows is None:
            rows = []
            found[where] = Section(where, about, cells, rows)
        elif len(cells) != len(found[where].columns):
            columns = len(found[where].columns)
            raise InputError(f"{file}:{number}: {len(cells)} cells, but [{where}] has {columns} columns.")
        else:
            rows.append(dict(zip(found[where].columns, cells, strict=True)))
    return found


WITHOUT = {  # notes on figures without numbers, by their state
    "measured": "measured on a GPU; the figure prints no number.",
    "drawn": "the figure prints no number; docs/costs.md shows how to draw ours.",
}


def figures(section: Section) -> Iterable[Row]:
    """Efficiency figures: one row each, without a printed number, with its state and a reference to our plot."""
    for row in section.rows:
        count = Count("figure", source=row["state"], note=WITHOUT[row["state"]])
        yield Row(f"fig. {row['figure']}: {row['quantity']}", section.where, {}, (), (count,))
