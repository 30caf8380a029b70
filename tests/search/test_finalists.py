"""Finalists: who they are, with which seeds they are trained again, and what is left of their scores."""

from __future__ import annotations

import pytest

from tensornet_attn.compare.section import mean_of
from tensornet_attn.search.rank import Confirmed, confirmations, confirmed, finalists
from tensornet_attn.search.trial import DIVERGED, Trial
from tests.search.made import study, trial

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
