"""Fake trials for tests of what follows from trials: slot, quality, costs and path as a test says, the rest made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensornet_attn.search import Choice, Price
from tensornet_attn.search.space import Path
from tensornet_attn.search.study import ARMS, Rung, Study
from tensornet_attn.search.trial import RungResult, Trial, values_of

SPACE: dict[str, Any] = {
    "space": 1,
    "name": "tiny",
    "base": ["mhsa", "gqa", "linear"],
    "legs": {"f": 16, "h": [2, 4], "g": [1, 2], "j": 2},
    "moves": {"share": {"g": [1, 2]}, "gate": {"k": 1}, "kernel": None},
    "bounds": {"n": 16},
}
RATES = (1e-3, 2e-3)


def study(**given: Any) -> Study:
    """A study of one rung over a small space, where nothing else is given."""
    return Study(**{"space": SPACE, "rungs": (Rung(task="mqar", rates=RATES),), **given})


def path(base: str = "mhsa", *moves: str, **legs: int) -> Path:
    """`path("mhsa", "share", h=4)`."""
    numbers = (Choice("leg", name, value) for name, value in legs.items())
    return (Choice("base", base), *numbers, *(Choice("move", move, at="A") for move in moves))


MHSA = path()


def trial(
    slot: int,
    arm: str | None = None,
    quality: float | Sequence[float | None] | None = 0.5,
    macs: int = 1000,
    rung: int = 1,
    path: Path = MHSA,
    **rest: Any,
) -> Trial:
    """A finished trial: `quality` on each rung from the first on, the last number on all that follow.

    Rung 0 is static. Other costs follow from `macs`; `latency` and every field of Trial can be given.
    """
    listed = tuple(quality) if isinstance(quality, Sequence) else (quality,)
    own = (*listed, *[listed[-1]] * rung)[:rung]
    results = tuple(
        RungResult(
            place,
            (0.0,) if place == 0 else (own[place - 1], None),
            (0.0,) if place == 0 else RATES,
            1.0,
            () if place == 0 else tuple(f"trials/{slot}-{place}-{rate:g}" for rate in RATES),
        )
        for place in range(rung + 1)
    )
    price = rest.pop("price", Price(macs, macs // 4, macs // 2, macs // 10))
    best = next((value for value in reversed(own) if value is not None), None)
    given = {
        "arm": arm or ARMS[slot % 2],
        "how": "random",
        "path": path,
        "hash": f"hash{slot}",
        "essence": f"essence{slot}",
        "design": f"tensornet: 1\nname: design{slot}\n",
        "price": price,
        "results": results,
        "values": values_of(price, best, rest.pop("latency", None)),
    }
    return Trial(slot, **{**given, **rest})
