"""Run files: what is wrong is told at its place, what is wrong with an option by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensornet_attn.errors import DesignError, InputError
from tensornet_attn.train.config import read
from tests.refusals import refusal

FILE = """\
run: 1
task: mqar
design: mhsa
lr: 1e-3
betas: [0.9, 0.95]
"""


def told(tmp_path: Path, text: str, **options: Any) -> list[str]:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises((DesignError, InputError)) as error:
        read(path, options)
    return [line for line in str(error.value).replace(f"{tmp_path}/", "").splitlines() if not line.startswith("    ")]


def test_options_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    run = read(path, {"lr": 0.5, "steps": 7})
    assert (run.task, run.design, run.lr, run.steps, run.betas) == ("mqar", "mhsa", 0.5, 7, (0.9, 0.95))
    assert read(path, {}).lr == 1e-3
    assert read(None, {"task": "copy", "design": "mhsa"}) == read({"task": "copy", "design": "mhsa"}, {})


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("run: 1\ntask: mqar\nmodel: sub/model.yaml\n")
    assert read(path, {}).model == str(tmp_path / "sub" / "model.yaml")
    assert read(path, {"model": "sub/model.yaml"}).model == "sub/model.yaml"


PLACES = [
    (
        "task: mqar\n",
        ["run.yaml:1:1: version: expected version 1 of run files, got nothing.", "  hint: write 'run: 1'."],
    ),
    (
        FILE + "stepps: 5\n",
        ["run.yaml:6:1: unknown-key: there is no key 'stepps' here.", "  hint: did you mean 'steps'?"],
    ),
    (
        FILE + "steps: -5\n",
        [
            "run.yaml:6:8: wrong-value: input should be greater than or equal to 1, got -5.",
            "  hint: 'steps' is the number of optimiser steps.",
        ],
    ),
    (
        FILE + "schedule: step\n",
        [
            "run.yaml:6:11: wrong-value: input should be 'cosine', 'linear' or 'constant', got the text 'step'.",
            "  hint: 'schedule' is the schedule after the warm-up: cosine, linear or constant.",
        ],
    ),
    (
        FILE.replace("task: mqar\n", ""),
        ["a run needs 'task': a task by name, e.g. mqar, or your recipe as module:name."],
    ),
    (FILE.replace("design: mhsa\n", ""), ["a run needs a 'model' or a 'design'."]),
    (FILE + "batch: 2\naccumulate: 4\n", ["a batch of 2 cannot have 4 parts: reduce 'accumulate'."]),
    ("", ["'run.yaml' is not a run file: it must be a mapping that begins with 'run: 1'."]),
    ("- 1\n", ["'run.yaml' is not a run file: it must be a mapping that begins with 'run: 1'."]),
    (
        "run: 1\ntask: mqar\nmodel:\n  tensornet: 1\n  model:\n    kind: language_modell\n",
        [
            "run.yaml:6:11: wrong-value: the text 'language_modell' is not a kind of model.",
            "  hint: did you mean 'language_model'?",
        ],
    ),
    (
        FILE + "mlp: null\nmlp_legs: {g: 8}\n",
        ["sizes and settings of an MLP need a design: name it as 'mlp'."],
    ),
    (FILE + "vocabulary: 9\n", ["'vocabulary' is set by the task: leave it out."]),
]


@pytest.mark.parametrize(("text", "lines"), PLACES)
def test_places(tmp_path: Path, text: str, lines: list[str]) -> None:
    assert told(tmp_path, text) == lines


OPTIONS = [
    ({"lr": -1.0}, "option 'lr': input should be greater than 0, got -1.0; it is the maximum learning rate."),
    ({"lrr": 1.0}, "a run has no option 'lrr': did you mean 'lr'?"),
    (
        {"precision": "8"},
        "option 'precision': input should be '32', 'bf16' or 'bf16-true', got the text '8'; it is 32, bf16 or "
        "bf16-true.",
    ),
    (
        {"dropout": 1.0},
        "option 'dropout': expected a number from 0 up to but not including 1, got 1.0; it is a share from 0 "
        "up to but not including 1.",
    ),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    assert told(tmp_path, FILE, **options) == [message]


def test_a_file_that_is_not_there() -> None:
    assert refusal(read, "no.yaml", {}) == "'no.yaml' cannot be read: No such file or directory."
