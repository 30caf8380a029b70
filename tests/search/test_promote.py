"""Promotion by non-dominated rank among the trials of an arm that have been on the rung."""

from __future__ import annotations

from tensornet_attn.search.rank import promoted
from tensornet_attn.search.study import Rung, Study
from tests.search.made import RATES, study, trial

THREE = tuple(Rung(task=task, rates=RATES) for task in ("mqar", "copy", "char_lm"))


def climbs(own: Study, quality: float, others: list[float], slot: int = 100, **given: float) -> bool:
    finished = [trial(2 * place, quality=other) for place, other in enumerate(others)]
    return promoted(own, trial(slot, "evolution", quality=quality, **given), finished)


def test_the_first_ones_go_on() -> None:
    own = study(rungs=THREE)
    assert climbs(own, 0.1, [])
    assert climbs(own, 0.1, [0.9, 0.8])  # three, of whom one in three is kept
    assert not climbs(own, 0.1, [0.9, 0.8, 0.7])


def test_a_share_goes_on_and_ties_with_it() -> None:
    own = study(rungs=THREE)
    others = [0.9, 0.8, 0.7, 0.6, 0.5]  # with the sixth, two are kept
    assert climbs(own, 0.85, others)
    assert not climbs(own, 0.75, others)
    assert climbs(own, 0.8, others)
    everyone = study(rungs=(Rung(task="mqar", rates=RATES, keep=1.0), *THREE[1:]))
    assert climbs(everyone, 0.1, others)


def test_the_cheapest_goes_on_though_it_is_worse() -> None:
    own = study(rungs=THREE)
    assert climbs(own, 0.1, [0.9, 0.8, 0.7, 0.6], macs=10)
    assert not climbs(study(rungs=THREE, objectives=("quality",)), 0.1, [0.9, 0.8, 0.7, 0.6], macs=10)


def test_only_the_same_arm_and_the_same_rung_count() -> None:
    own = study(rungs=THREE)
    one = trial(100, "evolution", quality=(0.9, 0.1), rung=2)
    below = [trial(2 * place, quality=0.9) for place in range(4)]
    other = [trial(2 * place + 1, quality=0.9, rung=2) for place in range(4)]
    beside = [trial(2 * place, quality=(0.5, 0.9, 0.1), rung=3) for place in range(4)]
    assert promoted(own, one, [*below, *other])
    assert not promoted(own, one, [*below, *other, *beside])
    assert promoted(own, one, [trial(100, "evolution", quality=0.9, rung=2)] * 4)  # itself, finished before


def test_those_that_were_not_finite_count_as_worse() -> None:
    assert climbs(study(rungs=THREE), 0.5, [0.9, 0.1])
    own = study(rungs=THREE)
    failed = [trial(2 * place, quality=None) for place in range(5)]
    assert promoted(own, trial(100, "evolution", quality=0.5), [*failed, trial(50, quality=0.9)])


def test_there_is_nowhere_to_go() -> None:
    own = study(rungs=THREE)
    assert promoted(own, trial(0, rung=0), [])  # the static rung was passed
    assert not promoted(own, trial(0, rung=3), [])
    assert not promoted(own, trial(0, quality=None), [])
    assert not promoted(own, trial(0, rung=0, results=()), [])
