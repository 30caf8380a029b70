"""A cost table of a paper as data: designs at sizes, the printed numbers, and the differences between the counts.

The printed numbers are transcribed: one text file per paper, one section per table, one line per printed row.

    # a comment
    [table 2] what the table is about
    Model | n_heads | MACs
    EPA | 2 | 170.4M

The cost tables are derived from these files row by row, so that no printed row is missing. Figures that print no number
are rows with a state.

All numbers are text in the arithmetic of the language, over the `values` of a row: the letters of the paper. Counts are
compared in the format in which the paper prints them: suffix, digits, rounding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from tensornet_attn.errors import InputError

Formula = str
Formulas = Mapping[str, Formula]

UNITS = ("MACs", "FLOPs", "floats", "parameters")  # units of counts of designs; other units only have a closed form


@dataclass(frozen=True)
class Part:
    """`times` the cost of a design: a shipped name, or the keys of a design file that extends one.

    `legs`: sizes; `settings`: settings; `lengths`: lengths of the sequence legs; `batch`: number of sequences.
    """

    design: str | Mapping[str, Any]
    legs: Formulas
    lengths: Formulas
    settings: Formulas = field(default_factory=dict)
    times: int = 1
    batch: Formula = "1"


@dataclass(frozen=True)
class Adjustment:
    """A named term of the difference between the paper's count and ours; `formula` may be negative."""

    name: str
    formula: Formula
    why: str


@dataclass(frozen=True)
class Rounding:
    """How a paper rounds, if its digits do not show it.

    `step`: to a multiple of the last digit, e.g. 10 for 40M. `like` and `times`: rounds to the digits of `like`, then
    multiplies: 4618.24 is 4.51, `like` 4.51G, times 1,024.
    """

    step: int = 1
    like: str | None = None
    times: int = 1


PLAIN = Rounding()


@dataclass(frozen=True)
class Count:
    """One number of a row, by unit. `formula`: the formula in the source; `printed`: the number as its table prints it.

    `source`: counted, measured (on a machine; nothing is computed here), or drawn (a figure without numbers). `rest`:
    terms of our count besides the parts, in closed form: layers that are not designs. `parts`: replaces those of the
    row. `note`: information for the reader, such as why a number is not reproduced. `percentage_of`: the total of a
    printed percentage, if it is not a design.
    """

    unit: str
    adjustments: tuple[Adjustment, ...] = ()
    formula: Formula | None = None
    printed: str | None = None
    rest: tuple[Adjustment, ...] = ()
    parts: tuple[Part, ...] | None = None
    note: str | None = None
    source: str = "counted"
    rounding: Rounding = PLAIN
    percentage_of: Formula | None = None


@dataclass(frozen=True)
class Row:
    """A printed row; our count is the sum of its parts. `whole`: the parts of which printed percentages are taken.

    `kind`: a name for rows with the same formulas and adjustments; if empty, the model.
    """

    model: str
    where: str
    values: Mapping[str, int]
    parts: tuple[Part, ...]
    counts: tuple[Count, ...]
    whole: tuple[Part, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """The rows of a source; `convention`: how it counts, in words; `letters`: the meaning of letters in formulas."""

    name: str
    source: str
    convention: str
    rows: tuple[Row, ...]
    letters: str = ""


SCALES = {"": 1, "M": 10**6, "G": 10**9}
_PRINTED = re.compile(r"\d+(?:\.(\d+))?( ?)(M|G||%)")
_BOUND = "more than "


def as_printed(value: int, like: str, whole: int | None = None, rounding: Rounding = PLAIN) -> str:
    """A count with the suffix and digits of `like`; percentages are of `whole`. Ties round to even, as in Python.

    Raises InputError if `like` is not a printed count.

    >>> as_printed(170_364_928, "170.4M"), as_printed(5, "125%", whole=4)
    ('170.4M', '125%')
    >>> as_printed(43_764_352, "40 M", rounding=Rounding(step=10))
    '40 M'
    >>> as_printed(4_509_194_496, "4618.24", rounding=Rounding(like="4.51G", times=1024))
    '4618.24'
    """
    if rounding.like is not None:
        rounded_text = as_printed(value, rounding.like, whole)
        return str(Decimal(rounded_text.rstrip("MG% ")) * rounding.times)
    match = _PRINTED.fullmatch(like.removeprefix(_BOUND))
    if match is None:
        raise InputError(f"'{like}' is not a printed count, e.g. 170.4M or 125%.")
    digits, space, suffix = len(match[1] or ""), match[2], match[3]
    exact = Fraction(100 * value, whole or 1) if suffix == "%" else Fraction(value, SCALES[suffix])
    rounded = round(exact * 10**digits / rounding.step) * rounding.step
    text = str(rounded) if digits == 0 else f"{rounded // 10**digits}.{rounded % 10**digits:0{digits}}"
    return f"{text}{space}{suffix}"


def agree(printed: str, shown: str) -> bool:
    """Whether a count in printed form equals the printed number; `more than 30%` is a bound.

    >>> agree("170.4M", "170.4M"), agree("more than 30%", "33%"), agree("more than 30%", "30%")
    (True, True, False)
    """
    if printed.startswith(_BOUND):
        return Decimal(shown.rstrip("%")) > Decimal(printed.removeprefix(_BOUND).rstrip("%"))
    return printed == shown


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
