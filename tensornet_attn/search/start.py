"""From a space and options to a finished study: begun, gone on with, or found finished."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict, Unpack

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.report.words import exact
from tensornet_attn.search.evolve import draft
from tensornet_attn.search.rank import Confirmed, confirmed, front
from tensornet_attn.search.read import load
from tensornet_attn.search.space import Space, to_text
from tensornet_attn.search.study import CONFIG, DATABASE, NAME, Study, function_named, name_of, prepare
from tensornet_attn.search.study_file import SHORT, callable_task, read
from tensornet_attn.search.trial import Trial
from tensornet_attn.spec.sources import Source

StudyKeys = TypedDict("StudyKeys", dict.fromkeys([*Study.model_fields, *SHORT], Any), total=False)  # of a study file


@dataclass(frozen=True)
class StudyResult:
    """A finished study. `front`: the Pareto front of all proposals; `confirmed`: finalists with fresh seeds."""

    study: Study
    trials: tuple[Trial, ...]
    front: tuple[Trial, ...]
    confirmed: tuple[Confirmed, ...]
    out: Path

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        known = {one.of: one for one in self.confirmed}
        return {
            "out": str(self.out),
            "trials": len([trial for trial in self.trials if trial.slot >= 0]),
            "front": [_row(trial, known.get(trial.slot)) for trial in self.front],
            "confirmed": [_row(self.trial(one.of), one) for one in self.confirmed],
        }

    def trial(self, slot: int) -> Trial:
        """The trial of a slot. Raises KeyError."""
        return {trial.slot: trial for trial in self.trials}[slot]

    def __str__(self) -> str:
        """The front as lines of text, the best in the first objective first; and the finalists, the highest mean first.

        What is confirmed best need not be on the front, which the search's own scores decide.
        """
        lines = [f"{len(self.front)} designs on the front of {self.as_dict()['trials']} trials; all is in '{self.out}'"]
        means = {one.of: one.mean.to_text() for one in self.confirmed}
        for trial in self.front:
            values = trial.values or {}
            told = [f"{name} {exact(values[name])}" for name in self.study.objectives if name in values]
            told += [f"confirmed {means[trial.slot]}"] if trial.slot in means else []
            lines.append("  ".join(["", *told, to_text(trial.path)]))
        if means.keys() - {trial.slot for trial in self.front}:
            lines.append(f"means of {self.study.fresh_seeds} fresh seeds, of all that were confirmed")
            for one in self.confirmed:
                told = [f"quality {means[one.of]}", f"in the search {exact(one.search)}"]
                lines.append("  ".join(["", *told, to_text(self.trial(one.of).path)]))
        return "\n".join(lines)

    __repr__ = __str__


def _row(trial: Trial, known: Confirmed | None) -> dict[str, Any]:
    found = {"slot": trial.slot, "arm": trial.arm, "path": to_text(trial.path), "values": dict(trial.values or {})}
    if known is not None:
        found["confirmed"] = {"mean": known.mean.value, "half": known.mean.half, "drop": known.drop}
    return found


def search(
    space: Source | Space | None = None,
    *,
    task: str | Callable[..., Any] | None = None,
    objectives: Sequence[str] | None = None,
    bounds: Mapping[str, Any] | None = None,
    trials: int | None = None,
    workers: int = 1,
    out: str | os.PathLike[str] | None = None,
    storage: str | None = None,
    name: str = NAME,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    **options: Unpack[StudyKeys],
) -> StudyResult:
    """Searches a space for designs that are good at a task and cheap, and gives what was found.

    `task` is a task by name, or a function of a module: it gets a Design and gives its quality, larger is better.
    `config` is a study file or a mapping with its keys; `options` are more of them. `workers` processes evaluate
    trials on this machine. `out` is the folder of the study, `runs/` and the name of the space if absent; `storage` the
    URL of a database, `study.db` in `out` if absent, in which the study is called `name`. Called again with the same
    arguments a study goes on, whatever ended it. Progress goes to standard error.

    Raises TypeError for another key, DesignError and InputError for what is wrong with space, task, bounds, folder or
    storage, and where all trials fail; MissingPartError; KeyboardInterrupt when all workers have ended.
    """
    for module, part in (("optuna", "optuna"), ("moocore", "moocore"), ("sklearn", "scikit-learn")):
        if find_spec(module) is None:
            raise MissingPartError(f"a search needs {part}: pip install 'tensornet-attn[search]'.")
    own = {"space": space, "task": task, "objectives": objectives, "bounds": bounds, "trials": trials}
    if workers < 1:
        raise InputError(f"workers is {workers}; at least one is needed.")
    from tensornet_attn.search.results import write
    from tensornet_attn.search.store import open_store, reached
    from tensornet_attn.search.team import Team, ended

    study = _study({**own, **options}, config, out)
    found = load(study.space)
    folder = Path(out) if out is not None else Path("runs") / found.name
    draft(study, found, 0, ())  # a space that gives nothing is told before anything is made
    address = storage if storage is not None else f"sqlite:///{(folder / DATABASE).resolve()}"
    late = storage is not None and not folder.exists()  # a storage that cannot be reached leaves no folder behind
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
    write(study, found, done, folder)
    return StudyResult(study, tuple(done), tuple(front(study, done)), tuple(confirmed(study, done)), folder)


def _study(chosen: dict[str, Any], config: Any, out: Any) -> Study:
    """The study that is asked for; that of the folder, where nothing is."""
    if callable(chosen["task"]):
        chosen["task"] = name_of(chosen["task"])
    if config is None and chosen["space"] is None and out is not None and (Path(out) / CONFIG).is_file():
        config = Path(out) / CONFIG
    study = read(config, chosen)
    for rung in study.rungs:
        if callable_task(rung.task):
            function_named(rung.task)
    return study
