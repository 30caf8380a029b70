"""What a trial's process computes, here in the test's own: the static check, the runs of a rung, a latency."""

from __future__ import annotations

import json
import threading
from math import log
from pathlib import Path
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.search import training as jobs
from tensornet_attn.search.study import CLIMB, LATENCY, STATIC, Job, NotFiniteError, Rung, Study
from tensornet_attn.search.training import check_first, compute
from tensornet_attn.train.folder import locked
from tests.refusals import refusal
from tests.search import made

RUN = {"steps": 4, "batch": 4, "depth": 1, "width": 16, "mlp": "none", "warmup": 1, "eval_samples": 8}
OPTIONS = {"length": 16, "pairs": 2, "vocabulary": 16}
DESIGN = ta.load("mhsa", legs={"f": 16, "h": 2}).to_yaml()


def job(kind: str, out: Path, design: str = DESIGN, run: dict[str, Any] | None = None, **rest: Any) -> Job:
    rung = Rung(task="mqar", options=OPTIONS, run=RUN | (run or {}), measure=rest.pop("measure", "accuracy"))
    study = Study(space=made.SPACE, rungs=(rung,))
    return Job(kind, study, design, str(out), **{"rates": (1e-3, 2e-3), "seeds": (0, 0), **rest})


def test_the_first_loss(tmp_path: Path) -> None:
    assert abs(compute(job(STATIC, tmp_path)) - log(16)) < 0.5
    assert list(tmp_path.iterdir()) == []


def test_a_first_loss_that_is_far_from_guessing() -> None:
    check_first(log(64) * 1.25 + 0.49, 64)
    assert refusal(check_first, 5.7, 64) == (
        "the first loss is 5.7 nats, but guessing among 64 answers gives 4.16: the design does not keep "
        "activations near unit scale; change its initialisers or scales."
    )


def test_a_first_step_that_is_not_finite(tmp_path: Path) -> None:
    design = DESIGN.replace("scale: d ** -0.5", "scale: 1e38 * 1e38")
    assert design != DESIGN
    with pytest.raises(NotFiniteError) as caught:
        compute(job(STATIC, tmp_path, design))
    assert str(caught.value).startswith("step 1: the loss is nan; the first output that is not finite is in ")


def test_the_runs_of_a_rung(tmp_path: Path) -> None:
    found = compute(job(CLIMB, tmp_path, seeds=(7, 8)))
    assert [folder.rpartition("/")[2] for _, folder in found] == ["rung1-lr0.001-seed7", "rung1-lr0.002-seed8"]
    for rate, seed, (quality, folder) in zip((1e-3, 2e-3), (7, 8), found, strict=True):
        summary = json.loads((tmp_path / folder / "summary.json").read_text())
        assert (summary["eval"]["eval_accuracy"], summary["seed"], summary["steps"]) == (quality, seed, 4)
        lines = (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[0])["lr"] == rate
    losses = compute(job(CLIMB, tmp_path / "other", measure="loss", seeds=(7, 8)))
    assert [quality for quality, _ in losses] == [
        -json.loads((tmp_path / folder / "summary.json").read_text())["eval"]["eval_loss"] for _, folder in found
    ]


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    found = compute(job(CLIMB, tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    assert compute(job(CLIMB, tmp_path)) == found
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_rate_at_which_nothing_is_finite(tmp_path: Path) -> None:
    found = compute(job(CLIMB, tmp_path, run={"clip": 0.0}, rates=(1e-3, 1e30)))
    assert found[0][0] is not None
    assert found[1][0] is None


def test_a_run_that_a_lost_process_still_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, folder), _ = compute(job(CLIMB, tmp_path))
    with locked(tmp_path / folder, True):
        monkeypatch.setattr(jobs, "WAIT", 0.2)
        assert refusal(compute, job(CLIMB, tmp_path)).startswith(f"another process uses '{tmp_path / folder}'")
        monkeypatch.setattr(jobs, "WAIT", 60.0)
        late: list[Any] = []
        thread = threading.Thread(target=lambda: late.append(compute(job(CLIMB, tmp_path))))
        thread.start()
        thread.join(0.3)
        assert late == []
    thread.join(60)
    assert len(late) == 1


def test_a_latency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SECONDS", 0.1)
    assert 0 < compute(job(LATENCY, tmp_path)) < 10
