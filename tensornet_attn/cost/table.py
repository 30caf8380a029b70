"""The cost report as an aligned table of text: one row a step, two parts, one line each of formula and of units."""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.cost.report import Cost, Report, StepCost

HEAD = ("MACs", "FLOPs", "elementwise", "moved", "live", "saved")
UNITS = (
    "FLOPs = 2 MACs; elementwise operations are counted apart; moved: read and written; live: in memory while the step",
    "runs, in total the peak; saved: floats kept for backward, each once; k, M, G, T are powers of 1000.",
)


def to_text(report: Report) -> str:
    """The whole report; the totals of both ways stand below each other."""
    where = ", ".join([*(f"{leg} = {length}" for leg, length in report.lengths), f"batch {report.batch}", report.dtype])
    parts = [(word, cost) for word, cost in (("as written", report.written), ("as planned", report.planned)) if cost]
    wide = max(len(label) for _, cost in parts for label in _labels(cost)) + 2
    lines = [f"{report.name}: {where}", ""]
    for word, cost in parts:
        lines += [*_part(word, cost, max(wide, len(word))), ""]
    return "\n".join([*lines, _parameters(report.written), *_decoding(report), *UNITS])


def human(number: int, digits: int = 3) -> str:
    """A count: whole below 1000, else three digits, or so many, and a suffix.

    >>> human(999), human(1024), human(537_000_000), human(123_456), human(1024, 4)
    ('999', '1.02 k', '537 M', '123 k', '1.024 k')
    """
    value, suffixes = float(number), ["", " k", " M", " G", " T", " P"]
    if number < 1000:
        return str(number)
    while float(f"{value:.{digits}g}") >= 1000 and len(suffixes) > 1:
        value /= 1000
        suffixes.pop(0)
    figure = f"{value:#.{digits}g}" if value < 1000 else f"{value:.3e}"
    return f"{figure.rstrip('.')}{suffixes[0]}"


def _part(word: str, cost: Cost, wide: int) -> Iterable[str]:
    table = [HEAD, *map(_cells, (*cost.steps, *_totals(cost)))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    labels = [word, *(f"  {label}" for label in _labels(cost))]
    for label, cells in zip(labels, table, strict=True):
        yield f"{label:<{wide}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    yield f"  MACs of one batch element: {cost.formula}"
    if cost.routed_formula not in ("", cost.formula):
        yield f"  where only what topk chose is computed: {human(cost.total.routed_macs)} MACs: {cost.routed_formula}"


def _labels(cost: Cost) -> list[str]:
    return [*map(_label, cost.steps), *(row.step for row in _totals(cost))]


def _totals(cost: Cost) -> list[StepCost]:
    """The total, and that in evaluation where it is another one."""
    return [cost.total, cost.evaluation] if any(step.training for step in cost.steps) else [cost.total]


def _cells(row: StepCost) -> tuple[str, ...]:
    counts = (row.macs, row.flops, row.elementwise)
    return (*map(human, counts), _bytes(row.bytes), _bytes(row.live_bytes), human(row.saved_floats))


def _bytes(number: int) -> str:
    return f"{human(number)}{' ' * (number < 1000)}B"


def _label(row: StepCost) -> str:
    notes = ([f"with {', '.join(row.fused)}"] if row.fused else []) + ["in training"] * row.training
    return f"{row.step} ({'; '.join(notes)})" if notes else row.step


def _decoding(report: Report) -> Iterable[str]:
    if report.decoding_state:
        tokens = report.lengths[-1][1]
        yield f"decoding keeps {report.decoding_state:,} floats of {tokens:,} tokens, for one sequence"


def _parameters(cost: Cost) -> str:
    frozen = f", and {human(cost.frozen)} frozen" if cost.frozen else ""
    return f"parameters: {human(cost.parameters)}{frozen}"
