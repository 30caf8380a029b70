"""A cost table of a paper as data: designs at sizes, what the paper prints, and what its count does otherwise.

All numbers are texts in the arithmetic of the language, over the `values` of a row: the letters of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Formula = str
Formulas = Mapping[str, Formula]

UNITS = ("MACs", "FLOPs", "floats", "parameters")  # what is counted of a design; other units have a closed form alone
SOURCES = ("counted", "measured", "drawn")


@dataclass(frozen=True)
class Part:
    """`times` the cost of a design: a shipped name, or the keys of a design file that extends one.

    `legs` and `settings` replace sizes and numbers, `lengths` are those of the sequence legs, `batch` the sequences.
    """

    design: str | Mapping[str, Any]
    legs: Formulas
    lengths: Formulas
    settings: Formulas = field(default_factory=dict)
    times: int = 1
    batch: Formula = "1"


@dataclass(frozen=True)
class Adjustment:
    """A named term that turns our count into the paper's; `formula` may be negative."""

    name: str
    formula: Formula
    why: str


@dataclass(frozen=True)
class Rounding:
    """How a paper rounds, where its digits do not say it.

    `step`: to a multiple of the last digit, e.g. 10 for 40M. `like` and `times`: first to the digits of `like`, then
    multiplied: 4618.24 is 4.51, `like` 4.51G, times 1,024.
    """

    step: int = 1
    like: str | None = None
    times: int = 1


PLAIN = Rounding()


@dataclass(frozen=True)
class Count:
    """One number of a row, by unit. `formula`: what the source gives; `printed`: the number as its table prints it.

    `source` is counted, measured (on a machine; nothing is computed here), or drawn (a figure without numbers). `rest`:
    what our count has besides the parts, in closed form: layers that are no designs. `parts`, `whole`: those of this
    number, where they are not the row's. `note`: what the reader must know, above all why a number is not reproduced.
    `percentage_of`: what a printed percentage is of, where that is no design.
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
    """A printed row; our count is the sum of its parts. `whole`: what printed percentages are percentages of.

    `kind` names the rows that share formulas and adjustments; the model itself where it is empty.
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
    """The rows of a source; `convention` says in words how it counts, `letters` what the letters of formulas are."""

    name: str
    source: str
    convention: str
    rows: tuple[Row, ...]
    letters: str = ""
