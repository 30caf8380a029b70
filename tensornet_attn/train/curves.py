"""The learning curves of a run as a picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, get_args

from tensornet_attn.analyse.plots import BLUE, GREY, INK, blank
from tensornet_attn.files import write_whole
from tensornet_attn.tasks.measure import Measure
from tensornet_attn.train.metrics import Line

FILE = "curves.svg"
_SPAN = 50  # steps, or a fiftieth of the run, that the thick line is a mean of


def draw(lines: list[Line], title: str, path: Path) -> None:
    """Writes loss and validation loss, validation accuracies, and perplexity or bits, over the steps. SVG."""
    rates = sorted({name for line in lines for name in line if name.startswith("eval_accuracy")})
    units = sorted({f"eval_{unit}" for unit in get_args(Measure)} & {name for line in lines for name in line})
    panels = ["loss, nats"] + ["validation accuracy"] * bool(rates) + [_words(unit) for unit in units]
    figure = blank(1 + 3.5 * len(panels) if rates else 5, 3.2)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    steps, losses = _points(lines, "loss")
    axes[0].plot(steps, losses, color=GREY, linewidth=0.6, alpha=0.6, label="training")
    axes[0].plot(steps, _smooth(losses), color=INK, linewidth=1.4, label="training, running mean")
    axes[0].plot(*_points(lines, "eval_loss"), color=BLUE, marker="o", markersize=3, label="validation")
    for rate in rates:
        name = rate.removeprefix("eval_")
        axes[1].plot(*_points(lines, rate), color=BLUE if name == "accuracy" else None, marker="o", ms=3, label=name)
    for axis, unit in zip(reversed(axes), reversed(units), strict=False):
        axis.plot(*_points(lines, unit), color=BLUE, marker="o", markersize=3, label="validation")
    for axis, what in zip(axes, panels, strict=True):
        _finish(axis, what)
    figure.suptitle(title, fontsize=10, color=INK)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    write_whole(path, picture.getvalue())


def _words(measure: str) -> str:
    return measure.removeprefix("eval_").replace("_", " ")


def _points(lines: list[Line], name: str) -> tuple[list[int], list[float]]:
    found = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _smooth(values: list[float]) -> list[float]:
    """The mean of each value and those before it."""
    span = max(1, min(_SPAN, len(values) // 50))
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    starts = [max(0, place + 1 - span) for place in range(len(values))]
    return [(sums[place + 1] - sums[start]) / (place + 1 - start) for place, start in enumerate(starts)]


def _finish(axis: Any, what: str) -> None:
    axis.set_xlabel("step", fontsize=8, color=INK)
    axis.set_ylabel(what, fontsize=8, color=INK)
    axis.tick_params(labelsize=7, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False)
