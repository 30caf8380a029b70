"""Runs on a user's own recipe: trained, resumed, evaluated and compared, and refused if the recipe has changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.tasks.task import recipe_named
from tensornet_attn.train.config import read
from tensornet_attn.train.trained import open_run
from tests import own_modules
from tests.refusals import refusal
from tests.train import runs

NAME = "own_task:parity"


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_modules.write(monkeypatch, tmp_path, "own_task")
    return tmp_path / "out"


def own(task: Any = NAME, **changes: Any) -> dict[str, Any]:
    return runs.small(task=task, options={"length": 6}, **{"steps": 4, **changes})


def test_by_name_and_as_an_object(out: Path) -> None:
    summary = ta.train(own(), out=out)
    assert (summary["task"], summary["options"]["length"]) == (NAME, 6)
    for place, run in enumerate((own(recipe_named(NAME)), own("mqar") | {"task": recipe_named(NAME)})):
        ta.train(run, out=out.with_name(f"again{place}"))
        assert runs.curve(out.with_name(f"again{place}")) == runs.curve(out)
    ta.train({}, out=out.with_name("option"), **own(recipe_named(NAME)))
    stored = read(out / "run.yaml", {})
    assert (stored.task, stored.task_version, len(stored.task_samples or "")) == (NAME, 1, 16)
    assert read(out.with_name("option") / "run.yaml", {}) == stored
    trained = open_run(out)
    assert trained.judge("validation", 20).means()["loss"] == pytest.approx(summary["eval"]["eval_loss"], rel=1e-6)


def test_resumed(out: Path) -> None:
    whole = out.with_name("whole")
    ta.train(own(steps=8, schedule="constant"), out=whole)
    ta.train(own(steps=4, schedule="constant"), out=out)
    ta.train(own(recipe_named(NAME), steps=8, schedule="constant"), out=out)
    assert runs.curve(out)[-1] == runs.curve(whole)[-1]
    assert runs.weights(out, 8) == runs.weights(whole, 8)


def test_a_recipe_that_has_changed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ta.train(own(), out=out)
    folder = out.parent
    other = own_modules.PARITY.replace('"targets": bits.sum(1) % 2', '"targets": 1 - bits.sum(1) % 2')
    own_modules.write(monkeypatch, folder, "own_task", other)
    told = refusal(ta.train, own(steps=4), out=out)
    assert told.startswith(f"'{out}' has another run: 'task_samples' is ")
    assert told.endswith(f" here, because the recipe of '{NAME}' makes other samples now; choose another --out.")
    assert refusal(open_run, out) == (
        f"task '{NAME}' makes other samples than in the run, so its recipe has changed: restore it, or train again "
        "with another --out."
    )
    own_modules.write(monkeypatch, folder, "own_task", own_modules.PARITY.replace('"parity", 1', '"parity", 2'))
    assert refusal(ta.train, own(), out=out) == (
        f"'{out}' has another run: 'task_version' is 1 there and 2 here; choose another --out."
    )
    assert refusal(open_run, out) == f"the run needs version 1 of task '{NAME}'; its module has version 2."


def test_a_recipe_that_is_gone_or_has_moved(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = ta.train(own(), out=out)
    folder = out.parent
    own_modules.write(monkeypatch, folder, "moved_task")
    (folder / "own_task.py").unlink()
    sys.modules.pop("own_task")
    assert refusal(open_run, out) == (
        f"the task '{NAME}': there is no module 'own_task' in the working directory or on PYTHONPATH; "
        "did you mean 'moved_task'?"
    )
    moved = open_run(out, task="moved_task:parity")
    assert moved.judge("validation", 20).means()["loss"] == pytest.approx(summary["eval"]["eval_loss"], rel=1e-6)
    assert ta.train(own("moved_task:parity"), out=out) == summary
    text = own_modules.PARITY.replace("parity = Recipe", "odd = Recipe")
    own_modules.write(monkeypatch, folder, "moved_task", text)
    assert refusal(ta.train, own("moved_task:odd"), out=out) == (
        f"'{out}' has another run: 'task' is parity there and odd here; choose another --out."
    )


def test_other_samples_are_another_section(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ta.train(own(), out=out / "a")
    ta.train(own(seed=1), out=out / "b")
    text = own_modules.PARITY.replace("bits.sum(1) % 2", "bits[:, 0]")
    own_modules.write(monkeypatch, out.parent, "own_task", text)
    ta.train(own(), out=out / "c")
    sections = ta.compare([out / name for name in "abc"]).sections
    assert [[row.seeds for row in section.rows] for section in sections] == [[[0, 1]], [[0]]]
    for section in sections:
        assert section.task.startswith(f"{NAME} (task samples ")


def test_samples_in_a_cache_are_those_of_the_recipe(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe of another project, with the same name and version, has other samples in the same folder."""
    cache = out.parent / "cache"

    def first(name: str = NAME) -> list[int]:
        return ta.tasks.task_named(name, length=4, cache=cache).samples("train", 0, 6).targets.tolist()

    once = first()
    own_modules.write(monkeypatch, out.parent, "own_task", own_modules.PARITY.replace("bits.sum(1) % 2", "bits[:, 0]"))
    assert first() != once
    own_modules.write(monkeypatch, out.parent, "own_task")
    assert first() == once


def test_what_opens_a_recipe_returns_a_source(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = own_modules.PARITY.replace("return Source(", "return (")
    own_modules.write(monkeypatch, out.parent, "own_task", text.replace(', classes=("even", "odd"))', ")"))
    assert refusal(ta.train, own(), out=out).startswith("task 'parity': 'open' returned ('classification', ")


def test_on_the_command_line(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensornet_attn.cli import main

    line = "train --design mhsa --legs h=2 --width 8 --steps 2 --options length=6 --no-tensorboard --out out --task"
    assert main([*line.split(), "own_tsk:parity"]) == 1
    assert "did you mean 'own_task'?" in capsys.readouterr().err
    assert main([*line.split(), NAME]) == 0
    assert main(["evaluate", "out", "--samples", "9"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"mhsa on {NAME}: 2 steps in ")
    assert told[1].startswith(f"mhsa on {NAME}, validation, step 2: loss ")
