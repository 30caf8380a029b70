"""The live table: what it says of trials, how much time is left, and that lines elsewhere are few."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tensornet_attn.search.store import Running
from tensornet_attn.search.study import Rung
from tensornet_attn.search.team import left, picture, slots, table, words
from tensornet_attn.search.trial import LATE, MEMORY, Trial
from tests.search.made import path, study, trial


def running(slot: int, arm: str, text: str, rung: int, seconds: float) -> Running:
    return Running(0, None, {"slot": slot, "arm": arm, "text": text}, rung, seconds)


RUNNING = (
    running(7, "random", "mhsa; f = 64", 0, 3.0),
    running(-3, "confirm", "linear", 1, 61.0),
    Running(9, None, None, 0, 5.0),  # it has no slot yet
)


def some() -> list[Trial]:
    """Six of eight proposals, two of them failed, ten seconds each."""
    found = [trial(slot, quality=0.1 * slot, path=path("mhsa", h=slot + 1), seconds=10.0) for slot in range(6)]
    found[1] = replace(found[1], state=MEMORY, results=())
    found[4] = replace(found[4], state=LATE, results=())
    return found


def test_words_say_how_far_it_is() -> None:
    assert words(study(trials=4, finalists=1), some(), (), 2) == [
        "6/18 trials",
        "evolution: 0.2000, mhsa; h = 3",
        "random: 0.5000, mhsa; h = 6",
        "failed: out of memory 1, timed out 1",
        "0:00:12 left",
    ]


def test_a_higher_rung_is_better_than_a_higher_quality() -> None:
    two = study(trials=4, rungs=(Rung(task="mqar"), Rung(task="copy")))
    trials = [trial(0, quality=0.9), trial(2, quality=0.3, rung=2)]
    assert words(two, trials, (), 1)[1] == "evolution: 0.3000 on rung 2, mhsa"


def test_nothing_is_known_before_the_first_trial() -> None:
    assert words(study(trials=4), (), (), 1) == ["0/28 trials", "time left unknown"]


def test_confirmations_are_counted_when_all_proposals_are_finished() -> None:
    asked = study(trials=3, finalists=2, baseline=False)
    trials = [trial(slot, "evolution", quality=0.5 + 0.1 * slot, macs=1000 + slot, seconds=4.0) for slot in range(3)]
    assert slots(asked, trials[:2]) == 3 + 2 * 5
    assert slots(asked, trials) == 3 + 2 * 5
    same = [replace(one, price=trials[0].price) for one in trials]
    assert slots(asked, same) == 3 + 2 * 5  # one design is better than all others: the second best is confirmed too
    assert slots(study(trials=1, finalists=2, baseline=False), trials[:1]) == 1 + 1 * 5


def test_the_time_left_is_that_of_the_median_trial() -> None:
    asked = study(trials=4, finalists=1, baseline=False)
    trials = [trial(slot, "evolution", seconds=seconds) for slot, seconds in ((0, 8.0), (1, 10.0), (2, 90.0))]
    runs = 5 * 0.5  # of confirmations: a run of the last rung took half a second
    assert left(asked, trials, (), 1) == 10.0 + runs
    assert left(asked, trials, (running(3, "evolution", "", 1, 4.5), RUNNING[-1]), 2) == (10.0 + runs - 4.5) / 2


def test_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    trials = some()
    with table(study(trials=4, finalists=1), 1) as show:
        show([], RUNNING)
        for count in range(1, 7):
            show(trials[:count], RUNNING)
        show(trials, ())
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[0] for line in lines] == ["0/18 trials", "6/18 trials"]


def test_the_picture_of_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=False)
    console.print(picture(study(trials=4, finalists=1), some(), RUNNING, 1))
    head, *lines = (line.rstrip() for line in out.getvalue().splitlines())
    assert head.split() == ["━" * (40 * 6 // 18), "6/18", "trials", "0:00:00", "left"]
    assert [line.split() for line in lines[:3]] == [
        ["slot", "arm", "rung", "time", "design"],
        ["again", "confirm", "1:", "mqar", "0:01:01", "linear"],
        ["7", "random", "checks", "0:00:03", "mhsa;", "f", "=", "64"],
    ]
    assert lines[3:] == [
        "evolution: 0.2000, mhsa; h = 3",
        "random: 0.5000, mhsa; h = 6",
        "failed: out of memory 1, timed out 1",
    ]
