"""The frame of a plot: grid, ticks and titles, as pieces of SVG in the page's own ink and letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape

from tensornet_attn.search.report.scale import Scale


@dataclass(frozen=True)
class Axes:
    """Two scales; the corners of the plot are the ends of their axes."""

    x: Scale
    y: Scale

    def frame(self, x_title: str, y_title: str, tick: Callable[[float], str], value: Callable[[float], str]) -> str:
        """Grid lines and ticks, written by `tick` along x and `value` along y; titles under x and above y."""
        left, right, bottom, top = self.x.first, self.x.last, self.y.first, self.y.last
        pieces = [line(left, right, self.y.at(at), self.y.at(at), "grid") for at in self.y.ticks]
        pieces += [line(self.x.at(at), self.x.at(at), bottom, bottom + 4, "axis") for at in self.x.ticks]
        pieces.append(line(left, right, bottom, bottom, "axis"))
        pieces += [text(left - 8, self.y.at(at) + 4, value(at), "tick end") for at in self.y.ticks]
        pieces += [text(self.x.at(at), bottom + 18, tick(at), "tick middle") for at in apart(self.x, tick)]
        pieces.append(text(left - 8, top - 12, y_title, "title"))
        pieces.append(text(right, bottom + 36, x_title, "title end"))
        return "".join(pieces)


def apart(scale: Scale, tick: Callable[[float], str]) -> list[float]:
    """The ticks whose words do not run into those of the one before."""
    found: list[float] = []
    free = float("-inf")
    for value in scale.ticks:
        half = 4.0 * len(tick(value)) + 3
        if scale.at(value) - half >= free:
            found.append(value)
            free = scale.at(value) + half
    return found


def drawing(width: float, height: float, pieces: Iterable[str], words: str) -> str:
    """An SVG of a size; `words` say what it shows."""
    size = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="plot" {size} role="group" aria-label="{escape(words)}">{"".join(pieces)}</svg>'


def line(x1: float, x2: float, y1: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def steps(points: Iterable[tuple[float, float]], kind: str) -> str:
    """A line that goes from one place to the next along x first, then along y."""
    found = list(points)
    if not found:
        return ""
    path = f"M{found[0][0]:.1f},{found[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in found[1:])
    return f'<path class="{kind}" d="{path}"/>'


def mark(arm: str, x: float, y: float, size: float = 5.0) -> str:
    """The mark of an arm: a circle for evolution, a diamond for random search."""
    if arm == "evolution":
        return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{size:g}"/>'
    far = size * 1.25
    return f'<path class="mark" d="M{x:.1f},{y - far:.1f}l{far:g},{far:g}l-{far:g},{far:g}l-{far:g},-{far:g}z"/>'


def cross(x: float, y: float, size: float = 3.5) -> str:
    far = f"{2 * size:g}"
    return f'<path class="cross" d="M{x - size:.1f},{y - size:.1f}l{far},{far}m0,-{far}l-{far},{far}"/>'


def swatch(arm: str) -> str:
    """The mark of an arm, in a line of text."""
    return f'<svg class="swatch {arm}" width="14" height="14" aria-hidden="true">{mark(arm, 7, 7, 4.5)}</svg>'
