"""Killed at any moment, a run goes on as if nothing had been: the same losses and weights, bit by bit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensornet_attn as ta
from tests.train import runs

DRIVER = Path(__file__).with_name("killed.py")


def attempt(run: Path, out: Path, place: int, share: float) -> int:
    command = [sys.executable, str(DRIVER), str(run), str(out), str(place), str(share)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def killed_often(tmp_path: Path, kills: int, seed: int, reach: int, of: Callable[..., Any] = runs.everything) -> None:
    steps = 16 + 4 * kills
    run, chance = of(steps=steps), random.Random(seed)
    ta.train(run, out=tmp_path / "whole")
    path, out = tmp_path / "run.json", tmp_path / "killed"
    path.write_text(json.dumps(run))
    codes = [attempt(path, out, chance.randint(1, reach), chance.random()) for _ in range(kills)]
    assert codes == [-9] * kills
    assert not (out / "summary.json").exists()
    ta.train(run, out=out)
    assert runs.curve(out) == runs.curve(tmp_path / "whole")
    assert runs.weights(out, steps) == runs.weights(tmp_path / "whole", steps)


def test_a_run_that_is_killed_twice(tmp_path: Path) -> None:
    killed_often(tmp_path, 2, 3, 100)


def test_a_run_with_a_carried_cache_that_is_killed_twice(tmp_path: Path) -> None:
    killed_often(tmp_path, 2, 5, 100, runs.carrying)


@pytest.mark.slow
def test_a_run_that_is_killed_twenty_times(tmp_path: Path) -> None:
    killed_often(tmp_path, 20, 1, 60)


@pytest.mark.slow
def test_a_run_that_is_killed_from_outside(tmp_path: Path) -> None:
    """Wherever the process happens to be, and gone on with by another one than the test's."""
    run, out = runs.everything(steps=60), tmp_path / "killed"
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    process = subprocess.Popen([sys.executable, str(DRIVER), str(path), str(out), "0", "0"], stderr=subprocess.PIPE)
    while process.poll() is None and not (out / "checkpoints" / "step-00000006").exists():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -9
    assert attempt(path, out, 0, 0) == 0
    ta.train(run, out=tmp_path / "whole")
    assert runs.curve(out) == runs.curve(tmp_path / "whole")
