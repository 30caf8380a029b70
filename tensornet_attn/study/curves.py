"""The learning curves of a design: a row a rung, a line a run, those of fresh seeds in grey behind the others."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensornet_attn.analyse.plots import GREY, INK, blank
from tensornet_attn.compare.curves import COLOURS
from tensornet_attn.compare.record import Record, record
from tensornet_attn.errors import InputError
from tensornet_attn.study.config import Study
from tensornet_attn.study.record import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = {"accuracy": "eval_accuracy", "loss": "eval_loss"}  # of a rung, as runs have them
HEIGHT = 2.6  # of a rung, in inches
FEW = 12  # points of a line that are marked each


@dataclass(frozen=True)
class Curve:
    """A run on a rung; `fresh`: the seed of a confirmation."""

    rung: int
    run: Record
    fresh: int | None = None


def runs_of(trials: Sequence[Trial], out: Path) -> list[Curve]:
    """The runs of a design's trials, beside the store in `out`. Raises InputError where there is none to be read."""
    places = [(result.rung, one.fresh, name) for one in trials for result in one.results for name in result.folders]
    if not places:
        raise InputError("no runs were left behind: the task is a function of its own.")
    return [Curve(rung, record(out / name), fresh) for rung, fresh, name in places]


def draw(study: Study, curves: Sequence[Curve], title: str) -> bytes:
    """Training loss and validations of runs over their steps, as SVG. Raises MissingPartError without matplotlib."""
    rungs = sorted({curve.rung for curve in curves})
    figure = blank(9, HEIGHT * len(rungs) + 0.4)
    axes = figure.subplots(len(rungs), 2, squeeze=False)
    for row, rung in zip(axes, rungs, strict=True):
        own = [curve for curve in curves if curve.rung == rung]
        measure = study.rungs[rung - 1].measure
        _panel(row[0], own, "loss", f"rung {rung}, {study.rungs[rung - 1].task}: training loss, nats")
        _panel(row[1], own, MEASURES[measure], f"validation {measure}")
    figure.suptitle(title, fontsize=10, color=INK)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()


def _panel(axis: Axes, curves: Sequence[Curve], key: str, title: str) -> None:
    again = [curve for curve in curves if curve.fresh is not None]
    for place, curve in enumerate(again):
        _line(axis, curve, key, GREY, 0.8, "" if place else "fresh seeds")
    for place, curve in enumerate(curve for curve in curves if curve.fresh is None):
        _line(axis, curve, key, COLOURS[place % len(COLOURS)], 1.2, f"learning rate {curve.run.run.lr:g}")
    axis.set_xlim(left=0)
    axis.locator_params(axis="x", integer=True)
    axis.set_title(title, loc="left", fontsize=9, color=INK)
    axis.set_xlabel("step", fontsize=8, color=INK)
    axis.tick_params(labelsize=7, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False)


def _line(axis: Axes, curve: Curve, key: str, colour: str, width: float, label: str) -> None:
    steps, values = _points(curve, key)
    few: dict[str, Any] = {"marker": "o", "ms": 3} if len(steps) < FEW else {}
    axis.plot(steps, values, color=colour, lw=width, label=label or None, **few)


def _points(curve: Curve, key: str) -> tuple[list[int], list[float]]:
    found = curve.run.curve(key)
    return list(found), list(found.values())
