"""A study for the tests of reports: real proposals of a real space, with made-up results, nothing trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import tensornet_attn as ta
from tensornet_attn.search import Path, Proposal, Space, load, mutate, propose, seeds
from tensornet_attn.search.rank import confirmations
from tensornet_attn.search.study import Rung, Study
from tensornet_attn.search.trial import COMPLETE, DIVERGED, FAILED, LATE, MEMORY, RungResult, Trial

SPACE: dict[str, Any] = {
    "space": 1,
    "name": "small",
    "about": "Attention of width 64, at no more than what mhsa needs.",
    "base": ["mhsa", "gqa", "linear"],
    "legs": {"f": 64, "h": [1, 2, 4, 8], "g": [1, 2, 4], "j": 2},
    "alternatives": {"K": {"normed": {"step": {"rmsnorm": "d", "of": "x[m f] Wk[f h d] -> m h d"}}}},
    "moves": {
        "share": {"g": [2, 4]},
        "mixture": {"r": 2},
        "experts": {"of": ["v", "vo"], "e": 4, "k": {"range": [1, 2]}},
        "split": {"band": 5},
        "latent": {"c": [8, 16]},
        "delta": None,
    },
    "most": 2,
    "bounds": {"n": 64, "macs": 3_000_000},
}
RUNGS = (
    Rung(task="mqar", options={"length": 64, "pairs": 4}, run={"steps": 300, "width": 64, "mlp": "none"}),
    Rung(task="mqar", options={"length": 128, "pairs": 16}, run={"steps": 1500, "width": 64, "mlp": "none"}),
)
WORTH = {"share": 0.05, "mixture": -0.04, "experts": -0.02, "split": 0.16, "latent": -0.09, "delta": 0.21}
FAILURES = (
    (MEMORY, "the process was ended at 4.2 GiB, 4 GiB are allowed."),
    (DIVERGED, "the loss is not finite with any learning rate: rung 1, steps 41, 37 and 12."),
    (LATE, "not finished after 3,600 seconds, in rung 2."),
    (FAILED, "RuntimeError: shapes <4x1> & <8x2> do not fit."),
)


def noise(*what: object) -> float:
    """A number about zero, mostly within 1, that is a function of what it is for."""
    digest = sha256(repr(what).encode()).digest()
    return sum(digest[:12]) / 12 / 128 - 1


def worth(path: Path) -> float:
    """What a design is truly worth: some bases, sizes and moves are better than others."""
    value = {"mhsa": 0.55, "gqa": 0.45, "linear": 0.2}[path[0].name]
    for choice in path[1:]:
        value += WORTH.get(choice.name, 0.0) if choice.kind == "move" else 0.0
        value += 0.06 * math.log2(int(choice.value or 1)) if choice.name in ("h", "g") and choice.kind == "leg" else 0.0
    return value


def quality(path: Path, rung: int, luck: float) -> float:
    learnt = 1 - math.exp(-(4.2 / rung**0.8) * max(0.02, worth(path)))
    return round(min(1.0, learnt * (1 + 0.06 * luck)), 4)


def results(proposal: Proposal, rung: int, key: object) -> RungResult:
    rates = RUNGS[rung - 1].rates
    found = tuple(
        quality(proposal.path, rung, noise(proposal.essence, rung, rate, key) - (1.5 if rate < 2e-3 else 0.0))
        for rate in rates
    )
    folders = tuple(f"trials/{proposal.essence[:12]}-{rung}-{rate:g}" for rate in rates)
    return RungResult(rung, found, rates, 35.0 * rung**2 + 10 * noise(proposal.essence), folders)


def trial(slot: int, arm: str, how: str, proposal: Proposal, done: tuple[RungResult, ...], **keys: Any) -> Trial:
    best = done[-1].counts if done else None
    values = {**proposal.price.as_dict(), **({} if best is None else {"quality": best})}
    made = (proposal.path, proposal.hash, proposal.essence, proposal.design.to_yaml(), proposal.price)
    seconds = sum(result.seconds for result in done)
    return Trial(slot, arm, how, *made, done, values, seconds=seconds, worker="host/1", **keys)


def made(count: int = 15, **keys: Any) -> tuple[Study, Space, list[Trial]]:
    """A study with this many proposals an arm, some of which failed, and its confirmations."""
    given = {"objectives": ("quality", "macs", "decoding_state"), **keys}
    study, space = Study(space=SPACE, rungs=RUNGS, trials=count, **given), load(SPACE)
    trials: list[Trial] = []
    for slot in range(study.proposals):
        trials.append(_next(study, space, slot, trials))
    again = [_again(slot, trials[of], fresh) for slot, of, fresh in confirmations(study, trials)]
    return study, space, trials + again


def _next(study: Study, space: Space, slot: int, trials: Sequence[Trial]) -> Trial:
    arm, number = study.arms[slot % len(study.arms)], slot // len(study.arms)
    own = sorted(
        (t for t in trials if t.arm == arm and t.state == COMPLETE), key=lambda t: t.quality or 0, reverse=True
    )
    how, parents, proposal = _new(space, arm, number, own, {t.essence for t in trials if t.arm == arm})
    if slot % 13 == 9:
        state, reason = FAILURES[slot // 13 % len(FAILURES)]
        return trial(slot, arm, how, proposal, (), state=state, reason=reason, parents=parents)
    first = results(proposal, 1, "search").counts or 0.0
    better = sum((t.results[1].counts or 0.0) > first for t in own)
    twin = next((t for t in trials if t.essence == proposal.essence and t.state == COMPLETE), None)
    if twin is not None:
        return trial(slot, arm, how, proposal, twin.results, parents=parents, same_as=twin.slot)
    rungs = (1, 2) if better <= len(own) // 3 else (1,)
    done = (RungResult(0, (1.0,), (0.0,), 0.5), *(results(proposal, rung, "search") for rung in rungs))
    return trial(slot, arm, how, proposal, done, parents=parents)


def _new(
    space: Space, arm: str, number: int, own: Sequence[Trial], known: set[str]
) -> tuple[str, tuple[int, ...], Proposal]:
    """How an arm comes to its next design, which is one that it does not have: (how, parents, proposal)."""
    for attempt in range(200):
        if arm == "random":
            found = ("random", (), propose(space, 0, 1000 * number + attempt))
        elif number < 3:
            found = ("seed", (), seeds(space)[number])
        else:
            parent = own[(number + attempt) % max(1, min(4, len(own)))]
            found = ("mutate", (parent.slot,), mutate(space, parent.path, 0, 1000 * number + attempt))
        if found[2].essence not in known:
            return found
    raise AssertionError("the space is too small for this many designs")


def _again(slot: int, best: Trial, fresh: int) -> Trial:
    """A finalist again, with a fresh seed: a little less good than it seemed."""
    value = round(min(1.0, (best.quality or 0.0) - 0.02 + 0.02 * noise(best.essence, fresh)), 4)
    proposal = Proposal(ta.load(best.design), best.path, best.hash, best.essence, best.price)
    rate, folder = best.results[-1].rate or 0.0, f"trials/{best.essence[:12]}-fresh{fresh}"
    done = (RungResult(len(RUNGS), (value,), (rate,), 130.0, (folder,)),)
    return trial(slot, "confirm", "confirm", proposal, done, of=best.slot, fresh=fresh)
