"""The learning curves of a run as a picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from tensornet_attn.analyse.plots import BLUE, GREY, INK, blank
from tensornet_attn.files import write_whole
from tensornet_attn.train.metrics import Line

FILE = "curves.svg"
_SPAN = 50  # steps, or a fiftieth of the run, that the thick line is a mean of


def draw(lines: list[Line], title: str, path: Path) -> None:
    """Writes loss and validation loss, and validation accuracies, over the steps. SVG."""
    rates = sorted({name for line in lines for name in line if name.startswith("eval_accuracy")})
    figure = blank(8 if rates else 5, 3.2)
    axes = figure.subplots(1, 1 + bool(rates), squeeze=False)[0]
    steps, losses = _points(lines, "loss")
    axes[0].plot(steps, losses, color=GREY, linewidth=0.6, alpha=0.6, label="training")
    axes[0].plot(steps, _smooth(losses), color=INK, linewidth=1.4, label="training, running mean")
    axes[0].plot(*_points(lines, "eval_loss"), color=BLUE, marker="o", markersize=3, label="validation")
    for rate in rates:
        name = rate.removeprefix("eval_")
        axes[1].plot(*_points(lines, rate), color=BLUE if name == "accuracy" else None, marker="o", ms=3, label=name)
    for axis, what in zip(axes, ("loss, nats", "validation accuracy"), strict=False):
        _finish(axis, what)
    figure.suptitle(title, fontsize=10, color=INK)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    write_whole(path, picture.getvalue())


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
