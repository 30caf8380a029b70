"""Results as text: a table for each design, length and pass; the targets and their outcomes; the measured rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensornet_attn.bench.machine import Rates
from tensornet_attn.bench.results import Entry, PassResult
from tensornet_attn.bench.targets import BenchmarkTarget, CriterionOutcome
from tensornet_attn.cost.sizes import human
from tensornet_attn.report.words import aligned, in_bytes

HEAD = ("", "median", "quartiles", "floor", "of floor", "ratio", "quartiles", "peak", "error")
UNITS = (
    "median and quartiles of one call; ratio: time over that of {ours}, from medians, with quartiles over rounds;\n"
    "floor: the longer of arithmetic (products at the measured rate of their shape, plus exponentials) and moving bytes"
    "\n(inputs, weights, output, gradients), for our plan; of floor: floor over median;\n"
    "peak: memory beyond inputs and weights; error: root mean square, relative to the reference."
)
STEP_UNITS = (
    "step: the next position after this many, median and quartiles of one call; growth: over the step after the\n"
    "fewest; hand: handwritten, with a preallocated cache; softmax: handwritten mhsa of the same width; ratio: time\n"
    "over that of {ours}, from medians. All contestants of a design and batch are interleaved."
)
CRITERIA = ("design", "n", "against", "target", "reached", "quartiles")
MODEL = ("design", "n", "pass", "operations", "bytes", "floor", "ours", "achieved")
TARGET_UNITS = (
    "ours: {ours}. ratio: the other's time over ours; best: the fastest contestant; share: of the measured rate of"
    "\nmatrix products, in the forward; growth: time over that at half the length. operations, bytes: lower bounds of"
    "\nthe pass; floor: the time for them at the measured rates; achieved: floor over our time."
)
DRIFT = 0.05  # relative change of a rate during a run that is reported
IMPOSSIBLE = 5  # share of a floor that no implementation reaches, although kernels that fuse exponentials exceed it
BUSY = "of floor above {limit:.0%}: other programs ran while the rates were measured. Measure again on an idle machine."


def text(results: Sequence[PassResult]) -> str:
    """All tables, and the meaning of the columns."""
    units = UNITS.format(ours=results[0].ours if results else "torch")
    busy = any((entry.of_floor or 0) > IMPOSSIBLE for result in results for entry in result.entries)
    return "\n\n".join([*map(block, results), units, *[BUSY.format(limit=IMPOSSIBLE)] * busy])


def block(result: PassResult) -> str:
    """The table of one result.

    >>> from tensornet_attn.bench.results import Entry, PassResult, Spread
    >>> spread = Spread(0.012, 0.011, 0.0131)
    >>> entries = [Entry("torch", seconds=spread, peak_bytes=2_000_000, error=3e-7, floor=9e-3)]
    >>> entries += [Entry("flex", "skipped", "why.")]
    >>> fixed = ("mhsa", "forward", 512, 4, "float32", "cpu", False, {"f": 256, "n": 512}, {}, "torch", entries)
    >>> print(block(PassResult(*fixed)))
    mhsa, f 256, n 512, batch 4, float32, cpu: forward
             median   quartiles        floor    of floor  ratio  quartiles  peak     error
      torch  12.0 ms  11.0 to 13.1 ms  9.00 ms  75%                         2.00 MB  3e-07
      flex   skipped: why.
    """
    sizes = [f"{name} {size}" for name, size in {**result.legs, **result.settings}.items()]
    facts = [result.design, *sizes, f"batch {result.batch}", result.dtype, *["causal"] * result.causal, result.device]
    lines = aligned([HEAD, *(row(entry, result.n) for entry in result.entries)])
    model = result.model
    if model is not None and model.floor is not None:
        figures = f"{human(model.flops)} operations, {human(model.exponentials)} exponentials, {in_bytes(model.bytes)}"
        lines.append(f"floor {seconds(model.floor)}: {figures}")
    return "\n".join([f"{', '.join(facts)}: {result.kind}", *(f"  {line}" for line in lines)])


def step_text(results: Sequence[PassResult]) -> str:
    """The table of decoding steps with a line per design, batch size and length, skipped contestants, and columns."""
    ours = results[0].ours if results else "torch"
    others = list(dict.fromkeys(entry.name for result in results for entry in result.entries if entry.name != ours))
    head = ("design", "batch", "after", ours, "quartiles", "growth", *(x for o in others for x in (o, "ratio")), "")
    first: dict[tuple[str, int], PassResult] = {}
    rows = [step_row(result, first.setdefault((result.design, result.batch), result), others) for result in results]
    table = "\n".join(line.rstrip() for line in aligned([head, *rows]))
    return "\n\n".join(filter(None, [table, left_out(results), STEP_UNITS.format(ours=ours)]))


def step_row(result: PassResult, first: PassResult, others: Sequence[str]) -> list[str]:
    """The cells: design, batch, positions; our time, quartiles and growth; time and ratio of each other; a note.

    >>> from tensornet_attn.bench.results import Spread
    >>> mine = Entry("torch", seconds=Spread(0.002, 0.0019, 0.0022), note="cache 16.8 MB")
    >>> fixed = ("mhsa", "decoding", 4096, 1, "float32", "cpu", True, {}, {}, "torch")
    >>> result = PassResult(*fixed, [mine, Entry("hand", "skipped")])
    >>> step_row(result, result, ["hand"])
    ['mhsa', '1', '4,096', '2.00 ms', '1.90 to 2.20', '', '-', '', 'cache 16.8 MB']
    """
    mine, before = result.entry(result.ours), first.entry(first.ours)
    cells = [result.design, str(result.batch), f"{result.n:,}"]
    if mine.seconds is None:
        cells += ["-", "", ""]
    else:
        growth = mine.seconds.median / before.seconds.median if before.seconds and result is not first else None
        low, high = (three(1e3 * x) for x in (mine.seconds.low, mine.seconds.high))
        cells += [seconds(mine.seconds.median), f"{low} to {high}", "" if growth is None else f"{growth:.2f}"]
    for entry in map(result.entry, others):
        cells.append("-" if entry.seconds is None else seconds(entry.seconds.median))
        cells.append("" if entry.ratio is None else f"{entry.ratio.median:.2f}")
    return [*cells, mine.note]


def row(entry: Entry, n: int) -> list[str]:
    """The cells: name, median, quartiles, floor, share of it, ratio, its quartiles, peak, error; or status, reason."""
    if not entry.measured or entry.seconds is None or entry.peak_bytes is None:
        return [entry.name, f"{entry.status}: {entry.reason}"]
    unit, factor = ("ms", 1e3) if entry.seconds.median < 1 else ("s", 1.0)
    median, low, high = (three(factor * x) for x in (entry.seconds.median, entry.seconds.low, entry.seconds.high))
    ratios = ["", ""]
    if entry.ratio is not None:
        ratios = [f"{entry.ratio.median:.2f}", f"{entry.ratio.low:.2f} to {entry.ratio.high:.2f}"]
    error = "" if entry.error is None else f"{entry.error:.0e}"
    last = "; ".join(filter(None, (error, _shorter(entry, n), entry.note)))
    floors = ["", ""]
    if entry.floor is not None and entry.of_floor is not None:
        floors = [seconds(entry.floor), f"{entry.of_floor:.0%}"]
    return [
        entry.name,
        f"{median} {unit}",
        f"{low} to {high} {unit}",
        *floors,
        *ratios,
        in_bytes(entry.peak_bytes),
        last,
    ]


def _shorter(entry: Entry, n: int) -> str:
    return "" if entry.checked_n in (n, None) else f"compared at n {entry.checked_n}"


def seconds(x: float) -> str:
    """
    >>> seconds(0.01234), seconds(2.0)
    ('12.3 ms', '2.00 s')
    """
    return f"{three(1e3 * x)} ms" if x < 1 else f"{three(x)} s"


def three(x: float) -> str:
    """A number with three significant digits.

    >>> [three(x) for x in (0.0123, 1.234, 12.34, 123.4, 1234.0)]
    ['0.0123', '1.23', '12.3', '123', '1234']
    """
    return f"{x:#.3g}".rstrip(".") if x < 1000 else f"{x:.0f}"


def target_text(
    pairs: Sequence[tuple[BenchmarkTarget, PassResult]], reached: Iterable[CriterionOutcome], rates: Sequence[Rates]
) -> str:
    """The report of a GPU run: targets, lower bounds, remarks, skipped contestants, measured rates."""
    ours = pairs[0][1].ours if pairs else ""
    results = [result for _, result in pairs]
    models = aligned([MODEL, *(_model_row(target, result) for target, result in pairs)])
    parts = [
        target_table(reached, peaks=True),
        "\n".join(models),
        remarks(results),
        left_out(results),
        rates_text(rates),
    ]
    return "\n\n".join([*filter(None, parts), TARGET_UNITS.format(ours=ours)])


def target_table(outcomes: Iterable[CriterionOutcome], peaks: bool = False) -> str:
    """A line per criterion: target, result, quartiles.

    With `peaks`, the table has peak memory, and reasons are short because `left_out` lists them.
    """
    more = ("peak, ours", "peak, other") if peaks else ()
    return "\n".join(aligned([(*CRITERIA, *more, ""), *(target_row(outcome, peaks) for outcome in outcomes)]))


def target_row(outcome: CriterionOutcome, peaks: bool = False) -> tuple[str, ...]:
    first = (outcome.target, str(outcome.n), outcome.over, f"{'<= ' * (outcome.kind == 'growth')}{figure(outcome)}")
    sizes = (outcome.peak_ours, outcome.peak_other) if peaks else ()
    memory = ("-" if size is None else in_bytes(size) for size in sizes)
    if outcome.reached is None:
        return (*first, "-", "-", *memory, outcome.reason.partition(":")[0] if peaks else outcome.reason)
    reached = (outcome.reached.median, outcome.reached.low, outcome.reached.high)
    median, low, high = (figure(outcome, x) for x in reached)
    return (*first, median, f"{low} to {high}", *memory, "reached" if outcome.met else "missed")


def figure(outcome: CriterionOutcome, number: float | None = None) -> str:
    """A value in the unit of a criterion, by default the target.

    >>> outcome = CriterionOutcome
    >>> figure(outcome("thsa", 2048, "share", 0.4, "")), figure(outcome("thsa", 2048, "ratio", 2, ""), 2.125)
    ('40.0 %', '2.12')
    """
    number = outcome.wanted if number is None else number
    return f"{100 * number:.1f} %" if outcome.kind == "share" else f"{number:.2f}"


def _model_row(target: BenchmarkTarget, result: PassResult) -> tuple[str, ...]:
    """The cells: target, length, pass, operations, bytes, floor, our time, and floor over our time."""
    mine, model = result.entry(result.ours), result.model
    flops, moved, floor = ("-",) * 3
    if model is not None:
        flops, moved = human(model.flops), in_bytes(model.bytes)
        floor = "-" if model.floor is None else seconds(model.floor)
    took = "-" if mine.seconds is None else seconds(mine.seconds.median)
    share = "-" if result.share is None else f"{100 * result.share:.1f} %"
    return target.label, str(result.n), result.kind, flops, moved, floor, took, share


def left_out(results: Iterable[PassResult]) -> str:
    """A line for each reason why contestants were not measured, with the designs."""
    designs_by_reason: dict[str, dict[str, None]] = {}
    for result in results:
        for entry in result.entries:
            if not entry.measured:
                designs_by_reason.setdefault(f"{entry.name} {entry.status}: {entry.reason}", {})[result.design] = None
    return "\n".join(f"{', '.join(designs)}: {reason}" for reason, designs in designs_by_reason.items())


def remarks(results: Iterable[PassResult]) -> str:
    """Notes on measured contestants, such as shorter lengths of the comparison with the reference."""
    names_by_remark: dict[str, dict[str, None]] = {}
    for result in results:
        for entry in result.entries:
            for note in filter(None, (entry.note, _shorter(entry, result.n))) if entry.measured else ():
                names_by_remark.setdefault(f"{result.design} n {result.n}: {note}", {})[entry.name] = None
    return "\n".join(f"{remark} ({', '.join(names)})" for remark, names in names_by_remark.items())


def rates_text(rates: Sequence[Rates]) -> str:
    """The measured rates of the machine, and their change during the run."""
    if not rates:
        return ""
    first, last = rates[0], rates[-1]
    before = (
        f"measured rates: {human(int(first.flops))}FLOP/s in a product of {first.side} x {first.side} matrices in "
        f"{first.dtype}; {human(int(first.bandwidth))}B/s in a copy of {human(first.copied)}B"
    )
    moved = [last.flops / first.flops - 1, last.bandwidth / first.bandwidth - 1]
    drift = f"; after the run {moved[0]:+.0%} and {moved[1]:+.0%}" if max(map(abs, moved)) > DRIFT else ""
    return f"{before}{drift}."
