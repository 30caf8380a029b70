"""Whole studies, with tasks that take no time: begun, gone on with, refused."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.report.words import counted
from tensornet_attn.search.rank import confirmed
from tensornet_attn.search.space import to_text
from tensornet_attn.search.start import StudyResult
from tensornet_attn.search.study import CONFIG, read_study
from tensornet_attn.search.team import Team
from tests.refusals import refusal
from tests.search import functions, made
from tests.search.engine import opened

SMALL: dict[str, Any] = {"trials": 3, "population": 2, "finalists": 0}


def searched(out: Path, task: Any = functions.quality, **rest: Any) -> StudyResult:
    return ta.search(**{"space": made.SPACE, "task": task, "out": out, **SMALL, **rest})


def test_a_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = searched(tmp_path, finalists=1, baseline=False)
    assert [trial.slot for trial in found.trials if trial.slot >= 0] == [0, 1, 2]
    assert [trial.how for trial in found.trials if trial.slot >= 0] == ["seed", "seed", "seed"]
    fresh = [trial for trial in found.trials if trial.slot < 0]
    assert {trial.fresh for trial in fresh} == {1000, 1001, 1002, 1003, 1004}
    assert [one.of for one in found.confirmed] == [fresh[0].of]
    for trial in found.trials:
        seed = found.study.seed_of(trial.essence) if trial.fresh is None else trial.fresh
        assert trial.quality == functions.quality(ta.load(trial.design), seed)
    assert str(found).startswith(
        f"{counted(len(found.front), 'design')} on the front of 3 trials; results: '{tmp_path}'\n  quality "
    )
    assert json.loads(json.dumps(found.as_dict()))["front"][0]["slot"] == found.front[0].slot
    assert read_study(tmp_path / CONFIG) == found.study
    assert opened(tmp_path, found.study).look() == (list(found.trials), [])
    assert {path.name for path in (tmp_path / "logs").iterdir()} >= {"slot0.log", "workers.log"}
    assert (tmp_path / "report.html").exists()
    capfd.readouterr()
    assert str(searched(tmp_path, finalists=1, baseline=False)) == str(found)
    assert capfd.readouterr().err == ""


def test_workers_that_end_between_two_looks_leave_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = Team.works

    def when_all_have_ended(team: Team, finished: int) -> bool:
        for worker in team.members:
            worker.wait()
        return works(team, finished)

    monkeypatch.setattr(Team, "works", when_all_have_ended)
    assert [trial.slot for trial in searched(tmp_path, baseline=False).trials] == [0, 1, 2]


def test_the_best_by_fresh_seeds_is_told_where_it_is_not_on_the_front(tmp_path: Path) -> None:
    study = made.study(objectives=("quality",), baseline=False, finalists=2)
    searched = [made.trial(0, "evolution", 0.9), made.trial(2, "evolution", 0.8, path=made.path("gqa", h=4))]
    fresh = [
        made.trial(-1 - 5 * of - seed, "confirm", quality, of=of, fresh=1000 + seed)
        for of, quality in ((0, 0.5), (2, 0.75))
        for seed in range(5)
    ]
    found = StudyResult(
        study, (*searched, *fresh), (searched[0],), tuple(confirmed(study, [*searched, *fresh])), tmp_path
    )
    assert str(found).splitlines()[1:] == [
        "  quality 0.9  confirmed 0.5 ± 0  mhsa",
        "all finalists: means of 5 fresh seeds",
        "  quality 0.75 ± 0  in the search 0.8  gqa; h = 4",
        "  quality 0.5 ± 0  in the search 0.9  mhsa",
    ]
    told = found.as_dict()["confirmed"]
    assert [(one["slot"], one["confirmed"]["mean"]) for one in told] == [(2, 0.75), (0, 0.5)]


@pytest.mark.slow
def test_more_trials(tmp_path: Path) -> None:
    """They come to those that there are, and a study that was shorter cannot be asked for."""
    few = searched(tmp_path, trials=1)
    many = searched(tmp_path, trials=2)
    assert many.trials[:2] == few.trials
    assert [trial.slot for trial in many.trials] == [0, 1, 2, 3]
    wanted = f"'{tmp_path}' has a study of 2 trials, more than 1: choose another --out."
    assert refusal(searched, tmp_path, trials=1) == wanted
    alone = ta.search(out=tmp_path)
    assert alone.trials == many.trials


@pytest.mark.slow
def test_a_space_that_is_smaller_than_the_study(tmp_path: Path) -> None:
    """Both arms have both designs; the second to have one takes over what the first has measured."""
    space = {"space": 1, "name": "two", "base": "mhsa", "legs": {"f": 8, "h": [2, 4]}}
    found = searched(tmp_path, functions.unhurried, space=space, trials=9)
    assert [(trial.slot, trial.arm) for trial in found.trials] == [
        (0, "evolution"), (1, "random"), (2, "evolution"), (3, "random"),
    ]  # fmt: skip
    assert sum(trial.same_as is not None for trial in found.trials) == 2
    calls = list(tmp_path.rglob("calls"))
    assert [path.read_text() for path in calls] == ["x", "x"]


def test_all_trials_fail(tmp_path: Path) -> None:
    words = (
        f"all 2 trials failed, 2 with this reason: {functions.RAISED}; fix the cause, which 'logs' in --out shows "
        "whole, and restart with"
    )
    for _ in range(2):  # the second time it is known before anything is started
        assert refusal(searched, tmp_path, functions.raises, trials=1) == f"{words} another --out."


def test_some_trials_fail(tmp_path: Path) -> None:
    """The search goes on, and its result names what failed, with the line and the log."""
    found = searched(tmp_path, functions.raises_for_linear, baseline=False)
    failed = [trial for trial in found.trials if trial.state == "failed"]
    assert (len(found.trials), {trial.reason for trial in failed}) == (3, {functions.RAISED})
    assert [to_text(trial.path).startswith("linear") for trial in failed] == [True]
    log = tmp_path / "logs" / f"slot{failed[0].slot}.log"
    assert str(found).splitlines()[-2:] == [
        f"failed: {to_text(failed[0].path)}: {functions.RAISED}", f"  log: '{log}'",
    ]  # fmt: skip
    assert "RuntimeError: the lights went out" in log.read_text()


def test_another_study_in_the_folder(tmp_path: Path) -> None:
    searched(tmp_path, trials=1, baseline=False)
    assert refusal(searched, tmp_path, trials=1, baseline=False, seed=1) == (
        f"'{tmp_path}' belongs to another study: 'seed' is 0 there and 1 here; choose another --out."
    )
    (tmp_path / CONFIG).unlink()
    assert refusal(searched, tmp_path, trials=1, baseline=False, space={**made.SPACE, "most": 1}) == (
        f"the storage 'sqlite:///{tmp_path}/study.db' belongs to another space: 'space.most' is 2 there and 1 here; "
        "choose another --out, or another --name for the study."
    )


def test_a_study_file_that_was_written_over(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("study: 1\nseed: x\n")
    told = refusal(searched, tmp_path)
    assert told == f"'{tmp_path}' has files of others, such as '{CONFIG}': choose an empty folder, or another --out."


def test_logs_of_others(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "slot0.log"
    log.parent.mkdir()
    log.write_text("mine")
    assert refusal(searched, tmp_path).startswith(f"'{tmp_path}' has files of others, such as 'logs': choose an")
    assert log.read_text() == "mine"


MISTAKES = [
    ({"workers": 0}, "workers is 0; set at least 1."),
    ({"trials": 0}, "option 'trials': input should be greater than or equal to 1, got 0."),
    ({"storage": "nosql://x"}, "the storage 'nosql://x' is not a known URL: give e.g. postgresql://HOST/NAME."),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_mistakes(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    assert refusal(searched, tmp_path / "out", **given) == message
    assert not (tmp_path / "out").exists()


def test_a_space_that_gives_nothing_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("tensornet_attn.search.propose"), "ATTEMPTS", 16)
    assert refusal(searched, tmp_path / "out", bounds={"macs": 1}).startswith(
        "all 16 drafts of the space 'tiny' were refused: 16 by 'macs at most 1'; "
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_study_that_trains(tmp_path: Path) -> None:
    """Two rungs of three learning rates, a latency, and finalists; each run is in its folder."""
    run = {"steps": 3, "batch": 4, "depth": 1, "mlp": "none", "eval_samples": 8}
    small = {"task": "mqar", "options": {"length": 16, "pairs": 2, "vocabulary": 16}, "run": run}
    rungs = [{**small, "keep": 0.5}, {"task": "copy", "options": {"length": 8}, "run": run}]
    config = {"space": made.SPACE, "rungs": rungs, "objectives": ["quality", "latency"]}
    found = ta.search(config=config, out=tmp_path, trials=3, finalists=1, workers=2)
    assert {trial.state for trial in found.trials} == {"complete"}
    for trial in found.trials:
        assert trial.values is not None
        assert trial.values["latency"] > 0
        for result in trial.results:
            assert all((tmp_path / folder / "summary.json").exists() for folder in result.folders)
    assert len(found.confirmed) in (1, 2)
