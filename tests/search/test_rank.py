"""Ranks, crowding, the front, hypervolumes; promotion to the next rung; finalists and what fresh seeds confirm."""

from __future__ import annotations

from math import inf

import pytest

from tensornet_attn.compare.section import mean_of
from tensornet_attn.search.rank import (
    Confirmed,
    confirmations,
    confirmed,
    crowding,
    finalists,
    front,
    hypervolume,
    hypervolumes,
    order,
    promoted,
    ranks,
    standing,
    unit,
)
from tensornet_attn.search.study import Limit, Rung, Study
from tensornet_attn.search.trial import BOUND, DIVERGED, Trial
from tests.search.made import RATES, study, trial

TWO = (Rung(task="mqar", rates=RATES), Rung(task="copy", rates=RATES))


def test_ranks_peel_one_front_after_another() -> None:
    """Infinite values are the worst; equal points share their rank."""
    points = [(1.0, 4.0), (2.0, 2.0), (2.0, 2.0), (3.0, 3.0), (0.0, inf), (5.0, inf), (inf, inf), (inf, 1.0)]
    assert ranks(points) == [0, 0, 0, 1, 0, 2, 3, 0]
    assert ranks([(inf,), (2.0,), (inf,), (1.0,)]) == [2, 1, 2, 0]
    assert ranks([]) == []


def test_crowding_is_the_room_around_a_point() -> None:
    points = [(0.0, 4.0), (1.0, 2.0), (4.0, 0.0), (1.0, 2.0), (2.0, 1.0)]
    assert crowding(points) == [inf, 0.5 + 0.75, inf, 0.0, 0.75 + 0.5]
    assert crowding([]) == []
    assert crowding([(1.0, inf), (2.0, inf)]) == [inf, inf]


def test_order_is_by_rung_rank_room_and_slot() -> None:
    own = study(rungs=TWO)
    trials = [
        trial(0, quality=0.9, macs=100),  # dominates all of its rung
        trial(1, quality=0.1, macs=900, rung=2),  # the highest rung
        trial(2, quality=0.8, macs=100),
        trial(3, quality=0.7, macs=100, state=DIVERGED),
        trial(4, quality=0.8, macs=100),  # equal, and later
        trial(5, quality=0.2, macs=100, rung=0, state=BOUND),
    ]
    assert [one.slot for one in order(own, reversed(trials))] == [1, 0, 2, 4, 5, 3]


def test_near_qualities_are_equal_to_a_grain_and_the_cheaper_wins() -> None:
    trials = [trial(0, quality=0.992, macs=900), trial(1, quality=0.99, macs=100)]
    assert standing(study(), [one.values or {} for one in trials]) == [0, 0]
    assert standing(study(), [one.values or {} for one in trials], grain=0.01) == [1, 0]
    assert [one.slot for one in order(study(), trials, grain=0.01)] == [1, 0]


def test_what_keeps_to_bounds_comes_before_the_rest() -> None:
    own = study(objectives=("macs",), bounds={"quality": Limit(least=0.8)})
    trials = [trial(0, quality=0.2, macs=10), trial(1, quality=0.9, macs=90), trial(2, quality=0.7, macs=50)]
    assert [one.slot for one in order(own, trials)] == [1, 2, 0]
    assert [one.slot for one in front(own, trials)] == [1]


def test_the_front_has_reached_the_last_rung_within_bounds() -> None:
    own = study(rungs=TWO, bounds={"macs": Limit(most=500)})
    trials = [
        trial(0, quality=0.5, macs=100, rung=2),
        trial(1, quality=0.5, macs=100, rung=2, essence="essence0", same_as=0),  # one design in both arms
        trial(2, quality=0.9, macs=400, rung=2),
        trial(3, quality=0.4, macs=200, rung=2),  # dominated
        trial(4, quality=1.0, macs=50),  # not on the last rung
        trial(5, quality=1.0, macs=600, rung=2),  # out of bounds
        trial(6, quality=1.0, macs=50, rung=2, state=DIVERGED),
        trial(-1, "confirm", quality=1.0, macs=10, rung=2, of=0),
        trial(8, quality=0.5, macs=100, rung=2),  # another design that is as good
    ]
    assert [one.slot for one in front(own, reversed(trials))] == [2, 0, 8]


def test_hypervolume_leaves_out_what_is_beyond_the_reference() -> None:
    assert hypervolume([(0.0, 0.5), (0.5, 0.0), (2.0, -5.0)], (1.0, 1.0)) == 0.75
    assert hypervolume([], (1.0, 1.0)) == 0.0
    assert hypervolume([(0.25,)], (1.0,)) == 0.75


