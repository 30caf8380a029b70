"""The cost tables of papers: our count of a printed number, plus named differences, gives the paper's count.

`papers/NAME.toml` has the tables of a paper as printed, and the designs and formulas of their rows:

    sections  printed tables: `rows` of cells below a line of columns. `counts`: the unit of each column of numbers, if
              the table has no columns `unit`, `printed` and `formula`. `name` and `kind` of a row, by its cells
    kinds     the fields of PrintedRow, and by unit those of Count, for rows of a kind; `like` names a kind that has the
              others
    parts     the fields of CostTerm by name; a kind names each with its `times`
    terms     name, formula and reason of an Adjustment by name
    sizes     the letters of the paper in its models, by the name of our file
    notes     sentences by name

The columns `row`, `kind`, `design`, `note` and `sizes` are ours; sizes are `epa_47m_xl K=3`. A cell `-` is empty.

Formulas are in the arithmetic of the language, over the letters of the paper. Our MACs and FLOPs (2 MACs) are those of
the cheapest order of each product; if a topk routes, of the chosen entries only. `dense` counts all entries. Our floats
are those that autograd saves for backward. Torch is not needed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any, NamedTuple

from tensornet_attn.cost.report import Cost, cost
from tensornet_attn.cost.sizes import columns, sizes_at
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.arithmetic import evaluate, parse
from tensornet_attn.spec import library, load
from tensornet_attn.spec.sources import file_document

FOLDER = Path(__file__).parent / "papers"
NAMES = ("epa", "fish", "mgk", "tuformer", "fmm", "swin")
ALL = "all"  # selects every table
WIDTH = 118
SCALES = {"": 1, "M": 10**6, "G": 10**9}
TITLES = {"stated": "formula", "ours_dense": "ours, dense"}  # of columns, other than keys of `as_dict`
_PRINTED = re.compile(r"\d+(?:\.(\d+))?( ?)(M|G||%)")
_BOUND = "more than "
KEYS = (  # of `as_dict`, but `adjustments` and `values`
    "where", "model", "unit", "printed", "recount", "paper", "ours", "ours_dense", "difference", "state", "note",
    "formula", "stated", "percentage_of",
)  # fmt: skip

Formula = str
Formulas = Mapping[str, Formula]
Values = Mapping[str, int]
Cells = Mapping[str, str]
Split = Callable[[Graph, Values], Graph]  # splits a graph into products of two


class CostTerm(NamedTuple):
    """`times` the cost of a design: a shipped one, the attention of a shipped model, or keys that extend a design.

    `legs`: sizes; `settings`: settings; `lengths`: lengths of the sequence legs; `batch`: number of sequences.
    """

    design: str | Mapping[str, Any]
    legs: Formulas
    lengths: Formulas
    settings: Formulas = MappingProxyType({})
    batch: Formula = "1"
    times: Formula = "1"


class Adjustment(NamedTuple):
    """A named term of the difference between the paper's count and ours; `formula` may be negative."""

    name: str
    formula: Formula
    why: str


class Rounding(NamedTuple):
    """How a paper rounds, if its digits do not show it.

    `step`: to a multiple of the last digit, e.g. 10 for 40M. `like` and `times`: rounds to the digits of `like`, then
    multiplies: 4618.24 is 4.51, `like` 4.51G, times 1,024.
    """

    step: int = 1
    like: str = ""
    times: int = 1


PLAIN = Rounding()


@dataclass(frozen=True)
class Count:
    """One number of a row, by unit. `formula`: the formula in the source; `printed`: the number as its table prints it.

    `source`: counted, measured (on a machine; nothing is computed here), or drawn (a figure without numbers). `rest`:
    terms of our count besides its `parts`, in closed form: layers that are not designs. `note`: information for the
    reader, such as why a number is not reproduced. `whole`: the parts of which a printed percentage is taken, or
    `percentage_of`, if they are not designs.
    """

    unit: str
    adjustments: tuple[Adjustment, ...] = ()
    formula: Formula | None = None
    printed: str | None = None
    rest: tuple[Adjustment, ...] = ()
    parts: tuple[CostTerm, ...] = ()
    whole: tuple[CostTerm, ...] = ()
    note: str | None = None
    source: str = "counted"
    rounding: Rounding = PLAIN
    percentage_of: Formula = "0"


@dataclass(frozen=True)
class PrintedRow:
    """A printed row. `kind`: a name for rows with the same formulas and adjustments; if empty, the model."""

    model: str
    where: str
    values: Values
    counts: tuple[Count, ...]
    kind: str = ""


