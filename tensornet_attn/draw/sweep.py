"""Plots panels of curves, such as sweeps of costs, as SVG with deterministic bytes.

The horizontal axis is logarithmic. The vertical axis is linear for values below 10, with a line at 1, and otherwise
logarithmic. Curves differ in colour, dashes and markers. On a logarithmic axis, where they often coincide, they also
differ in width, so that all are visible. A panel with equal curves shows one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from tensornet_attn.cost.sweep import MEASURES, Swept, cell, head

WIDE, HIGH, LEFT, GAP, TOP, BETWEEN = 290, 190, 66, 94, 58, 262  # size, position and distances of panels
LINE, SIGN = 20, 8  # line height of the legend; character width
SUFFIXES = ("", " k", " M", " G", " T", " P", " E")
# Colours with dashes and markers, so that curves are distinct in greyscale.
STYLES = (
    ("#12356b", "", "circle"),
    ("#c25b12", "8 4", "square"),
    ("#1d7a4c", "2 3", "diamond"),
    ("#8a2f7d", "10 3 2 3", "triangle"),
    ("#7a7a1f", "5 2", "circle"),
    ("#2a8fa8", "1 4", "square"),
    ("#a83a3a", "12 4", "diamond"),
    ("#5b5b5b", "3 5", "triangle"),
)
SHAPES = {
    "circle": "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
    "square": "M-3 -3h6v6h-6z",
    "diamond": "M0 -4l4 4l-4 4l-4 -4z",
    "triangle": "M0 -4l4 7h-8z",
}
_HEAD = """<svg role="img" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" \
font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">"""


@dataclass(frozen=True)
class SweepCurve:
    """A named curve; a missing value is None."""

    name: str
    xs: tuple[int, ...]
    ys: tuple[float | None, ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `along` is the label of the horizontal axis; `label_if_equal`: of curves that are all equal."""

    title: str
    along: str
    curves: tuple[SweepCurve, ...]
    label_if_equal: str = "the same for all"


