"""Two processes over gloo: the losses of one, and checkpoints that any number of processes goes on from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tensornet_attn as ta
from tests.train import runs

DRIVER = Path(__file__).with_name("processes.py")


def two(tmp_path: Path, run: dict[str, Any], out: Path, *launcher: str) -> None:
    """A run on two processes."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    command = [sys.executable, *launcher, str(DRIVER), str(path), str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "summary.json").read_text())["processes"] == 2


def numbers(out: Path, *names: str) -> list[float]:
    return [line[name] for line in runs.curve(out) for name in names if name in line]


def same(one: Path, other: Path, within: float) -> None:
    for name, more in (("loss", 1), ("eval_loss", 1), ("eval_accuracy", 1), ("grad_norm", 10)):
        found = numbers(other, name)
        assert found
        assert found == pytest.approx(numbers(one, name), rel=within * more)


def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    ta.train(runs.spread(), out=tmp_path / "one")
    two(tmp_path, runs.spread(devices=2), tmp_path / "two")
    same(tmp_path / "one", tmp_path / "two", 1e-6)
    auxiliary = [numbers(tmp_path / out, "loss/layers.0.mlp.size") for out in ("one", "two")]
    assert len(auxiliary[0]) == 8
    assert auxiliary[0] == pytest.approx(auxiliary[1], rel=1e-6)


def test_two_processes_go_on_with_a_carried_cache(tmp_path: Path) -> None:
    run = runs.carrying(schedule="constant", steps=8)
    run["model"]["model"] |= {"dropout": 0.0}
    ta.train(run, out=tmp_path / "one")
    ta.train(run | {"steps": 4}, out=tmp_path / "both")
    two(tmp_path, run | {"devices": 2}, tmp_path / "both")
    found, wanted = (numbers(tmp_path / name, "loss") for name in ("both", "one"))
    assert found == pytest.approx(wanted, rel=1e-6)
    assert numbers(tmp_path / "both", "eval_loss")[-1] == pytest.approx(numbers(tmp_path / "one", "eval_loss")[-1])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("first", [1, 2])
def test_another_number_of_processes_goes_on(tmp_path: Path, strategy: str, first: int) -> None:
    """One process, then two, or the other way round; half of the steps each."""
    ta.train(runs.spread(), out=tmp_path / "one")
    out = tmp_path / "both"
    many = {"devices": 2, "strategy": strategy}
    if first == 2:
        two(tmp_path, runs.spread(steps=4, **many), out)
        ta.train(runs.spread(), out=out)
    else:
        ta.train(runs.spread(steps=4), out=out)
        two(tmp_path, runs.spread(**many), out)
    assert [line["step"] for line in runs.curve(out) if "loss" in line] == list(range(1, 9))
    steps = [(line["step"], line["loss"]) for line in runs.curve(out) if "loss" in line]
    whole = [(line["step"], line["loss"]) for line in runs.curve(tmp_path / "one") if "loss" in line]
    assert steps == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in whole]


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    ta.train(runs.small(), out=tmp_path / "one")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    two(tmp_path, runs.small(), tmp_path / "two", *launcher)
    same(tmp_path / "one", tmp_path / "two", 1e-6)


@pytest.mark.slow
def test_what_two_processes_refuse(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(runs.small(devices=2, batch=1)))
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(path), str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "a batch of 1 is too small for 2 processes x 1 parts: set 'batch' to at least 2." in done.stderr