@dataclass(frozen=True)
class PaperTable:
    """The rows of a source; `convention`: how it counts, in words; `letters`: the meaning of letters in formulas."""

    name: str
    source: str
    convention: str
    rows: tuple[PrintedRow, ...]
    letters: str = ""


class Paper(NamedTuple):
    """The file of a paper."""

    source: str
    convention: str
    sections: Mapping[str, Mapping[str, Any]]
    kinds: Mapping[str, Mapping[str, Any]]
    parts: Mapping[str, Mapping[str, Any]]
    terms: Mapping[str, tuple[str, Formula, str]]
    notes: Mapping[str, str]
    sizes: Mapping[str, Values] = MappingProxyType({})
    letters: str = ""

    def printed(self, where: str) -> list[Cells]:
        """The cells of each row of a printed table by column.

        >>> paper_named("swin").printed("table 5")[0]["Params"]
        '28.3M'
        """
        lines = self.sections[where]["rows"].strip().splitlines()
        names, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
        return [dict(zip(names, cells, strict=True)) for cells in rows]

    def row(self, where: str, cells: Cells) -> PrintedRow:
        """A printed row with its counts."""
        section = self.sections[where]
        shown = {column: cell for column, cell in cells.items() if cell != "-"}
        kind = self.kind(section.get("kind", "{kind}").format_map(shown))
        values = dict(kind.get("values", {}))
        for word in shown.get("sizes", "").split():
            letter, _, size = word.partition("=")
            values |= {letter: int(size)} if size else self.sizes[word]

        def parts(factors: Iterable[tuple[str, object]]) -> tuple[CostTerm, ...]:
            defaults = {"design": shown.get("design")}
            return tuple(CostTerm(**{**defaults, **self.parts[key]}, times=str(times)) for key, times in factors)

        def terms(keys: Iterable[str]) -> tuple[Adjustment, ...]:
            fields = (self.terms[key] for key in keys)
            return tuple(Adjustment(name, formula, self.notes.get(why, why)) for name, formula, why in fields)

        converters: Mapping[str, Callable[[Any], Any]] = {
            "parts": parts, "whole": parts, "adjustments": terms, "rest": terms, "note": self.notes.__getitem__,
            "rounding": Rounding._make,
        }  # fmt: skip
        counts = []
        for column, unit in section.get("counts", {"printed": shown.get("unit", "figure")}).items():
            if unit in kind:
                fields = kind[unit] | {key: shown[key] for key in ("formula", "note") if key in shown}
                fields = {key: converters[key](field) if key in converters else field for key, field in fields.items()}
                counts.append(Count(unit, printed=shown.get(column), **fields))
        model = section.get("name", "{row}").format_map(shown)
        return PrintedRow(model, where, values, tuple(counts), kind.get("kind", ""))

    def kind(self, name: str) -> dict[str, Any]:
        """The fields of a kind, with those of the kind that it is like."""
        kind = self.kinds[name]
        fields = self.kind(kind["like"]) if "like" in kind else {}
        return fields | {
            key: fields.get(key, {}) | field if isinstance(field, dict) else field for key, field in kind.items()
        }


