"""Computes a table of a paper: our count of each row, plus adjustments with values, gives the paper's count.

Our MACs and FLOPs (2 MACs) are those of the cheapest order of each product; if a topk routes, of the chosen entries
only. `dense` counts all entries. Our floats are those that autograd saves for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from tensornet_attn.cost.paper.model import UNITS, Adjustment, Count, Part, Row, Table, agree, as_printed
from tensornet_attn.cost.report import Cost, cost
from tensornet_attn.cost.sizes import columns, sizes_at
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.model import Graph
from tensornet_attn.ir.arithmetic import evaluate, parse
from tensornet_attn.spec import Design, load

WIDTH = 118
COUNTED = ("formula", "recount", "paper", "ours", "ours, dense")  # columns with counts

Split = Callable[[Graph, Mapping[str, int]], Graph]  # splits a graph into products of two


@dataclass(frozen=True)
class Compared:
    """One number of a row: our count, the adjustments, and the paper's count: `paper` is ours plus the adjustments.

    `stated`: the value of the source's formula. `whole`: our count that printed percentages refer to. For measured and
    drawn numbers, `ours` and `paper` are None.
    """

    row: Row
    count: Count
    ours: int | None
    dense: int | None
    adjustments: tuple[tuple[Adjustment, int], ...]
    stated: int | None
    whole: int | None

    @property
    def paper(self) -> int | None:
        return None if self.ours is None else self.ours + sum(value for _, value in self.adjustments)

    @property
    def displayed(self) -> str | None:
        """The paper's count in the unit and digits that the paper prints; None if it prints no number."""
        if self.paper is None or self.count.printed is None:
            return None
        return as_printed(self.paper, self.count.printed, self.whole, self.count.rounding)

    @property
    def agrees(self) -> bool:
        """Whether the paper's count equals the value of its formula and the printed number."""
        printed = self.count.printed
        right = printed is None or (self.displayed is not None and agree(printed, self.displayed))
        return right and self.stated in (None, self.paper)

    @property
    def state(self) -> str:
        """`reproduced` or `differs` for a count; otherwise `measured` or `drawn`."""
        if self.count.source != "counted":
            return self.count.source
        return "reproduced" if self.agrees else "differs"

    def as_dict(self) -> dict[str, object]:
        difference = None if self.paper is None or self.ours is None else self.paper - self.ours
        return {
            "where": self.row.where,
            "model": self.row.model,
            "unit": self.count.unit,
            "printed": self.count.printed,
            "recount": self.displayed,
            "paper": self.paper,
            "ours": self.ours,
            "ours_dense": self.dense,
            "difference": difference,
            "state": self.state,
            "note": self.count.note,
            "formula": self.count.formula,
            "stated": self.stated,
            "percentage_of": self.whole,
            "adjustments": [
                {"name": a.name, "value": v, "formula": a.formula, "why": a.why} for a, v in self.adjustments
            ],
            "values": dict(self.row.values),
        }


@dataclass(frozen=True)
class Comparison:
    """All numbers of a table."""

    table: Table
    numbers: tuple[Compared, ...]

    def as_dict(self) -> dict[str, object]:
        table = self.table
        head = {"table": table.name, "source": table.source, "convention": table.convention, "letters": table.letters}
        return head | {"numbers": [number.as_dict() for number in self.numbers]}

    def to_text(self) -> str:
        """The table for humans: paper and ours side by side, one row per number; then notes, formulas, differences."""
        table, numbers = self.table, self.numbers
        notes = list(dict.fromkeys(number.count.note for number in numbers if number.count.note))
        lines = _paragraph(f"{table.name}: {table.source}")
        lines += _paragraph(f"convention of the paper: {table.convention}.")
        if table.letters:
            lines += _paragraph(f"letters: {table.letters}.")
        for where in dict.fromkeys(number.row.where for number in numbers):
            lines += ["", where, *_rows([n for n in numbers if n.row.where == where], notes)]
        numbered = [line for i, note in enumerate(notes, 1) for line in _paragraph(f"[{i}] {note}", 2)]
        below = {"notes": numbered, "formulas of the source": [*_formulas(numbers)]}
        for title, found in {**below, "paper = ours, and": [*_differences(numbers)]}.items():
            lines += ["", f"{title}:", *found] if found else []
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Costs:
    """The costs of parts, each computed once; `split` selects the order in which products are multiplied."""

    split: Split
    designs: dict[str, Design] = field(default_factory=dict)  # as in their files, each read once
    found: dict[str, Cost] = field(default_factory=dict)

    def of(self, part: Part, values: Mapping[str, int]) -> Cost:
        legs, settings, lengths = (
            {name: number(formula, values) for name, formula in formulas.items()}
            for formulas in (part.legs, part.settings, part.lengths)
        )
        batch = number(part.batch, values)
        source = repr(part.design)
        if source not in self.designs:
            self.designs[source] = load(part.design)
        key = repr((source, legs, settings, lengths, batch))
        if key not in self.found:
            graph = build(load(self.designs[source], legs, settings))
            self.found[key] = cost(self.split(graph, sizes_at(graph, lengths)), lengths, batch=batch)
        return self.found[key]

    def total(self, parts: tuple[Part, ...], unit: str, values: Mapping[str, int], routed: bool = True) -> int:
        total = 0
        for part in parts:
            cost = self.of(part, values)
            macs = cost.total.routed_macs if routed else cost.macs
            counts = (macs, 2 * macs, cost.total.saved_floats, cost.parameters)
            total += part.times * dict(zip(UNITS, counts, strict=True))[unit]
        return total


