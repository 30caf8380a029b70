"""Killed with -9 at any moment: every trial is finished, none is lost, none is done twice, nothing runs on alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.search import kills
from tests.search.engine import opened
from tests.search.kills import (
    below,
    command,
    done_once,
    finish,
    kill_workers,
    proposed,
    quick,
    wait_for,
    wait_for_trials,
    workers_of,
)


def test_workers_that_are_killed_twice(tmp_path: Path) -> None:
    out = tmp_path / "out"
    search = command(out, quick(trials=4), workers=4)
    assert kill_workers(search, 2, seed=1, longest=0.5) == 2
    assert finish(search)[0] == 0
    done_once(out)


@pytest.mark.slow
def test_workers_that_are_killed_twelve_times(tmp_path: Path) -> None:
    out = tmp_path / "out"
    search = command(out, quick(trials=20, finalists=2), workers=4)
    assert kill_workers(search, 12, seed=2) == 12
    assert finish(search)[0] == 0
    trials = done_once(out)
    assert sum(trial.slot >= 0 for trial in trials) == 40
    assert sum(trial.slot < 0 for trial in trials) >= 10


@pytest.mark.slow
def test_one_worker_killed_and_gone_on_with(tmp_path: Path) -> None:
    """The whole command is killed in the middle; the same one then proposes what it would have, byte for byte."""
    study = quick(trials=3)
    whole = command(tmp_path / "whole", study, workers=1)
    out = tmp_path / "killed"
    search = command(out, study, workers=1)
    wait_for_trials(search, out, 2)
    left = below(search.pid)
    search.kill()
    finish(search)
    wait_for(lambda: not any(map(kills.line_of, left)))  # nothing runs on alone
    assert finish(command(out, study, workers=1))[0] == 0
    assert finish(whole)[0] == 0
    assert list(proposed(done_once(out))) == list(proposed(done_once(tmp_path / "whole")))


@pytest.mark.slow
def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C frees what was being done, leaves no process behind, and says how to go on."""
    out, study = tmp_path / "out", quick(trials=30, baseline=False)  # some are left, however busy the machine
    search = command(out, study, workers=2)
    wait_for_trials(search, out, 1)
    left = below(search.pid)
    assert len(workers_of(search.pid)) == 2
    os.kill(search.pid, signal.SIGINT)
    code, err = finish(search)
    assert code == 130
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: interrupted: ")
    assert last.endswith(" of 30 trials are finished; the same command resumes the study.")
    wait_for(lambda: not any(map(kills.line_of, left)))
    store = opened(out, study)
    assert store.look()[1] == []
    store.close()
    assert finish(command(out, study, workers=1))[0] == 0
    done_once(out)


@pytest.mark.slow
def test_training_that_is_killed(tmp_path: Path) -> None:
    """Runs go on from their checkpoints: the same qualities, bit by bit, as those of a study that nothing has ended."""
    run = {"steps": 60, "batch": 4, "depth": 1, "width": 16, "mlp": "none", "eval_samples": 64, "save_every": 3}
    rung = {"task": "mqar", "options": {"length": 16, "pairs": 2, "vocabulary": 16}, "run": run, "rates": (1e-3, 4e-3)}
    study = quick(rungs=(rung,), trials=2, finalists=1)
    whole = command(tmp_path / "whole", study, workers=1)
    search = command(tmp_path / "killed", study, workers=1)
    assert kill_workers(search, 4, seed=3) >= 1
    assert finish(search)[0] == 0
    assert finish(whole)[0] == 0
    assert list(proposed(done_once(tmp_path / "killed"))) == list(proposed(done_once(tmp_path / "whole")))
