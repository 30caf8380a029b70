"""Time series from files to a trained classifier of numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensornet_attn as ta
from tensornet_attn.train.trained import open_run
from tests.refusals import refusal
from tests.tasks.test_series import written
from tests.train import runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dimensions of noise; which of them has a jump in the middle is the class."""
    path, chance = tmp_path_factory.mktemp("series"), np.random.default_rng(0)
    for name, count in (("TRAIN", 80), ("TEST", 40)):
        series = [chance.normal(size=(8 - place % 3, 2)) for place in range(count)]
        for place, one in enumerate(series):
            one[3, place % 2] += 4
        written(path / f"Jumps_{name}.ts", series, [("left", "right")[place % 2] for place in range(count)])
    return path


def config(folder: Path, **changes: object) -> dict[str, object]:
    return runs.small(task="uea", options={"path": str(folder)}, **changes)


@pytest.mark.parametrize("pooling", ["mean", "concat"])
def test_a_design_learns_to_tell_series_apart(folder: Path, tmp_path: Path, pooling: str) -> None:
    more = {"steps": 60, "batch": 16, "lr": 0.01, "width": 16, "mlp": "mlp", "eval_every": 60}
    summary = ta.train(config(folder, pooling=pooling, **more), out=tmp_path / "out")
    assert summary["eval"]["eval_accuracy"] >= 0.8
    assert open_run(tmp_path / "out").judge("test").means()["accuracy"] >= 0.8


def test_precisions_and_parts_take_numbers_too(folder: Path, tmp_path: Path) -> None:
    losses = []
    for name, more in (
        ("a", {}),
        ("b", {"precision": "bf16-true"}),
        ("c", {"precision": "bf16"}),
        ("d", {"accumulate": 2}),
    ):
        ta.train(config(folder, steps=2, **more), out=tmp_path / name)
        losses.append(runs.curve(tmp_path / name)[0]["loss"])
    assert losses == pytest.approx([losses[0]] * 4, rel=0.05)
    assert losses[3] == pytest.approx(losses[0], rel=1e-6)


def test_a_model_of_tokens_takes_no_series(folder: Path, tmp_path: Path) -> None:
    model = {"kind": "sequence_classifier", "length": 8, "width": 8, "classes": 2, "layers": ["mhsa"]}
    changes = dict.fromkeys(("design", "legs", "mlp", "width", "depth"))
    for sizes, message in (
        ({"vocabulary": 9}, "task 'uea' has 2 numbers at each position; 'own' takes tokens."),
        ({"features": 3}, "task 'uea' has 2 numbers at each position; 'own' takes 3 numbers at each position."),
    ):
        run = config(folder, **changes) | {"model": {"tensornet": 1, "name": "own", "model": model | sizes}}
        assert refusal(ta.train, run, out=tmp_path / "out") == message
