"""Costs over the sequence length or other sizes, and plots of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from docs.generate.catalogue import CatalogueEntry
from tensornet_attn.cost.sizes import dtype_bytes, human
from tensornet_attn.cost.sweep import Sweep
from tensornet_attn.draw.sweep import WIDE, Axes, drawing

TABLE = (256, 1024, 4096, 16384)
PLOT = tuple(2**power for power in range(6, 15))
FLOAT = dtype_bytes("float32")
WIDTH, HEIGHT = 760, 320
LEFT, TOP, HIGH = (70, 450), 62, 200  # left edges, top and height of the two panels
# Dark and solid below light and dashed: distinct in greyscale, and where the lines coincide.
STYLES = (
    'fill="none" stroke="#1a4f8b" stroke-width="4"',
    'fill="none" stroke="#8f8f8f" stroke-width="2" stroke-dasharray="7 4"',
)


@dataclass(frozen=True)
class SequenceCosts:
    """Costs of one sequence of length n in float32, as planned.

    `kept`: bytes saved for the backward. `peak`: peak bytes of the forward.
    """

    n: int
    macs: int
    kept: int
    peak: int


def points(entry: CatalogueEntry, lengths: Sequence[int]) -> list[SequenceCosts]:
    """The costs at these lengths. Lengths above the maximum of the design are replaced with the maximum."""
    totals = [(n, entry.cost(n).best.total) for n in sorted(set(map(entry.at, lengths)))]
    return [SequenceCosts(n, total.macs, FLOAT * total.saved_floats, total.live_bytes) for n, total in totals]


def picture(entry: CatalogueEntry, baseline: CatalogueEntry | None) -> str:
    """The SVG of MACs and of bytes kept for backward over the length, for a design and its baseline."""
    entry_points = points(entry, PLOT)
    lines = {entry.name: entry_points}
    if baseline:
        lines[baseline.title] = points(baseline, [point.n for point in entry_points])
    ends = [f"{name}: {_ends(line[0])}, {_ends(line[-1])}." for name, line in lines.items()]
    about = f"MACs and bytes kept for backward over the length n. {' '.join(ends)}"
    body, left = list[str](), LEFT[0]
    for name, style in zip(lines, STYLES, strict=False):
        body.append(f'<path d="M{left} 20h34" {style}/>')
        body.append(f'<text x="{left + 42}" y="24">{escape(name)}</text>')
        left += 80 + 8 * len(name)
    body += _panel("MACs", "", LEFT[0], lambda point: point.macs, [*lines.values()])
    body += _panel("bytes kept for backward", "B", LEFT[1], lambda point: point.kept, [*lines.values()])
    return drawing(WIDTH, HEIGHT, f"Costs of {entry.name} over the length", about, body)


def _ends(point: SequenceCosts) -> str:
    return f"at n = {point.n} {human(point.macs)} MACs and {human(point.kept)} bytes"


def _panel(
    title: str, unit: str, left: int, measure: Callable[[SequenceCosts], int], lines: Sequence[Sequence[SequenceCosts]]
) -> Iterator[str]:
    """A panel with logarithmic axes and the lines. The first line has markers at the lengths of the table."""
    decades = [log10(max(measure(point), 1)) for line in lines for point in line]
    lengths = [point.n for line in lines for point in line]
    low, high = floor(min(decades)), max(ceil(max(decades)), floor(min(decades)) + 1)
    first, last = min(lengths), max(*lengths, min(lengths) + 1)
    axes = Axes(left, TOP, first, last, low, high, high=HIGH)
    yield f'<text x="{left}" y="{TOP - 12}" font-weight="bold">{title}</text>'
    yield f'<rect x="{left}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#888"/>'
    for cost, label in axes.ticks():
        blank, at = " " if unit and cost < 1000 else "", axes.y(cost)
        yield f'<path d="M{left} {at:.1f}h{WIDE}" stroke="#e4e4e4"/>'
        yield f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{label}{blank}{unit}</text>'
    for n in sorted({first, *TABLE}):
        if first <= n <= last:
            yield f'<path d="M{axes.x(n):.1f} {TOP + HIGH}v5" stroke="#888"/>'
            yield f'<text x="{axes.x(n):.1f}" y="{TOP + HIGH + 19}" text-anchor="middle">{n}</text>'
    yield f'<text x="{left + WIDE / 2:.1f}" y="{TOP + HIGH + 40}" text-anchor="middle">length n</text>'
    for line, style, dotted in zip(lines, STYLES, (True, False), strict=False):
        coordinates = [(point.n, f"{axes.x(point.n):.1f}", f"{axes.y(max(measure(point), 1)):.1f}") for point in line]
        yield f'<path d="M{"L".join(f"{across} {up}" for _, across, up in coordinates)}" {style}/>'
        for n, across, up in coordinates:
            if dotted and n in TABLE:
                yield f'<circle cx="{across}" cy="{up}" r="4" fill="#1a4f8b"/>'


# FiSHformer's efficiency figures, from our counts of an attention layer and a feed-forward layer of width 2,048. The
# paper counts whole language models.
SIZES = {"f": (256, 512, 1024, 2048, 4096), "n": (128, 256, 512, 1024, 2048, 4096, 8192), "g": (2, 4, 6)}
WORK = ("macs", "training")
SHARED = ("gfish_release",)


def figure(designs: tuple[str, ...], against: str | None, measures: tuple[str, ...], *axes: str, **legs: int) -> Sweep:
    """A sweep over the axes `f`, `n` or `g`; `l` is the width of the additional feed-forward layer."""
    over = {axis: SIZES[axis] for axis in axes}
    return Sweep(designs, over, measures, against, beside=("mlp",), legs={**legs, "l": 2048}, order="fewest")


FIGURES = {
    "fishformer-3": figure(SHARED, "mhsa", (*WORK, "parameters", "peak"), "f", "n", g=2),
    "fishformer-6": figure(("fish", "hard_fish", "gfish", "hard_gfish"), None, WORK, "n", g=2, f=1024),
    "fishformer-7": figure(SHARED, "mhsa", WORK, "n", "g", f=1024),
    "fishformer-8": figure(SHARED, "mhsa", ("parameters", "peak"), "f", "g"),
}
