"""The targets as text: what was aimed at and reached, the model beside it, who was left out and why, the rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensornet_attn.bench.outcome import Outcome
from tensornet_attn.bench.rates import Rates
from tensornet_attn.bench.results import MEASURED, Result
from tensornet_attn.bench.table import bytes_of, seconds
from tensornet_attn.bench.targets import Target
from tensornet_attn.cost.table import human

CRITERIA = ("design", "n", "against", "target", "reached", "quartiles")
MODEL = ("design", "n", "pass", "operations", "bytes", "floor", "ours", "achieved")
UNITS = (
    "ours: {ours}. A ratio says how many times as long the other took; best: the fastest of all that could run. Share:",
    "forward, of the measured rate of matrix products; growth: time over that at half the length. operations, bytes:",
    "what the pass needs at least; floor: the time for them at the measured rates; achieved: floor over ours.",
)
DRIFT = 0.05  # of a rate, from before a run to after it, that is told


def target_table(found: Iterable[Outcome], peaks: bool = False) -> str:
    """A line a criterion: what it asks for, what was reached, the quartiles of that.

    With `peaks` of memory; reasons are then in short, as those of `left_out` stand below.
    """
    more = ("peak, ours", "peak, other") if peaks else ()
    return aligned([(*CRITERIA, *more, ""), *(target_row(outcome, peaks) for outcome in found)])


def target_row(outcome: Outcome, peaks: bool = False) -> tuple[str, ...]:
    first = (outcome.target, str(outcome.n), outcome.over, f"{'<= ' * (outcome.kind == 'growth')}{figure(outcome)}")
    memory = tuple(map(_peak, (outcome.peak_ours, outcome.peak_other))) if peaks else ()
    if outcome.reached is None:
        return (*first, "-", "-", *memory, outcome.reason.partition(":")[0] if peaks else outcome.reason)
    median, low, high = (
        figure(outcome, x) for x in (outcome.reached.median, outcome.reached.low, outcome.reached.high)
    )
    return (*first, median, f"{low} to {high}", *memory, "reached" if outcome.met else "missed")


def figure(outcome: Outcome, value: float | None = None) -> str:
    """A value in the unit of a criterion, by default what is wanted.

    >>> figure(Outcome("thsa", 2048, "share", 0.4, "")), figure(Outcome("thsa", 2048, "ratio", 2, ""), 2.125)
    ('40.0 %', '2.12')
    """
    value = outcome.wanted if value is None else value
    return f"{100 * value:.1f} %" if outcome.kind == "share" else f"{value:.2f}"


def _peak(size: int | None) -> str:
    return "-" if size is None else bytes_of(size)


def model_table(pairs: Iterable[tuple[Target, Result]]) -> str:
    """A line a result: operations, bytes, floor, the time of ours, and what of the floor it achieves."""
    return aligned([MODEL, *(_model_row(target, result) for target, result in pairs)])


def _model_row(target: Target, result: Result) -> tuple[str, ...]:
    mine, model = result.entry(result.ours), result.model
    flops, moved, floor = ("-",) * 3
    if model is not None:
        flops, moved = human(model.flops), bytes_of(model.bytes)
        floor = "-" if model.floor is None else seconds(model.floor)
    took = "-" if mine.seconds is None else seconds(mine.seconds.median)
    share = "-" if result.share is None else f"{100 * result.share:.1f} %"
    return target.label, str(result.n), result.kind, flops, moved, floor, took, share


def left_out(results: Iterable[Result]) -> str:
    """A line for each reason why a contestant was not measured, with the designs."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for entry in result.entries:
            if entry.status != MEASURED:
                found.setdefault(f"{entry.name} {entry.status}: {entry.reason}", {})[result.design] = None
    return "\n".join(f"{', '.join(designs)}: {reason}" for reason, designs in found.items())


def remarks(results: Iterable[Result]) -> str:
    """What is to be known of those that were measured: what they are, and shorter lengths they were compared at."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for entry in result.entries:
            shorter = "" if entry.checked_n in (result.n, None) else f"compared at n {entry.checked_n}"
            for note in filter(None, (entry.note, shorter)) if entry.status == MEASURED else ():
                found.setdefault(f"{result.design} n {result.n}: {note}", {})[entry.name] = None
    return "\n".join(f"{text} ({', '.join(names)})" for text, names in found.items())


def rates_text(rates: Sequence[Rates]) -> str:
    """What the machine reached, and how far that had moved when the run was over."""
    if not rates:
        return ""
    first = rates[0]
    told = (
        f"measured rates: {human(int(first.flops))} operations a second in a product of {first.side} x {first.side} "
        f"numbers, {first.dtype}; {human(int(first.bandwidth))}B a second in a copy of {human(first.copied)}B"
    )
    last = rates[-1]
    moved = [last.flops / first.flops - 1, last.bandwidth / first.bandwidth - 1]
    drift = f"; after the run {moved[0]:+.0%} and {moved[1]:+.0%}" if max(map(abs, moved)) > DRIFT else ""
    return f"{told}{drift}."


def target_text(pairs: Sequence[tuple[Target, Result]], found: Iterable[Outcome], rates: Sequence[Rates]) -> str:
    """All of it, as a run on a GPU prints it."""
    ours = pairs[0][1].ours if pairs else ""
    results = [result for _, result in pairs]
    parts = [
        target_table(found, peaks=True),
        model_table(pairs),
        remarks(results),
        left_out(results),
        rates_text(rates),
    ]
    return "\n\n".join([*filter(None, parts), "\n".join(UNITS).format(ours=ours)])


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows)
