"""What is left of a study for people: a folder for each Pareto design and finalist, all trials as JSON, the report."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensornet_attn import compiler
from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.files import write_whole
from tensornet_attn.search.path import as_data, to_text
from tensornet_attn.search.space import Space
from tensornet_attn.spec import Design
from tensornet_attn.study.config import Study
from tensornet_attn.study.curves import draw, runs_of
from tensornet_attn.study.finalists import Confirmed
from tensornet_attn.study.record import Trial
from tensornet_attn.study.report.findings import Findings, find
from tensornet_attn.study.report.page import page
from tensornet_attn.study.report.words import folder
from tensornet_attn.study.written import study_data

PARETO, TRIALS, REPORT = "pareto", "trials.json", "report.html"
DESIGN, PICTURE, SOURCE, CURVES, FACTS = "design.yaml", "picture.svg", "source.py", "curves.svg", "facts.json"


def write(study: Study, space: Space, trials: Sequence[Trial], out: Path) -> None:
    """Writes `pareto/`, `trials.json` and `report.html` into the folder of a study, each whole or not at all.

    What cannot be made where a package or a run is missing has a sentence in its place. Raises InputError where a
    design is not the one that its trial says, and OSError.
    """
    found = find(study, space, trials)
    told = {"study": study_data(study), "trials": [trial.as_dict() for trial in found.trials]}
    write_whole(out / TRIALS, _json(told))
    _replace(out / PARETO, lambda new: _front(found, new, out))
    write_whole(out / REPORT, page(study, space, trials).encode())


def _replace(target: Path, fill: Callable[[Path], None]) -> None:
    """A folder in place of another, filled before anybody sees it."""
    new, old = (target.with_name(f".{target.name}-{word}-{os.getpid()}") for word in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        fill(new)
        if target.exists():
            os.rename(target, old)
        os.rename(new, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _front(found: Findings, target: Path, out: Path) -> None:
    for trial in found.chosen:
        own = target / folder(trial)
        own.mkdir()
        _design(found, trial, own, out)


def _design(found: Findings, trial: Trial, own: Path, out: Path) -> None:
    """The files of one design; `left_out` among its facts says what is missing, and why."""
    design = compiler.load(trial.design)
    if compiler.hash_of(design) != trial.hash:
        raise InputError(
            f"trial {trial.slot} says that its design has the hash {trial.hash[:12]}, but it has "
            f"{compiler.hash_of(design)[:12]}: the study was made by another version of this package."
        )
    makers: dict[str, Callable[[], bytes]] = {
        DESIGN: lambda: design.to_yaml().encode(),
        PICTURE: lambda: compiler.picture(design, "svg"),
        SOURCE: lambda: compiler.emit_source(design).encode(),
        CURVES: lambda: draw(found.study, runs_of(_runs(found, trial), out), f"trial {trial.slot}, {design.name}"),
    }
    left_out = {}
    for name, make in makers.items():
        try:
            (own / name).write_bytes(make())
        except (MissingPartError, InputError) as error:
            left_out[name] = str(error)
    (own / FACTS).write_bytes(_json(facts(found, trial, design) | {"left_out": left_out}))


def facts(found: Findings, trial: Trial, design: Design) -> dict[str, Any]:
    """What is known of a design, as JSON: costs, qualities by rung and learning rate, and what confirming it gave."""
    one = found.ratings.get(trial.essence)
    return {
        "name": design.name,
        "trial": trial.slot,
        "on_the_front": trial.essence in found.members,
        "arm": trial.arm,
        "how": trial.how,
        "parents": list(trial.parents),
        "path": to_text(trial.path),
        "choices": as_data(trial.path),
        "hash": trial.hash,
        "essence": trial.essence,
        "costs": {**trial.price.as_dict(), "n": found.space.bounds.n, "batch": found.space.bounds.batch},
        "values": dict(trial.values or {}),
        "rungs": [
            {"rung": result.rung, "quality": result.counts, "by_rate": _by_rate(result.rates, result.quality)}
            for result in trial.results
        ],
        "runs": [run for result in trial.results for run in result.folders],
        "confirmed": None if one is None else _confirmed(one),
    }


def _by_rate(rates: Sequence[float], qualities: Sequence[float | None]) -> dict[str, float | None]:
    return {f"{rate:g}": quality for rate, quality in zip(rates, qualities, strict=True)}


def _confirmed(one: Confirmed) -> dict[str, Any]:
    return {"trial": one.of, "search": one.search, "drop": one.drop, "failed": one.failed, **one.mean.as_dict()}


def _runs(found: Findings, trial: Trial) -> list[Trial]:
    """A trial, and the confirmations of its design."""
    again = (one for one in found.trials if one.of is not None and found.slots[one.of].essence == trial.essence)
    return [trial, *again]


def _json(data: Any) -> bytes:
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
