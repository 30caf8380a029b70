"""What a study leaves behind: a folder a Pareto design, trials as JSON, the report; what is missing is said."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn import compiler
from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.search import Space, load, results
from tensornet_attn.search import page as pages
from tensornet_attn.search.findings import find, folder
from tensornet_attn.search.rank import confirmed, front
from tensornet_attn.search.study import Study, prepare
from tensornet_attn.search.trial import Trial, trial_from
from tests.compare.folders import folder as run_folder
from tests.refusals import refusal
from tests.search.report_made import made

Made = tuple[Study, Space, list[Trial]]
FILES = {"design.yaml", "picture.svg", "source.py", "curves.svg", "facts.json"}


@pytest.fixture(scope="module")
def small() -> Made:
    return made(5)


@pytest.fixture(autouse=True)
def _no_pictures_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST", 0)


def runs(trials: Iterable[Trial], out: Path) -> None:
    """The run folders that the results of trials name."""
    for trial in trials:
        for result in trial.results:
            for name, rate, quality in zip(result.folders, result.rates, result.quality, strict=result.rung > 0):
                if not (out / name).exists():
                    run_folder(out / name, quality, trial.fresh or 0, lr=rate)


def written(small: Made, out: Path) -> tuple[Trial, Path]:
    """The best design of the front, and its folder."""
    results.write(*small, out)
    best = front(small[0], small[2])[0]
    return best, out / "pareto" / folder(best)


def test_a_folder_for_each_design_of_the_front_and_each_finalist(small: Made, tmp_path: Path) -> None:
    study, space, trials = small
    runs(trials, tmp_path)
    results.write(*small, tmp_path)
    best, chosen = front(study, trials), find(study, space, trials).chosen
    assert chosen[: len(best)] == tuple(best)
    assert {one.essence for one in chosen} == {one.essence for one in best} | set(find(study, space, trials).ratings)
    assert {path.name for path in (tmp_path / "pareto").iterdir()} == {folder(trial) for trial in chosen}
    for trial in chosen:
        own = tmp_path / "pareto" / folder(trial)
        assert {path.name for path in own.iterdir()} == FILES
        assert ta.load(str(own / "design.yaml")).hash == trial.hash
        for name in ("picture.svg", "curves.svg"):
            assert ElementTree.parse(own / name).getroot().tag.endswith("svg")
    assert {path.name for path in tmp_path.iterdir()} == {"pareto", "trials", "trials.json", "report.html"}


def test_the_source_runs_alone(small: Made, tmp_path: Path) -> None:
    best, own = written(small, tmp_path)
    design = ta.load(best.design)
    assert (own / "source.py").read_text() == compiler.emit_source(design)
    namespace: dict[str, Any] = {"__name__": "alone"}
    exec((own / "source.py").read_text(), namespace)
    (made,) = [one for one in namespace.values() if isinstance(one, type) and issubclass(one, torch.nn.Module)]
    assert made()(torch.zeros(1, 4, 64)).shape == (1, 4, 64)


def test_facts(small: Made, tmp_path: Path) -> None:
    study, _, trials = small
    best, own = written(small, tmp_path)
    facts = json.loads((own / "facts.json").read_text())
    one = next(one for one in confirmed(study, trials) if one.of == best.slot)
    assert facts["trial"] == best.slot
    assert facts["costs"] == {**best.price.as_dict(), "n": 64, "batch": 1}
    assert facts["rungs"][-1]["quality"] == best.quality == max(facts["rungs"][-1]["by_rate"].values())
    told = facts["confirmed"]
    assert (told["mean"], told["low"], told["high"]) == (one.mean.value, one.mean.low, one.mean.high)
    assert told["drop"] == best.quality - one.mean.value
    assert len(told["values"]) == 5


def test_all_trials_as_json(small: Made, tmp_path: Path) -> None:
    study, space, trials = small
    results.write(study, space, trials, tmp_path)
    found = json.loads((tmp_path / "trials.json").read_text())
    assert [trial_from(one) for one in found["trials"]] == sorted(trials, key=lambda trial: trial.slot)
    assert load(found["study"]["space"]).hash == space.hash


def test_what_cannot_be_made_is_said(small: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> bytes:
        raise MissingPartError("pictures need Graphviz.")

    monkeypatch.setattr(compiler, "picture", missing)
    best, own = written(small, tmp_path)
    assert {path.name for path in own.iterdir()} == FILES - {"picture.svg", "curves.svg"}
    first = tmp_path / best.results[1].folders[0]
    assert json.loads((own / "facts.json").read_text())["left_out"] == {
        "picture.svg": "pictures need Graphviz.",
        "curves.svg": f"'{first}' is not a folder; give folders that 'tensornet-attn train --out' has written.",
    }


def test_a_task_without_runs_has_no_curves(small: Made, tmp_path: Path) -> None:
    study, space, trials = small
    bare = [replace(t, results=tuple(replace(result, folders=()) for result in t.results)) for t in trials]
    _, own = written((study, space, bare), tmp_path)
    assert json.loads((own / "facts.json").read_text())["left_out"] == {
        "curves.svg": "there are no runs, because the task is a user function."
    }


def test_written_again_nothing_old_is_left(small: Made, tmp_path: Path) -> None:
    study, space, trials = small
    best, own = written(small, tmp_path)
    results.write(study, space, [trial for trial in trials if best.slot not in (trial.slot, trial.of)], tmp_path)
    assert not own.exists()
    assert len([*(tmp_path / "pareto").iterdir()]) > 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_files_of_others_stay(small: Made, tmp_path: Path) -> None:
    _, own = written(small, tmp_path)
    for path in (tmp_path / "pareto" / "notes.txt", own / "notes.txt"):
        path.write_text("mine")
        assert refusal(written, small, tmp_path) == (
            f"'{path}' is no file of the study, which replaces '{tmp_path / 'pareto'}': move it away."
        )
        assert path.read_text() == "mine"
        path.unlink()
    other = tmp_path / "other"
    (other / "pareto").mkdir(parents=True)
    with pytest.raises(InputError, match="has files of others, such as 'pareto': choose an empty folder"):
        prepare(small[0], other)
    assert [path.name for path in other.iterdir()] == ["pareto"]


def test_a_design_that_is_not_the_one_of_its_trial_is_refused(small: Made, tmp_path: Path) -> None:
    study, space, trials = small
    best, own = written(small, tmp_path)
    other = [replace(trial, hash="0" * 64) if trial.slot == best.slot else trial for trial in trials]
    assert refusal(results.write, study, space, other, tmp_path) == (
        f"the design of trial {best.slot} has the hash {best.hash[:12]}, but the trial has 000000000000: use the "
        "version of this package that made the study."
    )
    assert own.exists()  # what was there before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
