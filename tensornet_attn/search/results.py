"""The output files of a finished study: the designs of its front with learning curves, trials.json, and the report."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensornet_attn import compiler
from tensornet_attn.analyse.plots import GREY, INK, blank
from tensornet_attn.compare.curves import COLOURS
from tensornet_attn.compare.record import Record, record
from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.files import write_whole
from tensornet_attn.search.findings import Findings, find, folder
from tensornet_attn.search.page import page
from tensornet_attn.search.space import Space, as_data, to_text
from tensornet_attn.search.study import Study, study_data
from tensornet_attn.search.trial import Trial
from tensornet_attn.spec import Design

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARETO, TRIALS, REPORT = "pareto", "trials.json", "report.html"
DESIGN, PICTURE, SOURCE, CURVES, FACTS = "design.yaml", "picture.svg", "source.py", "curves.svg", "facts.json"
FILES = (DESIGN, PICTURE, SOURCE, CURVES, FACTS)
_NAME = re.compile(r"\d{3,}_")  # of the folder of a design


def write(study: Study, space: Space, trials: Sequence[Trial], out: Path) -> None:
    """Writes `pareto/`, `trials.json` and `report.html` into the folder of a study, each atomically.

    If a package or a run is missing, the facts of a design list the files that cannot be made, with reasons. Raises
    InputError if a design does not have the hash of its trial, or `pareto/` has files of others, and OSError.
    """
    check_replaceable(out)
    findings = find(study, space, trials)
    content = {"study": study_data(study), "trials": [trial.as_dict() for trial in findings.trials]}
    write_whole(out / TRIALS, _json(content))
    with _in_place_of(out / PARETO) as new:
        for trial in findings.chosen:
            _design(findings, trial, new / folder(trial), out)
    write_whole(out / REPORT, page(study, space, trials).encode())


def check_replaceable(out: Path) -> None:
    """Raises InputError if `pareto/` has files that no study wrote: it is replaced."""
    folders = [*(out / PARETO).iterdir()] if (out / PARETO).is_dir() else []
    designs = [path for path in folders if _NAME.match(path.name) and path.is_dir()]
    foreign_files = [path for path in folders if path not in designs]
    foreign_files += [path for design in designs for path in design.iterdir() if path.name not in FILES]
    if foreign_files:
        raise InputError(
            f"'{min(foreign_files)}' is no file of the study, which replaces '{out / PARETO}': move it away."
        )


@contextmanager
def _in_place_of(target: Path) -> Iterator[Path]:
    """A new folder that replaces `target` when the context ends."""
    new, old = (target.with_name(f".{target.name}-{word}-{os.getpid()}") for word in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        if target.exists():
            os.rename(target, old)
        os.rename(new, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _design(findings: Findings, trial: Trial, target: Path, out: Path) -> None:
    """Writes the files of one design; `left_out` in its facts lists missing files with reasons."""
    target.mkdir()
    design = compiler.load(trial.design)
    if compiler.hash_of(design) != trial.hash:
        raise InputError(
            f"the design of trial {trial.slot} has the hash {compiler.hash_of(design)[:12]}, but the trial has "
            f"{trial.hash[:12]}: use the version of this package that made the study."
        )
    repeats = (
        repeat
        for repeat in findings.trials
        if repeat.of is not None and findings.slots[repeat.of].essence == trial.essence
    )
    title = f"trial {trial.slot}, {design.name}"
    makers: dict[str, Callable[[], bytes]] = {
        DESIGN: lambda: design.to_yaml().encode(),
        PICTURE: lambda: compiler.picture(design, "svg"),
        SOURCE: lambda: compiler.emit_source(design).encode(),
        CURVES: lambda: draw(findings.study, [trial, *repeats], out, title),
    }
    left_out = {}
    for name, make in makers.items():
        try:
            (target / name).write_bytes(make())
        except (MissingPartError, InputError) as error:
            left_out[name] = str(error)
    (target / FACTS).write_bytes(_json(facts(findings, trial, design) | {"left_out": left_out}))


def facts(findings: Findings, trial: Trial, design: Design) -> dict[str, Any]:
    """The facts of a design for JSON: costs, qualities by rung and learning rate, and its confirmation."""
    rating = findings.ratings.get(trial.essence)
    return {
        "name": design.name,
        "trial": trial.slot,
        "on_the_front": trial.essence in findings.members,
        "arm": trial.arm,
        "how": trial.how,
        "parents": list(trial.parents),
        "path": to_text(trial.path),
        "choices": as_data(trial.path),
        "hash": trial.hash,
        "essence": trial.essence,
        "costs": {**trial.price.as_dict(), "n": findings.space.bounds.n, "batch": findings.space.bounds.batch},
        "values": dict(trial.values or {}),
        "rungs": [
            {
                "rung": result.rung,
                "quality": result.counts,
                "by_rate": dict(zip(map("{:g}".format, result.rates), result.quality, strict=True)),
            }
            for result in trial.results
        ],
        "runs": [run for result in trial.results for run in result.folders],
        "confirmed": None
        if rating is None
        else (
            {
                "trial": rating.of,
                "search": rating.search,
                "drop": rating.drop,
                "failed": rating.failed,
                **rating.mean.as_dict(),
            }
        ),
    }


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


MEASURES = {"accuracy": "eval_accuracy", "loss": "eval_loss"}  # measure of a rung: metric of a run
HEIGHT = 2.6  # inches per rung
FEW = 12  # lines with fewer points have markers


@dataclass(frozen=True)
class TrainingCurve:
    """A run on a rung; `fresh`: the seed, if the run is a confirmation."""

    rung: int
    run: Record
    fresh: int | None = None


def draw(study: Study, trials: Sequence[Trial], out: Path, title: str) -> bytes:
    """An SVG with training loss and validations of the runs of a design's trials, which are in `out`.

    Raises InputError if there is no run, and MissingPartError without matplotlib.
    """
    run_folders = [
        (result.rung, trial.fresh, name) for trial in trials for result in trial.results for name in result.folders
    ]
    if not run_folders:
        raise InputError("there are no runs, because the task is a user function.")
    curves = [TrainingCurve(rung, record(out / name), fresh) for rung, fresh, name in run_folders]
    rungs = sorted({curve.rung for curve in curves})
    figure = blank(9, HEIGHT * len(rungs) + 0.4)
    axes = figure.subplots(len(rungs), 2, squeeze=False)
    for row, rung in zip(axes, rungs, strict=True):
        rung_curves = [curve for curve in curves if curve.rung == rung]
        measure = study.rungs[rung - 1].measure
        _panel(row[0], rung_curves, "loss", f"rung {rung}, {study.rungs[rung - 1].task}: training loss, nats")
        _panel(row[1], rung_curves, MEASURES[measure], f"validation {measure}")
    figure.suptitle(title, fontsize=10, color=INK)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()


def _panel(axis: Axes, curves: Sequence[TrainingCurve], key: str, title: str) -> None:
    fresh, searched = ([curve for curve in curves if (curve.fresh is None) == chosen] for chosen in (False, True))
    lines = [(curve, GREY, 0.8, "" if index else "fresh seeds") for index, curve in enumerate(fresh)]
    lines += [
        (curve, COLOURS[index % len(COLOURS)], 1.2, f"learning rate {curve.run.run.lr:g}")
        for index, curve in enumerate(searched)
    ]
    for curve, colour, width, label in lines:
        points = curve.run.curve(key)
        markers: dict[str, Any] = {"marker": "o", "ms": 3} if len(points) < FEW else {}
        axis.plot(list(points), list(points.values()), color=colour, lw=width, label=label or None, **markers)
    axis.set_xlim(left=0)
    axis.locator_params(axis="x", integer=True)
    axis.set_title(title, loc="left", fontsize=9, color=INK)
    axis.set_xlabel("step", fontsize=8, color=INK)
    axis.tick_params(labelsize=7, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False)
