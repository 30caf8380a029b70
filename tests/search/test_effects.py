"""Effects of choices: Welch's interval, designs counted once, arms and rungs apart, pairs of mutant and parent."""

from __future__ import annotations

import random

import pytest
from scipy import stats

from tensornet_attn.search import Choice
from tensornet_attn.search.findings import Effect, effects, welch
from tensornet_attn.search.study import Rung
from tests.search.made import RATES, path, study, trial

SHARE, PLAIN, GATE = path("mhsa", "share", h=4), path("mhsa", h=4), path("mhsa", "gate", h=4)


def found(effects: list[Effect], **wanted: object) -> list[Effect]:
    return [one for one in effects if all(getattr(one, name) == value for name, value in wanted.items())]


@pytest.mark.parametrize("sizes", [(2, 2), (3, 9), (12, 5)])
def test_welch_is_that_of_scipy_at_whole_degrees_of_freedom(sizes: tuple[int, int]) -> None:
    luck = random.Random(sum(sizes))
    one, two = ([luck.gauss(place, 1 + place) for _ in range(size)] for place, size in enumerate(sizes))
    wanted = stats.ttest_ind(one, two, equal_var=False)
    middle, half = welch(one, two)
    assert middle == pytest.approx(wanted.confidence_interval(0.95).low / 2 + wanted.confidence_interval(0.95).high / 2)
    factor = stats.t.ppf(0.975, max(1, int(wanted.df))) / stats.t.ppf(0.975, wanted.df)
    assert half == pytest.approx(factor * (wanted.confidence_interval(0.95).high - middle))
    assert factor >= 1  # never narrower than it should be


def test_welch_without_spread() -> None:
    assert welch([1.0, 1.0], [0.5, 0.5]) == (0.5, 0.0)


def test_with_and_without_a_move() -> None:
    trials = [
        trial(1, quality=0.9, macs=100, path=SHARE),
        trial(3, quality=0.7, macs=100, path=SHARE),
        trial(5, quality=0.4, macs=300, path=PLAIN),
        trial(7, quality=0.2, macs=300, path=PLAIN),
        trial(9, quality=None, macs=300, path=PLAIN, rung=0),  # has costs alone
    ]
    own = found(effects(study(), trials), move="share")
    assert {(one.metric, one.arm, one.with_, one.without) for one in own} == {
        ("quality", "all", 2, 2),
        ("quality", "random", 2, 2),
        ("macs", "all", 2, 3),
        ("macs", "random", 2, 3),
    }
    (quality,) = found(own, metric="quality", arm="random")
    middle, half = welch([0.9, 0.7], [0.4, 0.2])
    assert quality == Effect("share", "move", "quality", middle, middle - half, middle + half, 2, 2, "random", False, 1)
    (macs,) = found(own, metric="macs", arm="all")
    assert (macs.difference, macs.low, macs.high, macs.rung) == (-200.0, -200.0, -200.0, 0)


def test_bases_and_alternatives_have_effects_too() -> None:
    normed = (*PLAIN, Choice("alternative", "K", "normed"))
    bases = [trial(2 * place, path=path("linear")) for place in range(2)]
    trials = [
        *bases,
        *(trial(4 + 2 * place, path=normed) for place in range(2)),
        *(trial(8 + p) for p in range(0, 4, 2)),
    ]
    keys = {(one.kind, one.move) for one in effects(study(), trials)}
    assert keys == {("base", "linear"), ("base", "mhsa"), ("alternative", "K: normed")}


def test_a_design_of_both_arms_counts_once_and_rungs_are_apart() -> None:
    rungs = (Rung(task="mqar", rates=RATES), Rung(task="copy", rates=RATES))
    trials = [
        trial(0, quality=(0.9, 0.1), rung=2, path=SHARE, essence="same"),
        trial(1, quality=(0.9, 0.1), rung=2, path=SHARE, essence="same", same_as=0),
        trial(2, quality=(0.8, 0.2), rung=2, path=SHARE),
        trial(4, quality=0.5, path=PLAIN),
        trial(6, quality=(0.4, 0.6), rung=2, path=PLAIN),
        trial(8, quality=(0.3, 0.5), rung=2, path=PLAIN),
        trial(-1, "confirm", quality=(0.1, 0.1), rung=2, path=SHARE, of=0),
    ]
    own = found(effects(study(rungs=rungs), trials), move="share", metric="quality")
    assert [(one.rung, one.arm, one.with_, one.without) for one in own] == [(2, "all", 2, 2), (1, "all", 2, 3)]
    assert [one.difference for one in own] == pytest.approx([-0.4, 0.45])


def test_pairs_differ_in_one_move_alone() -> None:
    elsewhere = (*PLAIN, Choice("move", "share", at="B"))
    both = (*path("mhsa", "gate", h=4), Choice("move", "share", at="A_mixed"))
    trials = [
        trial(0, quality=0.5, path=PLAIN),
        trial(2, quality=0.7, path=SHARE, how="mutate", parents=(0,)),  # added
        trial(4, quality=0.4, path=PLAIN, how="mutate", parents=(2,), macs=500),  # dropped
        trial(6, quality=0.9, path=path("mhsa", "share", h=2), how="mutate", parents=(0,)),  # and a size
        trial(8, quality=0.9, path=GATE, how="cross", parents=(0, 2)),
        trial(10, quality=0.8, path=both, how="mutate", parents=(8,)),  # added beside another, -0.1
        trial(12, quality=0.6, path=elsewhere, how="mutate", parents=(2,)),  # only its place: no move more or less
        trial(14, quality=None, path=PLAIN, how="mutate", parents=(2,)),
        trial(16, quality=0.1, path=SHARE, how="mutate", parents=(99,)),
    ]
    (quality,) = found(effects(study(), trials), paired=True, metric="quality")
    assert (quality.move, quality.with_, quality.difference) == ("share", 3, pytest.approx((0.2 + 0.3 - 0.1) / 3))
    (macs,) = found(effects(study(), trials), paired=True, metric="macs")
    assert (macs.with_, macs.difference) == (4, pytest.approx((0 + 500 + 0 + 0) / 4))
