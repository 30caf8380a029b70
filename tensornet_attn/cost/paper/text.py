"""A comparison as text: paper and ours side by side, by printed table, then what each difference is and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from tensornet_attn.cost.paper.compare import Compared, Comparison

WIDTH = 118
COUNTED = ("formula", "recount", "paper", "ours", "ours, dense")  # columns of numbers that are counted


def to_text(comparison: Comparison) -> str:
    """One row a number; below, notes, formulas and the differences, those of one name together with their models."""
    table, numbers = comparison.table, comparison.numbers
    notes = list(dict.fromkeys(number.count.note for number in numbers if number.count.note))
    lines = _paragraph(f"{table.name}: {table.source}")
    lines += _paragraph(f"convention of the paper: {table.convention}.")
    if table.letters:
        lines += _paragraph(f"letters: {table.letters}.")
    for where in dict.fromkeys(number.row.where for number in numbers):
        lines += ["", where, *_rows([n for n in numbers if n.row.where == where], notes)]
    if notes:
        lines += ["", "notes:", *(line for i, note in enumerate(notes, 1) for line in _paragraph(f"[{i}] {note}", 2))]
    if formulas := [*_formulas(numbers)]:
        lines += ["", "formulas of the source:", *formulas]
    if differences := [
        line for unit in _units(numbers) for line in _differences([n for n in numbers if n.count.unit == unit])
    ]:
        lines += ["", "paper = ours, and:", *differences]
    return "\n".join(lines) + "\n"


def _rows(numbers: Sequence[Compared], notes: Sequence[str]) -> Iterable[str]:
    """The rows of one printed table; columns that say nothing there are left out."""
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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (0, 1, len(widths) - 1)
    for row in rows:
        cells = [f"{c:<{w}}" if i in left else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(cells).rstrip()


def _counted(number: Compared) -> list[str]:
    """The cells of `COUNTED`, empty where there is nothing."""
    stated, *counts = (
        "" if count is None else f"{count:,}" for count in (number.stated, number.paper, number.ours, number.dense)
    )
    return [stated, number.shown or "", *counts]


def _units(numbers: Sequence[Compared]) -> Iterable[str]:
    return dict.fromkeys(number.count.unit for number in numbers)


def _kind(number: Compared) -> str:
    """What stands for a row beside formulas and differences: its kind, and of an equation its number."""
    equation = number.row.where == "equations"
    return number.row.model if equation or not number.row.kind else number.row.kind


def _formulas(numbers: Sequence[Compared]) -> Iterable[str]:
    for unit, formula in dict.fromkeys((n.count.unit, n.count.formula) for n in numbers if n.count.formula):
        models = dict.fromkeys(_kind(n) for n in numbers if (n.count.unit, n.count.formula) == (unit, formula))
        yield from _paragraph(f"{unit} of {'; '.join(models)}: {formula}", 2)


def _differences(numbers: Sequence[Compared]) -> Iterable[str]:
    """Of one unit; a difference that is 0 in all rows of a kind is left out."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for number in numbers:
        for a, _ in number.adjustments:
            found.setdefault(a.name, {}).setdefault((a.formula, a.why), []).append(number.row.kind or number.row.model)
    kinds = {number.row.kind or number.row.model for number in numbers if number.adjustments}
    for name, terms in found.items():
        reasons = dict.fromkeys(why for _, why in terms)
        yield from _paragraph(f"{numbers[0].count.unit}, {name}: {' '.join(reasons)}", 2)
        for (formula, _), models in terms.items():
            own = f" ({'; '.join(dict.fromkeys(models))})" if {*models} != kinds else ""
            yield from _paragraph(f"{formula}{own}", 6)


def _paragraph(text: str, indent: int = 0) -> list[str]:
    return wrap(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2), break_long_words=False)