@dataclass(frozen=True)
class Axes:
    """Maps values to positions. `bottom` and `top` bound y, as powers of ten on a logarithmic axis."""

    left: float
    upper: float
    first: int
    last: int
    bottom: float
    top: float
    step: float | None = None  # between the lines of a linear axis
    high: int = HIGH

    def x(self, value: int) -> float:
        decades = log10(self.last / self.first) or 1.0
        return self.left + WIDE * log10(value / self.first) / decades

    def y(self, value: float) -> float:
        level = log10(value) if self.step is None else value
        return self.upper + self.high * (self.top - level) / (self.top - self.bottom)

    def ticks(self) -> Iterable[tuple[float, str]]:
        """Values and labels of the horizontal grid lines."""
        if self.step is None:
            stride = 1 + int(self.top - self.bottom) // 8
            for power in range(int(self.bottom), int(self.top) + 1, stride):
                suffix = SUFFIXES[power // 3] if power >= 0 else ""
                yield 10.0**power, f"{10 ** (power % 3)}{suffix}" if power >= 0 else f"{10.0**power:g}"
            return
        for i in range(round(self.bottom / self.step), round(self.top / self.step) + 1):
            yield round(i * self.step, 9), f"{i * self.step:.6g}"


def curves(panels: Sequence[Panel], title: str, about: str) -> str:
    """The SVG of the panels, two per row, with one legend."""
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    legend, height = _legend(names)
    rows = ceil(len(panels) / 2)
    total_width = LEFT + WIDE + 20 + (GAP + WIDE if len(panels) > 1 else 0)
    total_height = TOP + height + BETWEEN * rows - 4
    body = [f'<text x="{LEFT}" y="22" font-weight="bold">{escape(title)}</text>', *legend]
    for i, panel in enumerate(panels):
        axes = _axes(panel, LEFT + (i % 2) * (WIDE + GAP), TOP + height + (i // 2) * BETWEEN)
        body += [*_frame(panel, axes), *_drawn(panel, axes, names)]
    return drawing(total_width, total_height, title, about, body)


def drawing(width: int, height: int, title: str, about: str, body: Iterable[str]) -> str:
    """A complete SVG with title and description, on white."""
    head = [_HEAD.format(width, height), f"<title>{escape(title)}</title>", f"<desc>{escape(about)}</desc>"]
    return "\n".join([*head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *body, "</svg>", ""])


def _axes(panel: Panel, left: float, upper: float) -> Axes:
    xs = [x for curve in panel.curves for x in curve.xs]
    ys = [y for curve in panel.curves for y in curve.ys if y is not None and y > 0] or [1.0]
    if max(ys) < 10:
        span = max(max(ys) - min(ys), 1e-3)  # about six lines, at distances of 1, 2 or 5 times a power of ten
        power = 10.0 ** floor(log10(span / 6))
        step = next(power * digit for digit in (1, 2, 5, 10) if span / (power * digit) <= 6)
        bottom, top = floor(min(ys) / step + 1e-9), ceil(max(ys) / step - 1e-9)
        return Axes(left, upper, min(xs), max(xs), bottom * step, max(top, bottom + 1) * step, step)
    low, high = floor(log10(min(ys))), ceil(log10(max(ys)))
    return Axes(left, upper, min(xs), max(xs), low, max(high, low + 1))


def _frame(panel: Panel, axes: Axes) -> Iterable[str]:
    left, upper = axes.left, axes.upper
    yield f'<text x="{left}" y="{upper - 10}" font-weight="bold">{escape(panel.title)}</text>'
    for value, label in axes.ticks():
        y = axes.y(value)
        stroke = "#999" if value == 1 and axes.step is not None else "#e4e4e4"
        yield f'<path d="M{left} {y:.1f}h{WIDE}" stroke="{stroke}"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<rect x="{left}" y="{upper}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#888"/>'
    for value in sorted({x for curve in panel.curves for x in curve.xs}):
        x = axes.x(value)
        yield f'<path d="M{x:.1f} {upper + HIGH}v5" stroke="#888"/>'
        yield f'<text x="{x:.1f}" y="{upper + HIGH + 19}" text-anchor="middle">{value}</text>'
    yield f'<text x="{left + WIDE / 2:.1f}" y="{upper + HIGH + 38}" text-anchor="middle">{escape(panel.along)}</text>'


def _drawn(panel: Panel, axes: Axes, names: Sequence[str]) -> Iterable[str]:
    alike = len(panel.curves) > 1 and len({(curve.xs, curve.ys) for curve in panel.curves}) == 1
    if alike:
        yield from _curve(panel.curves[0], axes, ("#222", "", "circle"), 2)
        anchor = f'x="{axes.left + WIDE}" y="{axes.upper - 10}"'
        yield f'<text {anchor} text-anchor="end" font-style="italic">{escape(panel.label_if_equal)}</text>'
        return
    for i, curve in enumerate(panel.curves):
        width = 2 if axes.step is not None else max(1.5, 4.5 - i)
        yield from _curve(curve, axes, STYLES[names.index(curve.name) % len(STYLES)], width)


def _curve(curve: SweepCurve, axes: Axes, style: tuple[str, str, str], width: float) -> Iterable[str]:
    points = [(axes.x(x), axes.y(y)) for x, y in zip(curve.xs, curve.ys, strict=True) if y is not None and y > 0]
    if not points:
        return
    colour, dashes, shape = style
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'
    for x, y in points:
        yield f'<path d="{SHAPES[shape]}" transform="translate({x:.1f} {y:.1f})" fill="{colour}"/>'


def _legend(names: Sequence[str]) -> tuple[list[str], int]:
    """The lines of the legend and their height. A single curve has no legend."""
    if len(names) < 2:
        return [], 0
    lines, x, y, limit = [], LEFT, 46, LEFT + 2 * WIDE + GAP
    for i, name in enumerate(names):
        colour, dashes, shape = STYLES[i % len(STYLES)]
        width = 42 + SIGN * len(name)
        if x > LEFT and x + width > limit:
            x, y = LEFT, y + LINE
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        lines.append(f'<path d="M{x} {y - 4}h30" stroke="{colour}" stroke-width="2"{dashed}/>')
        lines.append(f'<path d="{SHAPES[shape]}" transform="translate({x + 15} {y - 4})" fill="{colour}"/>')
        lines.append(f'<text x="{x + 36}" y="{y}">{escape(name)}</text>')
        x += width + 14
    return lines, y - 46 + LINE + 6


AXES = {"n": "length n", "m": "length m"}  # all others are sizes


def sweep_svg(swept: Swept) -> str:
    """The SVG of a sweep, with title and description. It shows ratios if the sweep compares with another design."""
    axes = [*swept.sweep.axes]
    panels = []
    for measure in swept.sweep.measures:
        ratio = f", ratio to {swept.against}" if swept.against else ""
        drawn = tuple(
            SweepCurve(
                name,
                tuple(point.sizes[axes[0]] for point in points),
                tuple(point.displayed(measure) for point in points),
            )
            for name, points in swept.series().items()
        )
        several = [*(["designs"] if len(swept.sweep.designs) > 1 else []), *axes[1:]]
        same = f"the same for all {' and '.join(several)}"
        panels.append(Panel(f"{measure}{ratio}", AXES.get(axes[0], f"size of {axes[0]}"), drawn, same))
    return curves(panels, head(swept), _about(swept))


def _about(swept: Swept) -> str:
    """A description of the curves by their first and last values."""
    axis = next(iter(swept.sweep.axes))
    words = []
    for measure in swept.sweep.measures:
        ends = [
            f"{name}: {cell(points[0], measure)} at {axis} = {points[0].sizes[axis]}, "
            f"{cell(points[-1], measure)} at {axis} = {points[-1].sizes[axis]}"
            for name, points in swept.series().items()
        ]
        words.append(f"{measure} ({MEASURES[measure]}). {'; '.join(ends)}.")
    return " ".join(words)
