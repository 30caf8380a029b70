"""Results as text: one block a design, length and pass, one line a contestant."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet_attn.bench.ratios import Spread
from tensornet_attn.bench.results import MEASURED, Entry, Result
from tensornet_attn.cost.sizes import human

HEAD = ["", "median", "quartiles", "ratio", "quartiles", "peak", "error"]
UNITS = (
    "median and quartiles of one call; ratio: how many times as long as {ours}, of medians, with quartiles round by",
    "round; peak: memory beyond inputs and weights; error: root mean square, of the reference's size.",
)


def block(result: Result) -> str:
    """The table of one result.

    >>> from tensornet_attn.bench.results import Entry, Result
    >>> spread = Spread(0.012, 0.011, 0.0131)
    >>> entries = [Entry("torch", seconds=spread, peak_bytes=2_000_000, error=3e-7), Entry("flex", "skipped", "why.")]
    >>> fixed = ("mhsa", "forward", 512, 4, "float32", "cpu", False, {"f": 256, "n": 512}, {}, "torch", entries)
    >>> print(block(Result(*fixed)))
    mhsa, f 256, n 512, batch 4, float32, cpu: forward
             median   quartiles        ratio  quartiles  peak     error
      torch  12.0 ms  11.0 to 13.1 ms                    2.00 MB  3e-07
      flex   skipped: why.
    """
    rows = [HEAD, *(row(entry, result.n) for entry in result.entries)]
    widths = [max((len(r[place]) for r in rows if len(r) > 2), default=0) for place in range(7)]
    widths[0] = max(len(r[0]) for r in rows)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(r, widths, strict=False)).rstrip() for r in rows]
    return "\n".join([head(result), *(f"  {line}" for line in [*lines, *modelled(result)])])


def modelled(result: Result) -> list[str]:
    """The line of the model, where the rates of the machine were measured."""
    if result.model is None or result.model.floor is None:
        return []
    took = "" if result.share is None else f"; {result.ours} achieves {result.share:.0%} of it"
    figures = f"{human(result.model.flops)} operations, {bytes_of(result.model.bytes)}"
    return [f"at least {figures}: {seconds(result.model.floor)}{took}"]


def head(result: Result) -> str:
    """What was measured, in one line."""
    sizes = [f"{name} {value}" for name, value in {**result.legs, **result.settings}.items()]
    words = ["causal"] * result.causal
    return ", ".join([result.design, *sizes, f"batch {result.batch}", result.dtype, *words, result.device]) + (
        f": {result.kind}"
    )


def row(entry: Entry, n: int) -> list[str]:
    """name, median, quartiles, ratio, its quartiles, peak, error; or name and what is the matter."""
    if entry.status != MEASURED or entry.seconds is None or entry.peak_bytes is None:
        return [entry.name, f"{entry.status}: {entry.reason}"]
    unit, factor = ("ms", 1e3) if entry.seconds.median < 1 else ("s", 1.0)
    median, low, high = (three(factor * x) for x in (entry.seconds.median, entry.seconds.low, entry.seconds.high))
    ratios = ["", ""] if entry.ratio is None else [f"{entry.ratio.median:.2f}", between(entry.ratio)]
    error = "" if entry.error is None else f"{entry.error:.0e}"
    shorter = "" if entry.checked_n in (n, None) else f"compared at n {entry.checked_n}"
    notes = [note for note in (shorter, entry.note) if note]
    cells = [entry.name, f"{median} {unit}", f"{low} to {high} {unit}", *ratios, bytes_of(entry.peak_bytes), error]
    return [*cells[:-1], "; ".join([cells[-1], *notes])]


def seconds(x: float) -> str:
    """
    >>> seconds(0.01234), seconds(2.0)
    ('12.3 ms', '2.00 s')
    """
    return f"{three(1e3 * x)} ms" if x < 1 else f"{three(x)} s"


def between(spread: Spread) -> str:
    return f"{spread.low:.2f} to {spread.high:.2f}"


def three(x: float) -> str:
    """Three digits.

    >>> [three(x) for x in (0.0123, 1.234, 12.34, 123.4, 1234.0)]
    ['0.0123', '1.23', '12.3', '123', '1234']
    """
    return f"{x:#.3g}".rstrip(".") if x < 1000 else f"{x:.0f}"


def bytes_of(size: int) -> str:
    """
    >>> bytes_of(18_200_000), bytes_of(512)
    ('18.2 MB', '512 B')
    """
    text = human(size)
    return f"{text}B" if " " in text else f"{text} B"


def text(results: Sequence[Result]) -> str:
    """All blocks, and what the columns mean."""
    ours = results[0].ours if results else "torch"
    return "\n\n".join([*map(block, results), "\n".join(UNITS).format(ours=ours)])
