"""Learning curves as inline SVG: for each row, the mean over seeds in a band from the smallest to the largest value."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tensornet_attn.analyse.plots import blank
from tensornet_attn.compare.section import SeedRuns, TaskSection, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Dashes = str | tuple[int, tuple[float, ...]]  # matplotlib's line styles
COLOURS = ("#3b82c4", "#d9534f", "#d98e04", "#3f9c62", "#8f6bc4", "#2aa5b5", "#c05a9d", "#8a7a3d")
DASHES: tuple[Dashes, ...] = ("solid", (0, (4, 2)), (0, (1, 1.5)))  # for more rows than colours
INK, GRID = "#010203", "#010204"  # placeholders for the page's colours
POINTS = 80  # maximum points of a line; more points are averaged
Line = tuple[list[float], list[float], list[float], list[float]]  # steps, mean, smallest, largest


def style(index: int) -> tuple[str, Dashes]:
    """(colour, dashes) of a row by its index."""
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def curves(section: TaskSection) -> str:
    """The training loss and validations of all rows over steps, as SVG. Raises MissingPartError without matplotlib."""
    figure = blank(10.6, 3.7)
    figure.patch.set_alpha(0)
    panels = figure.subplots(1, 2)
    _panel(panels[0], section.rows, "loss", "training loss, nats")
    _panel(panels[1], section.rows, section.by, f"validation: {words(section.by)}")
    return _svg(figure, section.task)


def line(row: SeedRuns, key: str) -> Line | None:
    """The curve of a row at the common steps of its runs; None if there are none."""
    runs = [record.curve(key) for record in row.records]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    size = math.ceil(len(steps) / POINTS)
    if not steps:
        return None
    pieces = [steps[start : start + size] for start in range(0, len(steps), size)]
    means = [[math.fsum(run[step] for step in piece) / len(piece) for piece in pieces] for run in runs]
    columns = list(zip(*means, strict=True))
    middle = [math.fsum(column) / len(column) for column in columns]
    ends = [piece[-1] for piece in pieces]
    return [float(step) for step in ends], middle, [min(column) for column in columns], [max(c) for c in columns]


def _panel(axis: Axes, rows: Sequence[SeedRuns], key: str, title: str) -> None:
    for index, row in enumerate(rows):
        colour, dashes = style(index)
        curve = line(row, key)
        if curve is not None:
            steps, mean, low, high = curve
            marker: dict[str, Any] = {"marker": "o", "ms": 3} if len(steps) < 30 else {}
            axis.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)
            axis.plot(steps, mean, color=colour, ls=dashes, lw=1.6, label=row.label, **marker)
    axis.locator_params("x", integer=True)
    axis.set_title(title, loc="left", fontsize=10, color=INK)
    axis.set_xlabel("step", fontsize=9, color=INK)
    axis.set_facecolor("none")
    axis.grid(color=GRID, lw=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=9, colors=INK, length=0)
    for name, spine in axis.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(GRID)


def _svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element with the colours and font of the page."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    salt = sha256(name.encode()).hexdigest()[:8]  # makes ids unique in the page
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "svg.id": f"curves-{salt}"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue().decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # matplotlib repeats these in each figure
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--letters)", svg)
    return svg.replace(INK, "var(--ink)").replace(GRID, "var(--line)")
