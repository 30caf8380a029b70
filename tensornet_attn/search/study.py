"""Studies: space, rungs, objectives and bounds, the files of a study's folder, and the jobs of its trials.

Jobs of tasks that are user functions are also computed here, without torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from inspect import signature
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tensornet_attn import compiler
from tensornet_attn.errors import InputError
from tensornet_attn.files import check_own, write_whole
from tensornet_attn.named import named
from tensornet_attn.search.space import COSTS, Space, Values
from tensornet_attn.spec.yaml import dump, parse
from tensornet_attn.tasks.recipe import Recipe

Count = Annotated[int, Field(ge=1, lt=2**40)]
Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Score = Literal["best", "mean"]
OBJECTIVES = ("quality", *COSTS, "latency")  # quality is maximised, all others are minimised
ARMS = ("evolution", "random")
SEEDS = 1000  # number of training seeds of designs; the seeds of confirmations follow


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Limit(_Model):
    """A bound on an objective: the smallest and the largest value."""

    least: float = float("-inf")
    most: float = float("inf")


class Rung(_Model):
    """A task on which candidates are trained, with equal compute for each learning rate of `rates`.

    `run`: keys of a run file, such as steps, batch, depth or mlp. `keep`: the share of candidates that are promoted to
    the next rung, by non-dominated rank (1 / ASHA's reduction factor). `measure`: `accuracy`, or `loss`; quality is
    then the negative loss in nats. `score`: `best` over the learning rates, with one seed for all; or `mean`, with a
    seed for each, for tasks where the seed determines whether a design learns at all.
    """

    task: str
    options: dict[str, Any] = {}
    run: dict[str, Any] = {}
    rates: Annotated[tuple[Rate, ...], Field(min_length=1, strict=False)] = (1e-3, 2e-3, 4e-3)
    keep: Share = 1 / 3
    measure: Literal["accuracy", "loss"] = "accuracy"
    score: Score = "best"

    @property
    def calls(self) -> bool:
        """Whether the task is a function of the user; a study in progress has recorded the samples of a recipe."""
        return ":" in self.task and "task_samples" not in self.run


class Study(_Model):
    """A study, as stored in `study.yaml`. With one worker, equal studies propose equal designs.

    `trials`: number of different designs per arm; the arms are evolution and, with `baseline`, random search. `bounds`:
    by objective; bounds on costs are checked before training. `finalists`: number of designs per arm that are trained
    again with `fresh_seeds` unused seeds. `seconds` and `gibibytes`: limits of one trial, time and memory.
    """

    study: Literal[1] = 1
    space: dict[str, Any]
    rungs: Annotated[tuple[Rung, ...], Field(min_length=1, strict=False)]
    objectives: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = ("quality", "macs")
    bounds: dict[str, Limit] = {}
    trials: Count = 40
    baseline: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    population: Count = 8
    tournament: Count = 4
    crossover: Annotated[float, Field(ge=0, le=1)] = 0.3
    finalists: Annotated[int, Field(ge=0)] = 2
    fresh_seeds: Annotated[int, Field(ge=5)] = 5
    seconds: Rate = 3600.0
    gibibytes: Rate | None = None
    threads: Count = 1

    @model_validator(mode="after")
    def _known(self) -> Study:
        for name in (*self.objectives, *self.bounds):
            if name not in OBJECTIVES:
                context = {"name": name, "known": ", ".join(OBJECTIVES)}
                raise PydanticCustomError("objective", "there is no objective '{name}'; choose from {known}", context)
            if self.objectives.count(name) > 1:
                message = "the objective '{name}' is given twice: remove one"
                raise PydanticCustomError("objective", message, {"name": name})
        for name, limit in self.bounds.items():
            if not limit.least <= limit.most:  # also rejects nan
                message = "the bound on '{name}' has least {least} above most {most}; e.g. 1000000, or {example}"
                ends = {"name": name, "least": f"{limit.least:g}", "most": f"{limit.most:g}"}
                raise PydanticCustomError("bound", message, {**ends, "example": "{least: 1000, most: 1000000}"})
        return self

    @property
    def arms(self) -> tuple[str, ...]:
        return ARMS if self.baseline else ARMS[:1]

    @property
    def proposals(self) -> int:
        """The number of slots for proposals; slot s belongs to arm s modulo the number of arms."""
        return self.trials * len(self.arms)

    def seed_of(self, essence: str, index: int = 0) -> int:
        """The training seed of a design. Designs have different seeds, so that no seed favours a family of designs.

        `index`: that of the learning rate, if each has its own seed.
        """
        shift: int = SEEDS**index
        return (self.seed + int(essence, 16) // shift % SEEDS) % 2**63

    def fresh_seed(self, index: int) -> int:
        """The seed of a confirmation, which the search does not use."""
        return (self.seed + SEEDS + index) % 2**63


def space_data(space: Space) -> dict[str, Any]:
    """A space as data with its bases written out; `search.load` reads it back to a space with the same hash."""

    def numbers(varied: Mapping[str, Values]) -> dict[str, Any]:
        return {
            name: {"choices": list(values.items)}
            if values.items
            else {"log" if values.log else "range": [values.low, values.high]}
            for name, values in varied.items()
        }

    alternatives: dict[str, dict[str, Any]] = {}
    for step, choices in space.alternatives.items():
        for name, alternative in choices.items():  # the step itself, and its other steps
            steps = dict(alternative.change["diagram"])
            replacement, rest = (
                {"step": steps.pop(step)},
                {key: section for key, section in alternative.change.items() if key != "diagram"},
            )
            alternatives.setdefault(step, {})[name] = {**rest, **({"steps": steps} if steps else {}), **replacement}
    bounds = {"n": space.bounds.n, "batch": space.bounds.batch}
    content = {
        "space": 1,
        "name": space.name,
        "about": space.about,
        "base": [dict(base) for base in space.bases.values()],
        "legs": numbers(space.legs),
        "settings": numbers(space.settings),
        "alternatives": alternatives,
        "moves": {name: numbers(options) for name, options in space.moves.items()},
        "most": space.most,
        "bounds": bounds | {name: _limit(least, most) for name, least, most in space.bounds.limits},
    }
    return {key: section for key, section in content.items() if section not in ({}, "")}


def study_data(study: Study) -> dict[str, Any]:
    """A study as data, which `study_file.read` reads back. Key order matters: it orders the steps of designs."""
    content = study.model_dump(mode="json", exclude_none=True)
    return {**content, "bounds": {name: _limit(limit.least, limit.most) for name, limit in study.bounds.items()}}


def _limit(least: float, most: float) -> dict[str, float]:
    return {name: end for name, end in (("least", least), ("most", most)) if isfinite(end)}


def yaml_of(study: Study) -> str:
    return dump(study_data(study))


FREE = ("trials", "finalists", "seconds", "gibibytes", "threads")  # keys that may change when a study resumes


def decisive(study: Study) -> dict[str, Any]:
    """The keys that must not change when a study resumes."""
    keys = {key: value for key, value in study_data(study).items() if key not in FREE}
    keys["space"] = {key: value for key, value in keys["space"].items() if key not in ("name", "about")}
    return dict(json.loads(json.dumps(keys)))  # as read back from a store


def check_same(study: Study, there: Mapping[str, Any], where: str, hint: str) -> None:
    """Raises InputError with the first difference and the hint if `where` has another study."""
    decisive_keys = decisive(study)
    if decisive_keys == there:
        return
    from tensornet_attn.train.folder import difference  # imports torch, which takes seconds

    mismatch = difference(decisive_keys, there)
    assert mismatch is not None
    path, message = mismatch
    what = "space" if path.split(".")[0] == "space" else "study"
    raise InputError(f"{where} belongs to another {what}: {message}; {hint}.")


CONFIG, DATABASE, RUNS, LOGS = "study.yaml", "study.db", "trials", "logs"
NAME = "search"  # default name of a study in its database


def run_folder(design: str, rung: int, rate: float, seed: int) -> str:
    """The folder of a run, relative to the study's folder, determined by the arguments.

    >>> run_folder("tensornet: 1", 1, 1e-3, 0)
    'trials/0640dca63934/rung1-lr0.001-seed0'
    """
    return f"{RUNS}/{sha256(design.encode()).hexdigest()[:12]}/rung{rung}-lr{rate!r}-seed{seed}"


def log_of(out: Path, slot: int) -> Path:
    """The log file of the processes of a slot."""
    return out / LOGS / f"slot{slot}.log"


def prepare(study: Study, out: Path) -> None:
    """Creates the folder, or checks that it has this study.

    Raises InputError for another study or files of others, and OSError.
    """
    check_own(out, LOGS, CONFIG, DATABASE)
    (out / LOGS).mkdir(parents=True, exist_ok=True)
    path = out / CONFIG
    if path.exists():
        stored = read_study(path)
        check_same(study, decisive(stored), f"'{out}'", "choose another --out")
        if study.trials < stored.trials:
            raise InputError(
                f"'{out}' has a study of {stored.trials} trials, more than {study.trials}: choose another --out."
            )
        if study == stored:
            return
    write_whole(path, yaml_of(study).encode())


def read_study(path: Path) -> Study:
    """The study of `study.yaml`. Raises InputError if it is invalid."""
    try:
        return Study(**parse(path.read_text(encoding="utf-8"), os.fspath(path))[0].data)
    except (ValidationError, TypeError) as error:
        raise InputError(f"'{path}' has no study that this version can read: choose another --out.") from error


STATIC, CLIMB, LATENCY = "static", "climb", "latency"


@dataclass(frozen=True)
class Job:
    """One job of a trial.

    `kind`: static, climb or latency. `design`: YAML text. `out`: the folder of the study. `rung`: counted from 1.
    `seeds`: one for each of `rates`; one seed if there are no rates.
    """

    kind: str
    study: Study
    design: str
    out: str
    rung: int = 1
    rates: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (0,)


class NotFiniteError(InputError):
    """Loss or gradient of a job are not finite."""


def own_task(task: str) -> Any:
    """The Recipe or the function of the name `module:name`. Raises InputError if it cannot be imported."""
    return named(task, "task", "a Recipe or a function", (Recipe, Callable))


def called(job: Job) -> list[tuple[float | None, str]]:
    """Calls a user function with the Design and returns (quality, folder) of each call; quality None if not finite.

    The function also receives the arguments that it has parameters for: `seed`; `rate`, with one call per learning
    rate; `folder`, a Path that is the same in a repeated call.
    """
    task = job.study.rungs[job.rung - 1].task
    function = own_task(task)
    parameters = signature(function).parameters
    design = compiler.load(job.design)
    outcomes = []
    for rate, seed in list(zip(job.rates, job.seeds, strict=True))[: None if "rate" in parameters else 1]:
        folder = run_folder(job.design, job.rung, rate, seed)
        arguments: dict[str, Any] = {"seed": seed, "rate": rate, "folder": Path(job.out) / folder}
        if "folder" in parameters:
            arguments["folder"].mkdir(parents=True, exist_ok=True)
        quality = function(design, **{name: number for name, number in arguments.items() if name in parameters})
        try:
            number = float(quality)
        except (TypeError, ValueError):
            raise InputError(f"the task '{task}' returned {quality!r}; return a number, larger is better.") from None
        outcomes.append((number if isfinite(number) else None, folder if "folder" in parameters else ""))
    return outcomes
