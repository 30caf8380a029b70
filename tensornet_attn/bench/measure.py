"""Times calls in turns: each round calls every contestant once, each round begins with the next one."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Call = Callable[[], object]
Clock = Callable[[], float]
LEAST_ROUNDS = 3  # whatever the time budget says: fewer have no quartiles
SAMPLE = 0.005  # seconds; faster calls are repeated until one sample takes as long
MOST_CALLS = 200
SHORT = 0.2  # seconds: of such a call the first may be far from the rest


@dataclass
class Timed:
    """Seconds of one call, a sample a round; `failed` says why there are none."""

    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    failed: Exception | None = None


def turns(names: Sequence[str], place: int) -> list[str]:
    """The order of one round: each round begins one further, so that nobody always follows the same one from rest.

    >>> [turns(["a", "b", "c"], place) for place in range(4)]
    [['a', 'b', 'c'], ['b', 'c', 'a'], ['c', 'a', 'b'], ['a', 'b', 'c']]
    """
    first = place % len(names) if names else 0
    return [*names[first:], *names[:first]]


def interleaved(
    calls: Mapping[str, Call], repeats: int, seconds: float, clock: Clock = time.perf_counter
) -> dict[str, Timed]:
    """Each call timed in `repeats` rounds, or in fewer where `seconds` are over; in three at least.

    A call of each comes first and does not count; where it was short, a second says how many make a sample.
    """
    found = {name: _warmed(call, clock) for name, call in calls.items()}
    start, place = clock(), 0
    gc.collect()
    gc.disable()
    try:
        while place < repeats and (place < LEAST_ROUNDS or clock() - start < seconds):
            _round(calls, found, place, clock)
            place += 1
    finally:
        gc.enable()
    return found


def _round(calls: Mapping[str, Call], found: dict[str, Timed], place: int, clock: Clock) -> None:
    for name in turns([name for name, timed in found.items() if timed.failed is None], place):
        timed = found[name]
        try:
            timed.seconds.append(_sample(calls[name], timed.calls, clock))
        except Exception as error:  # whatever it is, the others go on
            timed.failed = error


def _warmed(call: Call, clock: Clock) -> Timed:
    try:
        once = _sample(call, 1, clock)
        if once < SHORT:
            once = _sample(call, 1, clock)
    except Exception as error:
        return Timed(failed=error)
    return Timed(min(MOST_CALLS, max(1, math.ceil(SAMPLE / max(once, 1e-9)))))


def _sample(call: Call, calls: int, clock: Clock) -> float:
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls
