"""The plot of a design's costs over the length, as SVG written here: the same numbers give the same bytes anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from tensornet_attn.cli.generate.lengths import TABLE, Point
from tensornet_attn.cost.sizes import human

WIDTH, HEIGHT = 760, 320
LEFT, TOP, WIDE, HIGH = (70, 450), 62, 290, 200  # left edges of the two panels; their top, width and height
SUFFIXES = ("", " k", " M", " G", " T", " P", " E")
# Dark and solid against light and dashed, dashes on top: they part in greyscale too, and where the lines coincide.
OWN = 'fill="none" stroke="#1a4f8b" stroke-width="4"'
OTHER = 'fill="none" stroke="#8f8f8f" stroke-width="2" stroke-dasharray="7 4"'
_HEAD = f"""<svg role="img" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" \
height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">"""


@dataclass(frozen=True)
class Line:
    """A named line of the plot."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """One pair of axes, both logarithmic: `low` and `high` are the decades of y, `first` and `last` bound x."""

    title: str
    unit: str
    left: int
    value: Callable[[Point], int]
    low: int
    high: int
    first: int
    last: int

    def x(self, n: int) -> float:
        return self.left + WIDE * log10(n / self.first) / log10(self.last / self.first)

    def y(self, value: int) -> float:
        return TOP + HIGH * (self.high - log10(max(value, 1))) / (self.high - self.low)


def plot(own: Line, other: Line | None) -> str:
    """SVG of MACs and of bytes kept for backward, this design against another; the other alone has no line."""
    lines = [own, *([other] if other else [])]
    panels = (
        _panel("MACs", "", LEFT[0], lambda point: point.macs, lines),
        _panel("bytes kept for backward", "B", LEFT[1], lambda point: point.kept, lines),
    )
    body = [_HEAD, f"<title>Costs of {escape(own.name)} over the length</title>", _description(lines)]
    body += [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *_legend(lines)]
    for panel in panels:
        body += [*_axes(panel), *_curves(panel, own, other)]
    return "\n".join([*body, "</svg>", ""])


def _panel(title: str, unit: str, left: int, value: Callable[[Point], int], lines: Sequence[Line]) -> Panel:
    values = [max(value(point), 1) for line in lines for point in line.points]
    lengths = [point.n for line in lines for point in line.points]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    first, last = min(lengths), max(lengths)
    return Panel(title, unit, left, value, low, max(high, low + 1), first, max(last, first + 1))


def _axes(panel: Panel) -> Iterable[str]:
    yield f'<text x="{panel.left}" y="{TOP - 12}" font-weight="bold">{panel.title}</text>'
    yield f'<rect x="{panel.left}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#888"/>'
    every = 1 + (panel.high - panel.low) // 8
    for power in range(panel.low, panel.high + 1, every):
        y = panel.y(10**power)
        yield f'<path d="M{panel.left} {y:.1f}h{WIDE}" stroke="#e4e4e4"/>'
        yield f'<text x="{panel.left - 6}" y="{y + 4:.1f}" text-anchor="end">{_decade(power, panel.unit)}</text>'
    for n in sorted({panel.first, *TABLE}):
        if panel.first <= n <= panel.last:
            x = panel.x(n)
            yield f'<path d="M{x:.1f} {TOP + HIGH}v5" stroke="#888"/>'
            yield f'<text x="{x:.1f}" y="{TOP + HIGH + 19}" text-anchor="middle">{n}</text>'
    yield f'<text x="{panel.left + WIDE / 2:.1f}" y="{TOP + HIGH + 40}" text-anchor="middle">length n</text>'


def _curves(panel: Panel, own: Line, other: Line | None) -> Iterable[str]:
    yield f'<path d="{_path(panel, own)}" {OWN}/>'
    for point in own.points:
        if point.n in TABLE:
            yield f'<circle cx="{panel.x(point.n):.1f}" cy="{panel.y(panel.value(point)):.1f}" r="4" fill="#1a4f8b"/>'
    if other:
        yield f'<path d="{_path(panel, other)}" {OTHER}/>'


def _path(panel: Panel, line: Line) -> str:
    return "M" + "L".join(f"{panel.x(point.n):.1f} {panel.y(panel.value(point)):.1f}" for point in line.points)


def _legend(lines: Sequence[Line]) -> Iterable[str]:
    left = LEFT[0]
    for line, style in zip(lines, (OWN, OTHER), strict=False):
        yield f'<path d="M{left} 20h34" {style}/>'
        yield f'<text x="{left + 42}" y="24">{escape(line.name)}</text>'
        left += 80 + 8 * len(line.name)


def _decade(power: int, unit: str) -> str:
    """`10 M` for 7, with the unit after the suffix."""
    suffix = SUFFIXES[power // 3] if power >= 3 or not unit else " "
    return f"{10 ** (power % 3)}{suffix}{unit}"


def _description(lines: Sequence[Line]) -> str:
    """The plot in words: what each line begins and ends with."""
    words = []
    for line in lines:
        ends = [
            f"at n = {p.n} {human(p.macs)} MACs and {human(p.kept)} bytes" for p in (line.points[0], line.points[-1])
        ]
        words.append(f"{line.name}: {', '.join(ends)}.")
    return f"<desc>MACs and bytes kept for backward over the length n. {escape(' '.join(words))}</desc>"