def test_hypervolumes_share_one_scale_and_never_fall() -> None:
    best, worst = {"quality": 1.0, "macs": 15}, {"quality": 0.0, "macs": 255}  # log2(1 + macs): 4 and 8
    trials = [
        trial(0, **worst),
        trial(1, **best),
        trial(2, quality=0.5, macs=63),  # half of the quality, half of the way in logarithms
        trial(3, **worst),
        trial(4, rung=0),
        trial(6, **best),
    ]
    small, half, whole = 0.1 * 0.1, 0.6 * 0.6, 1.1 * 1.1
    assert hypervolumes(study(), reversed(trials), "evolution") == pytest.approx([small, half, half, whole])
    assert hypervolumes(study(), trials, "random") == pytest.approx([whole, whole])
    assert hypervolumes(study(), trials[4:5], "evolution") == [0.0]


def test_a_single_point_is_both_the_best_and_the_worst() -> None:
    assert hypervolumes(study(), [trial(0)], "evolution") == pytest.approx([1.1 * 1.1])


def test_axes_run_from_the_least_to_the_largest_that_is_finite() -> None:
    assert unit([(1.0, 5.0, inf), (3.0, 5.0, inf), (inf, 5.0, inf)]) == [
        (0.0, 0.0, inf),
        (1.0, 0.0, inf),
        (inf, 0.0, inf),
    ]


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


# The fronts: 0, 6 and 4 of evolution, 3 and 1 of random.
TRIALS = [
    trial(0, quality=0.10, macs=10),
    trial(1, quality=0.70, macs=300),
    trial(2, quality=0.70, macs=300),  # dominated
    trial(3, quality=0.20, macs=20),
    trial(4, quality=0.95, macs=1000),
    trial(5, quality=0.15, macs=400),  # dominated
    trial(6, quality=0.90, macs=30),
]


def again(of: int, quality: float | None, place: int, **rest: str) -> Trial:
    slot, of, fresh = confirmations(study(seed=7), TRIALS)[[4, 6, 1].index(of) * 5 + place]
    return trial(slot, "confirm", quality, how="confirm", of=of, fresh=fresh, essence=f"essence{of}", **rest)  # type: ignore[arg-type]


def test_the_best_and_those_that_add_most_of_each_arm() -> None:
    assert finalists(study(), TRIALS) == (4, 6, 1, 3)
    assert finalists(study(finalists=3), TRIALS) == (4, 6, 0, 1, 3, 5)  # the last one is dominated
    assert finalists(study(objectives=("quality",)), TRIALS) == (4, 6, 1, 3)  # fronts of one design
    both = [*TRIALS[:6], trial(6, quality=0.9, macs=300, essence="a"), trial(7, quality=0.9, macs=300, essence="a")]
    assert finalists(study(), both) == (4, 6, 3)  # one design of both arms
    assert finalists(study(finalists=1), TRIALS[::-1]) == (4, 1)
    assert finalists(study(finalists=0), TRIALS) == ()
    assert finalists(study(baseline=False), TRIALS) == (4, 6)
    assert finalists(study(objectives=("macs", "quality"), finalists=1), TRIALS) == (0, 3)
    assert finalists(study(), [trial(0, rung=0)]) == ()


def test_confirmations_have_fresh_seeds_and_slots_of_their_own() -> None:
    found = confirmations(study(seed=7), TRIALS)
    assert found[:6] == [(-21, 4, 1007), (-22, 4, 1008), (-23, 4, 1009), (-24, 4, 1010), (-25, 4, 1011), (-31, 6, 1007)]
    assert len({slot for slot, _, _ in found}) == len(found) == 20
    assert confirmations(study(seed=7, trials=99), TRIALS) == found  # more trials later
    assert max(fresh for _, _, fresh in confirmations(study(seed=2**63 - 1), TRIALS)) < 2**63


def test_what_fresh_seeds_confirm() -> None:
    values = [0.80, 0.85, 0.90]
    runs = [again(4, value, place) for place, value in enumerate(values)]
    runs += [again(4, None, 3, state=DIVERGED), again(6, 0.88, 0), again(6, 0.90, 1)]
    first, second = confirmed(study(), [*runs[::-1], *TRIALS])
    assert first == Confirmed(6, 0.90, mean_of([0.88, 0.90]), pytest.approx(0.01), 0)
    assert second == Confirmed(4, 0.95, mean_of(values), pytest.approx(0.1), 1)
    assert (second.mean.low, second.mean.high) == pytest.approx((0.85 - 0.1242, 0.85 + 0.1242), abs=1e-4)
    assert confirmed(study(), TRIALS) == []
