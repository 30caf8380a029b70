"""`search`: starts or resumes a study and returns its result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.report.words import counted, exact
from tensornet_attn.search.evolve import draft
from tensornet_attn.search.rank import Confirmed, confirmed, front
from tensornet_attn.search.read import load
from tensornet_attn.search.space import Space, to_text
from tensornet_attn.search.study import CONFIG, DATABASE, NAME, Study, log_of, prepare
from tensornet_attn.search.study_file import SHORT, read
from tensornet_attn.search.trial import BOUND, COMPLETE, Trial
from tensornet_attn.spec.sources import Source
from tensornet_attn.tasks.recipe import Recipe

if TYPE_CHECKING:
    StudyKeys = Any  # as `train.config.RunKeys`
else:
    StudyKeys = TypedDict("StudyKeys", dict.fromkeys([*Study.model_fields, *SHORT], Any), total=False)


@dataclass(frozen=True)
class StudyResult:
    """A finished study. `front`: the Pareto front of all proposals; `confirmed`: finalists trained with fresh seeds."""

    study: Study
    trials: tuple[Trial, ...]
    front: tuple[Trial, ...]
    confirmed: tuple[Confirmed, ...]
    out: Path

    def as_dict(self) -> dict[str, Any]:
        """The result as data for JSON."""
        ratings = {finalist.of: finalist for finalist in self.confirmed}
        return {
            "out": str(self.out),
            "trials": len([trial for trial in self.trials if trial.slot >= 0]),
            "front": [_row(trial, ratings.get(trial.slot)) for trial in self.front],
            "confirmed": [_row(self.trial(finalist.of), finalist) for finalist in self.confirmed],
        }

    def trial(self, slot: int) -> Trial:
        """The trial of a slot. Raises KeyError for an unknown slot."""
        return {trial.slot: trial for trial in self.trials}[slot]

    def __str__(self) -> str:
        """The front, the best in the first objective first, the finalists, the highest mean first, and failures.

        The best finalist may be missing from the front, because the scores of the search determine the front.
        """
        front, trials = counted(len(self.front), "design"), counted(self.as_dict()["trials"], "trial")
        lines = [f"{front} on the front of {trials}; results: '{self.out}'"]
        means = {finalist.of: finalist.mean.to_text() for finalist in self.confirmed}
        for trial in self.front:
            values = trial.values or {}
            texts = [f"{name} {exact(values[name])}" for name in self.study.objectives if name in values]
            texts += [f"confirmed {means[trial.slot]}"] if trial.slot in means else []
            lines.append("  ".join(["", *texts, to_text(trial.path)]))
        if means.keys() - {trial.slot for trial in self.front}:
            lines.append(f"all finalists: means of {self.study.fresh_seeds} fresh seeds")
            for finalist in self.confirmed:
                texts = [f"quality {means[finalist.of]}", f"in the search {exact(finalist.search)}"]
                lines.append("  ".join(["", *texts, to_text(self.trial(finalist.of).path)]))
        failures = {trial.reason: trial for trial in reversed(self.trials) if trial.state not in (COMPLETE, BOUND)}
        for reason, first in failures.items():
            lines.append(f"{first.state}: {to_text(first.path)}: {reason}\n  log: '{log_of(self.out, first.slot)}'")
        return "\n".join(lines)

    __repr__ = __str__


def _row(trial: Trial, rating: Confirmed | None) -> dict[str, Any]:
    row = {"slot": trial.slot, "arm": trial.arm, "path": to_text(trial.path), "values": dict(trial.values or {})}
    if rating is not None:
        row["confirmed"] = {"mean": rating.mean.value, "half": rating.mean.half, "drop": rating.drop}
    return row


def search(
    space: Source | Space | None = None,
    *,
    task: str | Recipe | Callable[..., Any] | None = None,
    objectives: Sequence[str] | None = None,
    bounds: Mapping[str, Any] | None = None,
    trials: int | None = None,
    workers: int = 1,
    out: str | os.PathLike[str] | None = None,
    storage: str | None = None,
    name: str = NAME,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    **options: StudyKeys,
) -> StudyResult:
    """Searches a space for designs with high quality on a task at low cost, and returns the finished study.

    `task` is the name of a task, or a Recipe of a module, or a function of a module that maps a Design to its quality
    (larger is better).
    `config` is a study file or a mapping of its keys, and `options` are keys that override it. `workers` processes
    evaluate trials on this machine. `out` is the folder of the study, by default `runs/NAME` with the name of the
    space. `storage` is the URL of a database, by default `study.db` in `out`, and `name` the name of the study in it.

    A second call with the same arguments resumes the study, or returns its result if it is finished. Progress goes to
    standard error. Raises TypeError for an unknown key; DesignError and InputError for problems of space, task, bounds,
    folder or storage; InputError if all trials fail; MissingPartError if a package is missing; KeyboardInterrupt on
    Ctrl-C, after all workers have ended.
    """
    for module, package in (("optuna", "optuna"), ("moocore", "moocore"), ("sklearn", "scikit-learn")):
        if find_spec(module) is None:
            raise MissingPartError(f"searching needs {package}: pip install 'tensornet-attn[search]'.")
    arguments = {"space": space, "task": task, "objectives": objectives, "bounds": bounds, "trials": trials}
    if workers < 1:
        raise InputError(f"workers is {workers}; set at least 1.")
    from tensornet_attn.search.results import check_replaceable, write
    from tensornet_attn.search.store import open_store, reached
    from tensornet_attn.search.team import Team, ended

    study = _study({**arguments, **options}, config, out)
    loaded = load(study.space)
    folder = Path(out) if out is not None else Path("runs") / loaded.name
    draft(study, loaded, 0, ())  # reports an empty space before any file is written
    address = storage if storage is not None else f"sqlite:///{(folder / DATABASE).resolve()}"
    check_replaceable(folder)
    late = storage is not None and not folder.exists()  # no folder is created for an unreachable storage
    if not late:
        prepare(study, folder)
    store = open_store(address, study, name)
    try:
        if late:
            prepare(study, folder)
        with reached(store.shown):
            done = ended(store, study, Team(folder, address, name, workers))
    finally:
        store.close()
    write(study, loaded, done, folder)
    return StudyResult(study, tuple(done), tuple(front(study, done)), tuple(confirmed(study, done)), folder)


def _study(chosen: dict[str, Any], config: Any, out: Any) -> Study:
    """The study of the arguments, or the study of the folder if there are neither config nor space."""
    if config is None and chosen["space"] is None and out is not None and (Path(out) / CONFIG).is_file():
        config = Path(out) / CONFIG
    return read(config, chosen)
