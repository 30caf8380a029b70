"""Which moves paid: for each, how much better or worse designs with it are, as an interval on a line about zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from statistics import median

from tensornet_attn.search.effects import Effect
from tensornet_attn.search.report import scale
from tensornet_attn.search.report.axes import line, text

WIDTH, ROW, HEAD, FOOT = 560.0, 24.0, 30.0, 36.0
WIDE = 3.0  # times the median interval, from which on one is cut off where the axis ends
NAMES, NUMBERS = 170.0, 440.0  # where the plot begins and ends; names are before it, numbers behind it


def forest(effects: Sequence[Effect], title: str, number: Callable[[float], str], better: int) -> str:
    """A row an effect, the greatest first; `better`: 1 where more is better, -1 where less is."""
    rows = sorted(effects, key=lambda one: -one.difference * better)
    height = HEAD + ROW * len(rows) + FOOT
    axis = scale.linear(_ends(rows), NAMES, NUMBERS)
    bottom = HEAD + ROW * len(rows)
    pieces = [text(NAMES, 16, title, "title")]
    pieces += [line(axis.at(tick), axis.at(tick), HEAD - 4, bottom, "grid") for tick in axis.ticks]
    ticks = axis.ticks[:: 1 + len(axis.ticks) // 5]
    pieces += [text(axis.at(tick), bottom + 16, number(tick), "tick middle") for tick in ticks]
    pieces.append(line(axis.at(0), axis.at(0), HEAD - 4, bottom, "zero"))
    pieces += [_row(one, axis, HEAD + ROW * (place + 0.5), number, better) for place, one in enumerate(rows)]
    size = f'viewBox="0 0 {WIDTH:g} {height:g}"'
    return f'<svg class="plot forest" {size} role="img" aria-label="{escape(title)}">{"".join(pieces)}</svg>'


def _ends(effects: Sequence[Effect]) -> list[float]:
    """What the axis reaches: zero, all means, and the ends of all intervals that are not far wider than the others."""
    wide = WIDE * median(one.high - one.low for one in effects)
    ends = [end for one in effects if one.high - one.low <= wide for end in (one.low, one.high)]
    return [0.0, *(one.difference for one in effects), *ends]


def _row(one: Effect, axis: scale.Scale, y: float, number: Callable[[float], str], better: int) -> str:
    kind = "unsure" if one.low <= 0 <= one.high else "gain" if one.difference * better > 0 else "loss"
    name = text(NAMES - 10, y + 4, one.move, "name end")
    low, high = max(axis.at(one.low), NAMES), min(axis.at(one.high), NUMBERS)
    cut = _cut(low, y, 5) * (low > axis.at(one.low)) + _cut(high, y, -5) * (high < axis.at(one.high))
    bar = line(low, high, y, y, "bar") + cut
    dot = f'<circle class="dot" cx="{axis.at(one.difference):.1f}" cy="{y:.1f}" r="4"/>'
    told = f"{one.move}: {number(one.difference)}, from {number(one.low)} to {number(one.high)}"
    value = text(NUMBERS + 12, y + 4, number(one.difference), "value")
    counts = f"{one.with_}" if one.paired else f"{one.with_} / {one.without}"
    many = text(WIDTH - 4, y + 4, counts, "tick end")
    return f'<g class="effect {kind}"><title>{escape(told)}</title>{name}{bar}{dot}{value}{many}</g>'


def _cut(x: float, y: float, back: float) -> str:
    """An arrowhead where an interval goes on beyond the plot."""
    return f'<path class="cut" d="M{x + back:.1f},{y - 4:.1f}L{x:.1f},{y:.1f}L{x + back:.1f},{y + 4:.1f}"/>'