def compare(table: Table, split: Split) -> Comparison:
    """A table with our counts; `split` splits products into pairs, e.g. in the planner's order."""
    costs = _Costs(split)
    return Comparison(table, tuple(_compared(row, count, costs) for row in table.rows for count in row.counts))


def number(formula: str, values: Mapping[str, int]) -> int:
    """The value of a formula. Raises InputError if it is not an integer.

    >>> number("H / 2 * (D - 1 / 2)", {"H": 8, "D": 64})
    254
    """
    value = evaluate(parse(formula), values)
    if not isinstance(value, int):
        raise InputError(f"'{formula}' is {value}, but counts are integers.")
    return value


def _compared(row: Row, count: Count, costs: _Costs) -> Compared:
    values = row.values
    stated = number(count.formula, values) if count.formula else None
    if count.source != "counted":
        return Compared(row, count, None, None, (), stated, None)
    parts = row.parts if count.parts is None else count.parts
    rest = sum(number(adjustment.formula, values) for adjustment in count.rest)
    whole = costs.total(row.whole, count.unit, values) if row.whole else None
    return Compared(
        row,
        count,
        rest + costs.total(parts, count.unit, values),
        rest + costs.total(parts, count.unit, values, routed=False),
        tuple((adjustment, number(adjustment.formula, values)) for adjustment in count.adjustments),
        stated,
        number(count.percentage_of, values) if count.percentage_of else whole,
    )


def _rows(numbers: Sequence[Compared], notes: Sequence[str]) -> list[str]:
    """The rows of one printed table, without empty columns."""
    counted = [_counted(number) for number in numbers]
    shown = [i for i, column in enumerate(zip(*counted, strict=True)) if any(column)]
    if any(number.count.printed for number in numbers):
        shown = [i for i in shown if COUNTED[i] != "formula"]
    if all(number.dense == number.ours for number in numbers):
        shown = [i for i in shown if COUNTED[i] != "ours, dense"]
    rows = [["model", "unit", "printed", *(COUNTED[i] for i in shown), "state"]]
    for number, cells in zip(numbers, counted, strict=True):
        note = f" [{notes.index(number.count.note) + 1}]" if number.count.note else ""
        head = [number.row.model, number.count.unit, number.count.printed or "-"]
        rows.append([*head, *(cells[i] or "-" for i in shown), f"{number.state}{note}"])
    return columns(rows, left=(0, 1, len(rows[0]) - 1))


def _counted(number: Compared) -> list[str]:
    """The cells of the columns `COUNTED`; empty if there is no number."""
    stated, *counts = (
        "" if count is None else f"{count:,}" for count in (number.stated, number.paper, number.ours, number.dense)
    )
    return [stated, number.displayed or "", *counts]


def _kind(number: Compared) -> str:
    """The name of a row in lists of formulas and differences: its kind, for equations the model."""
    equation = number.row.where == "equations"
    return number.row.model if equation or not number.row.kind else number.row.kind


def _formulas(numbers: Sequence[Compared]) -> Iterable[str]:
    for unit, formula in dict.fromkeys((n.count.unit, n.count.formula) for n in numbers if n.count.formula):
        models = dict.fromkeys(_kind(n) for n in numbers if (n.count.unit, n.count.formula) == (unit, formula))
        yield from _paragraph(f"{unit} of {'; '.join(models)}: {formula}", 2)


def _differences(numbers: Sequence[Compared]) -> Iterable[str]:
    """Adjustments by unit and name, with the models that have them if others do not."""
    for unit in dict.fromkeys(number.count.unit for number in numbers):
        found: dict[str, dict[tuple[str, str], list[str]]] = {}
        own = [(n.row.kind or n.row.model, n.adjustments) for n in numbers if n.count.unit == unit and n.adjustments]
        for kind, adjustments in own:
            for a, _ in adjustments:
                found.setdefault(a.name, {}).setdefault((a.formula, a.why), []).append(kind)
        for name, terms in found.items():
            reasons = dict.fromkeys(why for _, why in terms)
            yield from _paragraph(f"{unit}, {name}: {' '.join(reasons)}", 2)
            for (formula, _), kinds in terms.items():
                some = f" ({'; '.join(dict.fromkeys(kinds))})" if {*kinds} != {kind for kind, _ in own} else ""
                yield from _paragraph(f"{formula}{some}", 6)


def _paragraph(text: str, indent: int = 0) -> list[str]:
    return wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2), break_long_words=False)