def paper_named(name: str) -> Paper:
    """The file of a paper by the name of its table."""
    return Paper(**tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")))


def table_of(name: str) -> PaperTable:
    """The cost table of a paper.

    >>> table_of("fish").rows[0].where
    'equations'
    """
    paper = paper_named(name)
    rows = [paper.row(where, cells) for where in paper.sections for cells in paper.printed(where)]
    return PaperTable(name, paper.source, paper.convention, tuple(rows), paper.letters)


def tables_named(name: str) -> list[PaperTable]:
    """The cost table of a paper, or all tables for `all`. Raises InputError, with the most similar name.

    >>> [table.name for table in tables_named("all")]
    ['epa', 'fish', 'mgk', 'tuformer', 'fmm', 'swin']
    """
    if name not in (*NAMES, ALL):
        raise InputError(f"there is no cost table '{name}': {nearest(name, (*NAMES, ALL))}")
    return [table_of(table) for table in NAMES if name in (table, ALL)]


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
    if rounding.like:
        return str(Decimal(as_printed(value, rounding.like, whole).rstrip("MG% ")) * rounding.times)
    match = _PRINTED.fullmatch(like.removeprefix(_BOUND))
    if match is None:
        raise InputError(f"'{like}' is not a printed count, e.g. 170.4M or 125%.")
    fraction, space, suffix = match.groups("")
    last_digit = Fraction(rounding.step, 10 ** len(fraction)) * (
        Fraction(whole or 1, 100) if suffix == "%" else SCALES[suffix]
    )
    return f"{Decimal(round(value / last_digit) * rounding.step).scaleb(-len(fraction)):f}{space}{suffix}"


def number(formula: Formula, values: Values) -> int:
    """The value of a formula. Raises InputError if it is not an integer.

    >>> number("H / 2 * (D - 1 / 2)", {"H": 8, "D": 64})
    254
    """
    count = evaluate(parse(formula), values)
    if not isinstance(count, int):
        raise InputError(f"'{formula}' is {count}, but counts are integers.")
    return count


@dataclass(frozen=True)
class Compared:
    """One number of a row: our count, the adjustments, and the paper's count: `paper` is ours plus the adjustments.

    `stated`: the value of the source's formula. `recount`: `paper` in the unit and digits that the paper prints.
    `state`: `reproduced` if `paper` is `stated` and `recount` the printed number, which may be a bound; otherwise
    `differs`. Measured and drawn numbers have no counts. `percentage_of`: our count that printed percentages refer to.
    """

    row: PrintedRow
    count: Count
    state: str
    stated: int | None
    ours: int | None = None
    ours_dense: int | None = None
    adjustments: tuple[tuple[Adjustment, int], ...] = ()
    difference: int | None = None
    paper: int | None = None
    recount: str | None = None
    percentage_of: int | None = None

    def as_dict(self) -> dict[str, Any]:
        fields = vars(self.row) | vars(self.count) | vars(self)
        adjustments = [{"name": term.name, "value": value} | term._asdict() for term, value in self.adjustments]
        return {key: fields[key] for key in KEYS} | {"adjustments": adjustments, "values": dict(self.row.values)}


@dataclass(frozen=True)
class PaperComparison:
    """All numbers of a table."""

    table: PaperTable
    numbers: tuple[Compared, ...]

    def as_dict(self) -> dict[str, object]:
        table = self.table
        head = {"table": table.name, "source": table.source, "convention": table.convention, "letters": table.letters}
        return head | {"numbers": [number.as_dict() for number in self.numbers]}

    def to_text(self) -> str:
        """The table for humans: paper and ours side by side, one row per number; then notes, formulas, differences."""
        table, numbers = self.table, self.numbers
        notes = dict.fromkeys(number.count.note for number in numbers if number.count.note)
        marks = {note: f"[{i}]" for i, note in enumerate(notes, 1)}
        lines = [*_wrapped(f"{table.name}: {table.source}"), *_wrapped(f"convention of the paper: {table.convention}.")]
        lines += _wrapped(f"letters: {table.letters}.") if table.letters else []
        sections = dict.fromkeys(number.row.where for number in numbers)
        blocks = {
            where: _lines([number.as_dict() for number in numbers if number.row.where == where], marks)
            for where in sections
        }
        blocks["notes:"] = [line for note, mark in marks.items() for line in _wrapped(f"{mark} {note}", 2)]
        blocks |= {"formulas of the source:": [*_formulas(numbers)], "paper = ours, and:": [*_differences(numbers)]}
        for title, block in blocks.items():
            lines += ["", title, *block] if block else []
        return "\n".join(lines) + "\n"


def compare(table: PaperTable, split: Split) -> PaperComparison:
    """A table with our counts; `split` splits products into pairs, e.g. in the planner's order."""
    priced: dict[str, Cost] = {}  # each design once at each size

    def price(part: CostTerm, values: Values) -> Cost:
        legs, settings, lengths = (
            {name: number(formula, values) for name, formula in formulas.items()}
            for formulas in (part.legs, part.settings, part.lengths)
        )
        batch = number(part.batch, values)
        key = repr((part.design, legs, settings, lengths, batch))
        if key not in priced:
            graph = build(load(_design(part.design), legs, settings))
            priced[key] = cost(split(graph, sizes_at(graph, lengths)), lengths, batch=batch)
        return priced[key]

    def total(parts: Iterable[CostTerm], unit: str, values: Values, routed: bool = True) -> int:
        sums = 0
        for part in parts:
            cost = price(part, values)
            macs = cost.total.routed_macs if routed else cost.macs
            counts = {"MACs": macs, "FLOPs": 2 * macs, "floats": cost.total.saved_floats, "parameters": cost.parameters}
            sums += number(part.times, values) * counts[unit]
        return sums

    def compared(row: PrintedRow, count: Count) -> Compared:
        values, unit, printed = row.values, count.unit, count.printed
        stated = number(count.formula, values) if count.formula else None
        if count.source != "counted":
            return Compared(row, count, count.source, stated)
        rest = sum(number(term.formula, values) for term in count.rest)
        ours, dense = (rest + total(count.parts, unit, values, routed) for routed in (True, False))
        adjustments = tuple((term, number(term.formula, values)) for term in count.adjustments)
        difference = sum(count for _, count in adjustments)
        paper = ours + difference
        whole = total(count.whole, unit, values) + number(count.percentage_of, values) or None
        recount = as_printed(paper, printed, whole, count.rounding) if printed else None
        agrees = stated in (None, paper) and (not printed or not recount or _agree(printed, recount))
        state = "reproduced" if agrees else "differs"
        return Compared(row, count, state, stated, ours, dense, adjustments, difference, paper, recount, whole)

    return PaperComparison(table, tuple(compared(row, count) for row in table.rows for count in row.counts))


def _design(source: str | Mapping[str, Any]) -> Any:
    """The source of a design; for a shipped model, of its attention."""
    if source not in library.names(what="model"):
        return source
    document, _ = file_document(str(library.path_of(str(source), "model")))
    return document.data["model"]["layers"][0]["mixer"]["design"]


def _agree(printed: str, recount: str) -> bool:
    """Whether a count in printed form is the printed number, or above a bound.

    >>> _agree("170.4M", "170.4M"), _agree("more than 30%", "33%"), _agree("more than 30%", "30%")
    (True, True, False)
    """
    if printed.startswith(_BOUND):
        return Decimal(recount.rstrip("%")) > Decimal(printed.removeprefix(_BOUND).rstrip("%"))
    return printed == recount


def _lines(numbers: Sequence[Mapping[str, Any]], marks: Mapping[str, str]) -> list[str]:
    """The rows of one printed table, without empty columns."""
    recount = "recount" if any(number["printed"] for number in numbers) else "stated"
    keys = ["model", "unit", "printed", recount, "paper", "ours", "ours_dense"]
    if all(number["ours_dense"] == number["ours"] for number in numbers):
        keys.pop()
    rows = [[*(TITLES.get(key, key) for key in keys), "state"]]
    for number in numbers:
        state = f"{number['state']} {marks.get(number['note'], '')}".rstrip()
        cells = (f"{cell:,}" if isinstance(cell, int) else cell or "-" for cell in map(number.get, keys))
        rows.append([*cells, state])
    table = [cells for cells in zip(*rows, strict=True) if cells[0] == "printed" or {*cells[1:]} != {"-"}]
    return columns([*zip(*table, strict=True)], left=(0, 1, len(table) - 1))


def _kind(number: Compared) -> str:
    return number.row.kind or number.row.model


def _formulas(numbers: Sequence[Compared]) -> Iterator[str]:
    models: dict[tuple[str, Formula], list[str]] = {}
    for number in numbers:
        if number.count.formula:
            name = number.row.model if number.row.where == "equations" else _kind(number)
            models.setdefault((number.count.unit, number.count.formula), []).append(name)
    for (unit, formula), names in models.items():
        yield from _wrapped(f"{unit} of {'; '.join(dict.fromkeys(names))}: {formula}", 2)


def _differences(numbers: Sequence[Compared]) -> Iterator[str]:
    """Adjustments by unit and name, with the kinds of rows that have them if others do not."""
    units: dict[str, dict[str, dict[Adjustment, list[str]]]] = {}  # kinds by unit, name and term
    for number in numbers:
        for term, _ in number.adjustments:
            kinds = units.setdefault(number.count.unit, {}).setdefault(term.name, {}).setdefault(term, [])
            kinds.append(_kind(number))
    for unit, names in units.items():
        all_kinds = {kind for terms in names.values() for kinds in terms.values() for kind in kinds}
        for name, terms in names.items():
            yield from _wrapped(f"{unit}, {name}: {' '.join(dict.fromkeys(term.why for term in terms))}", 2)
            for term, kinds in terms.items():
                restriction = f" ({'; '.join(dict.fromkeys(kinds))})" if {*kinds} != all_kinds else ""
                yield from _wrapped(f"{term.formula}{restriction}", 6)


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2), break_long_words=False)


TABLES = {table.name: table for table in tables_named(ALL)}
