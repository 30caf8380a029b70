"""Ranks against their definition, crowding, the front, and hypervolumes."""

from __future__ import annotations

import random
from math import inf

import pytest

from tensornet_attn.search.rank import crowding, front, hypervolume, hypervolumes, order, ranks, standing, unit
from tensornet_attn.search.study import Limit, Rung
from tensornet_attn.search.trial import BOUND, DIVERGED
from tests.search.made import RATES, study, trial

TWO = (Rung(task="mqar", rates=RATES), Rung(task="copy", rates=RATES))


def peeled(points: list[tuple[float, ...]]) -> list[int]:
    """Ranks by their definition: what nothing dominates has rank 0 and is taken away, and so on."""
    found, left, rank = [-1] * len(points), set(range(len(points))), 0
    while left:
        best = {
            one
            for one in left
            if not any(
                points[other] != points[one] and all(a <= b for a, b in zip(points[other], points[one], strict=True))
                for other in left
            )
        }
        for one in best:
            found[one] = rank
        left, rank = left - best, rank + 1
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_are_those_of_the_definition(size: int) -> None:
    luck = random.Random(size)
    for _ in range(30):
        points = [tuple(float(luck.randrange(6)) for _ in range(size)) for _ in range(luck.randrange(25))]
        points += [tuple([inf] * size)] * luck.randrange(3)
        points += [tuple(luck.choice((inf, 2.0, 3.0)) for _ in range(size)) for _ in range(luck.randrange(9))]
        assert ranks(points) == peeled(points)


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
