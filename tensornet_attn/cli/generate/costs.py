"""The cost section of a page: formulas, a table beside the design it is compared with, the plot."""

from __future__ import annotations

from tensornet_attn.cli.generate.catalogue import Entry
from tensornet_attn.cli.generate.lengths import PLOT, TABLE, Point, points
from tensornet_attn.cli.generate.markdown import code, table
from tensornet_attn.cli.generate.plot import Line, plot
from tensornet_attn.cost.sizes import LENGTH
from tensornet_attn.cost.table import human
from tensornet_attn.spec.arithmetic import Number

MASKS = "Scores that a mask hides are counted like the others."


def costs(entry: Entry, other: Entry | None) -> list[list[str]]:
    """Blocks of lines: how many multiply-adds by which formula, at which lengths how much, and the picture of it."""
    return [_formulas(entry), _table(entry, other), _units(entry, other), [_picture(entry, other)]]


def picture(entry: Entry, other: Entry | None) -> str:
    """SVG of the costs over the length."""
    own = points(entry, PLOT)
    lengths = [point.n for point in own]
    return plot(Line(entry.name, own), Line(title(other), points(other, lengths)) if other else None)


def _formulas(entry: Entry) -> list[str]:
    report = entry.cost(min(LENGTH, entry.longest or LENGTH))
    written, planned = report.written.formula, report.best.formula
    first = "Multiply-adds (MACs) of one sequence, legs standing for their sizes:"
    if written == planned:
        return [first, "", f"- as written and as planned: {code(planned)}"]
    return [first, "", f"- as written: {code(written)}", f"- as planned: {code(planned)}"]


def _table(entry: Entry, other: Entry | None) -> list[str]:
    own = points(entry, TABLE)
    theirs = points(other, [point.n for point in own]) if other else [None] * len(own)
    names = ("MACs", "kept for backward", "peak of forward")
    beside = [f"{other.name}: {name}" if other else "-" for name in names]
    rows = [(f"{a.n:,}", *_cells(a), *_cells(b)) for a, b in zip(own, theirs, strict=True)]
    return table(("n", *names, *beside), rows, right=("n", *names, *beside))


def _cells(point: Point | None) -> tuple[str, str, str]:
    if point is None:
        return "", "", ""
    return human(point.macs), f"{human(point.kept)}B", f"{human(point.peak)}B"


def _units(entry: Entry, other: Entry | None) -> list[str]:
    equal = "n = m, " if entry.graph.key else ""
    lines = [
        f"One sequence in float32, {equal}as planned. Cache for backward: what a training step must hold beside the"
    ]
    lines += ["weights. Peak of forward: the most that stands in memory at once, weights and inputs included."]
    if any(entry.graph.masks(step) for step in entry.graph.steps):
        lines.append(MASKS)
    if other:
        lines.append(f"Beside it {title(other)}.")
    return lines


def title(other: Entry) -> str:
    """`mhsa (f = 512, h = 8)`: a design with the sizes its file writes as numbers."""
    legs = [leg for leg in other.graph.legs if isinstance(leg.text, Number)]
    return f"{other.name} ({', '.join(f'{leg.name} = {leg.size}' for leg in legs)})"


def _picture(entry: Entry, other: Entry | None) -> str:
    path = f"../pictures/{entry.name}-cost.svg"
    beside = f" and of {other.name}" if other else ""
    return f'<img src="{path}" alt="MACs and bytes kept for backward of {entry.name}{beside} over the length">'
