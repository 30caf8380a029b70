"""`bench --regret`: candidates, errors and regrets, results that a killed run left, and the report."""

from __future__ import annotations

import json
import os
from itertools import count
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.bench.case import FORWARD, TRAINING, Case
from tensornet_attn.bench.regret import FAR, Candidate, Decision, Regret, candidates_of, read, summary, text
from tensornet_attn.cost.devices import device_named
from tests.refusals import refusal

TINY = ("--n", "6", "--legs", "f=8,h=2", "--costs", "cpu")


def case_of(name: str = "mhsa", n: int = 6) -> Case:
    return Case(ta.load(name, legs={"f": 8, "h": 2}), n, 1, costs=device_named("cpu"))


def decision(*seconds: float | None, predicted: float = 1.0) -> Decision:
    found = tuple(Candidate(f"way {i}", predicted, own) for i, own in enumerate(seconds))
    return Decision("mhsa", {"f": 8}, 6, 1, FORWARD, "cpu", 1, found)


def test_candidates_are_the_choice_and_all_that_it_was_preferred_to() -> None:
    found = dict(candidates_of(case_of("hard_fish", 2048), TRAINING))
    names = list(found)
    assert names[0] == "the cheapest implementation of each region"
    assert {"dense", "absorbed weights forced"} <= {*names}
    assert len({plan.schedule.to_text() for plan in found.values()}) == len(found)
    assert {plan.target.device.name for plan in found.values()} == {"cpu"}


def test_an_error_and_a_regret() -> None:
    one = decision(2.0, 1.6, None)
    assert (one.error, one.best.way) == (0.5, "way 1")
    assert one.regret == pytest.approx(0.25)
    assert decision(1.0, None).regret is None
    assert decision(None, 1.0).error is None
    found = summary([one, decision(1.0, 1.0), decision(1.25, 1.25), decision(1.0)])
    assert found["median_error"] == pytest.approx(0.1)
    assert (found["choices"], found["share_within"]) == (3, 2 / 3)


def test_a_plan_that_does_not_fit_is_not_measured() -> None:
    (found,) = Regret([(case_of(n=64), FORWARD)], memory=1.0, clock=count(0.0, 1.0).__next__).decisions()
    assert {one.seconds for one in found.candidates} == {None}
    assert text([found]).splitlines()[1].split()[4:6] == ["ms", "-"]


def test_a_plan_that_is_predicted_to_be_far_slower_is_not_measured() -> None:
    (found,) = Regret([(case_of("linear", n=1024), FORWARD)], clock=count(0.0, 1.0).__next__).decisions()
    limit = FAR * found.candidates[0].predicted
    far = [one for one in found.candidates if one.predicted > limit]
    assert far
    assert all(one.seconds is None for one in far)
    assert all(one.seconds is not None for one in found.candidates if one not in far)


def test_a_run_resumes_after_a_kill(tmp_path: Path) -> None:
    path, cases = tmp_path / "regret.jsonl", [(case_of(), FORWARD), (case_of(), TRAINING)]
    first = next(iter(Regret(cases, path).decisions()))
    assert read(path) == [first]
    with path.open("a") as file:
        file.write('{"design": "mhsa", "n')  # what a killed run leaves
    said: list[str] = []
    both = list(Regret(cases, path, said.append).decisions())
    assert both[0] == first
    assert [one.kind for one in both] == [FORWARD, TRAINING]
    assert said[0].startswith("1 decisions are in the file, 1 to measure in about ")
    assert read(path) == both
    assert list(Regret(cases, path, said.append).decisions()) == both


class Dying(Case):
    """A case that ends the process which unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (9,)


def test_a_case_whose_process_dies_is_left_out(tmp_path: Path) -> None:
    path, said, whole = tmp_path / "regret.jsonl", list[str](), case_of()
    cases = [(Dying(whole.design, whole.n, 1), FORWARD), (whole, TRAINING)]
    assert [one.kind for one in Regret(cases, path, said.append).decisions()] == [TRAINING]
    assert said[1].startswith("mhsa, n 6, forward: its process ended before it was measured; ")
    assert [one.kind for one in read(path)] == [TRAINING]


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"finished": true}\n')
    assert refusal(read, path) == f"{path}: line 1 is no result of --regret; name another file."


def test_the_command(run, tmp_path: Path) -> None:
    path = tmp_path / "regret.jsonl"
    outcome = run("bench", "mhsa", "--regret", *TINY, "--json", "-o", str(path))
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert [(one["design"], one["n"], one["pass"]) for one in found["decisions"]] == [
        ("mhsa", 6, "forward"),
        ("mhsa", 6, "forward+backward"),
    ]
    assert found["decisions"] == [json.loads(line) for line in path.read_text().splitlines()]
    assert found["summary"]["decisions"] == 2
    lines = run("bench", "mhsa", "--regret", *TINY, "-o", str(path)).out.splitlines()
    assert lines[0].split() == [
        "design", "n", "pass", "predicted", "measured", "error", "candidates", "regret", "best",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[1:]] == ["mhsa", "mhsa", "median", "choices"]
