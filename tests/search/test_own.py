"""Studies on a user's own recipe, beside those on a user's function: by name or as objects, in a task or in rungs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.search import training
from tensornet_attn.search.study import CLIMB, Job, Study, prepare
from tensornet_attn.search.study_file import callable_task, read
from tensornet_attn.tasks.task import recipe_named
from tests import own_modules
from tests.refusals import refusal
from tests.search import functions, made

NAME = "own_task:parity"
FUNCTION = "tests.search.functions:quality"
LAST = {"task": NAME, "options": {"length": 6}, "run": {"steps": 2, "batch": 4, "depth": 1, "mlp": "none"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_modules.write(monkeypatch, tmp_path, "own_task")
    return tmp_path


def study(task: Any = NAME) -> Study:
    return read({"space": made.SPACE, "rungs": [LAST | {"task": task}]}, {})


def test_a_recipe_is_trained_and_a_function_is_called(folder: Path) -> None:
    recipe = recipe_named(NAME)
    assert [callable_task(task) for task in ("mqar", NAME, FUNCTION)] == [False, False, True]
    assert study(recipe) == study()
    single = {"space": made.SPACE, **LAST, "task": recipe}
    assert [rung.task for rung in read(single, {}).rungs] == ["mqar", NAME]  # a task to train on is the second rung
    assert [rung.task for rung in read({"space": made.SPACE}, {"task": functions.quality}).rungs] == [FUNCTION]
    assert read(single, {}).rungs[1] == study().rungs[0]
    hash_of = ta.tasks.task_named(recipe, length=6).samples_hash
    assert study().rungs[0].run == LAST["run"] | {"width": 16, "task_samples": hash_of}


def test_its_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    design = ta.load("mhsa", legs={"f": 16, "h": 2}).to_yaml()
    job = Job(CLIMB, study(), design, str(folder), rates=(1e-3,))
    ((quality, run),) = training.compute(job)
    assert 0 <= quality <= 1
    assert f"task: {NAME}" in (folder / run / "run.yaml").read_text()
    other = own_modules.PARITY.replace("bits.sum(1) % 2", "bits[:, 0]")
    own_modules.write(monkeypatch, folder, "own_task", other)
    told = refusal(training.compute, Job(CLIMB, job.study, design, str(folder / "other"), rates=(1e-3,)))
    assert told.startswith(f"task '{NAME}' makes other samples than in the run")


def test_a_study_does_not_resume_with_another_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(study(), folder / "out")
    prepare(study(), folder / "out")
    own_modules.write(monkeypatch, folder, "own_task", own_modules.PARITY.replace("bits.sum(1) % 2", "bits[:, 0]"))
    told = refusal(prepare, study(), folder / "out")
    assert told.startswith(f"'{folder / 'out'}' belongs to another study: 'rungs[0].run.task_samples' is ")


def test_mistakes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "own_task.py"
    assert refusal(study, "own_task:prity") == (
        f"the task 'own_task:prity': module 'own_task' ('{file}') has no 'prity'; did you mean 'parity'?"
    )
    assert refusal(study, "own_task:__name__") == (
        f"the task 'own_task:__name__': '__name__' of module 'own_task' ('{file}') is not a Recipe or a function: "
        "'own_task'; known here: Options, parity."
    )
    recipe = recipe_named(NAME)
    here = ta.tasks.Recipe("here", 1, "", recipe.options, recipe.open)
    monkeypatch.setattr(sys.modules["__main__"], "here", here, raising=False)
    assert refusal(study, here) == "the processes of trials cannot import '__main__:here': move it to a module."


@pytest.mark.slow
def test_a_whole_study(folder: Path) -> None:
    found = ta.search(
        made.SPACE, task=recipe_named(NAME), options={"length": 6}, run=LAST["run"], rates=[0.01], trials=1,
        finalists=0, baseline=False, out=folder / "out",
    )  # fmt: skip
    assert [trial.state for trial in found.trials] == ["complete"]
    assert found.trials[0].rung == 2
    assert NAME in (folder / "out" / "report.html").read_text()
