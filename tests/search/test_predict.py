"""Which candidate promises most: guesses from kin, known costs, bounds, and rungs that enough trials have been on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensornet_attn.search import Choice, Price, Proposal, load, seeds
from tensornet_attn.search.evolve import promising
from tensornet_attn.search.space import Path
from tensornet_attn.search.study import Limit, Rung
from tensornet_attn.search.trial import DIVERGED
from tests.search.made import RATES, SPACE, path, study, trial

FIRST = seeds(load(SPACE))[0]
SHARE, GATE, KERNEL = (path("mhsa", move, h=4) for move in ("share", "gate", "kernel"))
KNOWN = [
    trial(0, quality=0.9, macs=1000, path=SHARE),
    trial(2, quality=0.3, macs=1000, path=GATE),
    trial(4, quality=0.5, macs=100, path=path("mhsa", h=4)),
]


def candidate(at: Path, macs: int = 1000) -> Proposal:
    return replace(FIRST, path=at, price=Price(macs, 10, 10, 10))


def wider(at: Path) -> Path:
    """The path with another size: kin of what has its moves."""
    return (*(one for one in at if one.kind != "leg"), Choice("leg", "h", 2))


def test_kin_of_what_was_good_come_first() -> None:
    candidates = [candidate(wider(GATE)), candidate(wider(SHARE))]
    assert promising(study(), KNOWN, candidates) == [1, 0]
    assert promising(study(), KNOWN, candidates[::-1]) == [0, 1]


def test_of_equal_guesses_the_cheaper_comes_first() -> None:
    candidates = [candidate(wider(SHARE), macs) for macs in (900, 300, 600)]
    assert promising(study(), KNOWN, candidates) == [1, 2, 0]
    assert promising(study(objectives=("quality",)), KNOWN, candidates) == [0, 1, 2]


def test_what_is_guessed_to_be_beyond_a_bound_comes_last() -> None:
    own = study(objectives=("macs",), bounds={"quality": Limit(least=0.8)})
    candidates = [candidate(wider(GATE), 10), candidate(wider(SHARE), 900)]
    assert promising(own, KNOWN, candidates) == [1, 0]


def test_latency_is_guessed_too() -> None:
    own = study(objectives=("latency",))
    known = [trial(0, path=SHARE, latency=0.1), trial(2, path=GATE, latency=0.001), trial(4, path=KERNEL)]
    assert promising(own, known, [candidate(wider(SHARE)), candidate(wider(GATE))]) == [1, 0]


def test_what_failed_is_as_bad_as_the_worst() -> None:
    known = [*KNOWN[::2], trial(6, quality=None, macs=1000, path=KERNEL, state=DIVERGED)]
    assert promising(study(), known, [candidate(wider(KERNEL)), candidate(wider(SHARE))]) == [1, 0]


def test_the_highest_rung_that_enough_have_been_on() -> None:
    rungs = (Rung(task="mqar", rates=RATES), Rung(task="copy", rates=RATES))
    known = [
        trial(0, quality=(0.9, 0.2), rung=2, path=SHARE),
        trial(2, quality=(0.3, 0.8), rung=2, path=GATE),
        trial(4, quality=0.5, macs=100, path=path("mhsa", h=4)),
    ]
    candidates = [candidate(wider(SHARE)), candidate(wider(GATE))]
    assert promising(study(rungs=rungs, population=4), known, candidates) == [1, 0]
    assert promising(study(rungs=rungs, population=8), known, candidates) == [0, 1]


@pytest.mark.parametrize("known", [[], [trial(0, quality=None)], [trial(0, rung=0)]])
def test_without_anything_known_the_order_stays(known: list[object]) -> None:
    assert promising(study(), known, [candidate(SHARE), candidate(GATE)]) == [0, 1]  # type: ignore[arg-type]
    assert promising(study(), KNOWN, []) == []
