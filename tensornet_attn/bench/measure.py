"""Times calls in turns: each round calls every contestant once, each begins with the next one. And peaks of memory.

On a GPU by its own events, with its cache emptied before each call. What needs a GPU to run stands in `on_device`;
`by_events` is tested with events that are counted.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import torch

Call = Callable[[], object]
Clock = Callable[[], float]
Sample = Callable[[Call, int], float]  # seconds of one call, on average over that many
LEAST_ROUNDS = 3  # whatever the time budget says: fewer have no quartiles
SAMPLE = 0.005  # seconds; faster calls are repeated until one sample takes as long
MOST_CALLS = 200
SHORT = 0.2  # seconds: of such a call the first may be far from the rest
FLUSH = 1 << 28  # bytes written between calls: more than the L2 of any GPU holds, and what triton.testing takes
WARM = 0.5  # seconds of rounds that do not count: clocks of a GPU at rest rise within them


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
    calls: Mapping[str, Call],
    repeats: int,
    seconds: float,
    clock: Clock = time.perf_counter,
    sample: Sample | None = None,
    warm: float = 0.0,
) -> dict[str, Timed]:
    """Each call timed in `repeats` rounds, or in fewer where `seconds` are over; in three at least.

    A call of each comes first and does not count; where it was short, a second says how many make a sample. Rounds of
    the first `warm` seconds do not count either, but say anew how many make a sample: a first call may have compiled.
    `sample` times the calls, by default `clock` does.
    """
    timing = sample or by_clock(clock)
    found = {name: Timed() for name in calls}

    def once(name: str) -> None:
        try:
            found[name].seconds.append(timing(calls[name], found[name].calls))
        except Exception as error:  # whatever it is, the others go on
            found[name].failed = bare(error)

    def rounds(seconds: float, least: int = 0, most: float = math.inf) -> None:
        start, place = clock(), 0
        while place < most and (place < least or clock() - start < seconds):
            for name in turns([name for name, timed in found.items() if timed.failed is None], place):
                once(name)
            place += 1

    for name, timed in found.items():
        once(name)
        if timed.failed is None and timed.seconds[0] < SHORT:
            once(name)
        timed.calls = calls_for(timed.seconds[-1]) if timed.failed is None else 1
        timed.seconds.clear()
    gc.collect()
    gc.disable()
    try:
        rounds(warm)
        for timed in found.values():
            timed.calls = calls_for(min(timed.seconds)) if timed.seconds else timed.calls
            timed.seconds.clear()
        rounds(seconds, LEAST_ROUNDS, repeats)
    finally:
        gc.enable()
    return found


def calls_for(seconds: float) -> int:
    """How many calls of so many seconds make a sample.

    >>> calls_for(0.002), calls_for(1.0), calls_for(0.0)
    (3, 1, 200)
    """
    return min(MOST_CALLS, max(1, math.ceil(SAMPLE / max(seconds, 1e-9))))


def bare(error: Exception) -> Exception:
    """The error without the frames that it came through: their tensors would stay while the others are timed."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__, link = None, link.__cause__ or link.__context__
    return error


def by_clock(clock: Clock) -> Sample:
    """Times calls one after another, from the first's start to the last's end."""

    def sample(call: Call, calls: int) -> float:
        start = clock()
        for _ in range(calls):
            call()
        return (clock() - start) / calls

    return sample


class Event(Protocol):
    def record(self) -> object: ...

    def elapsed_time(self, end: Event, /) -> float: ...


def by_events(event: Callable[[], Event], synchronize: Call, flush: Call) -> Sample:
    """Seconds between two events around each call. The cache is emptied before the first of them, outside of the time.

    `synchronize` waits until all is done: only then do events have times. While the device empties its cache, the host
    has time to launch what follows, as it has in a training step.
    """

    def sample(call: Call, calls: int) -> float:
        pairs = []
        for _ in range(calls):
            flush()
            start, end = event(), event()
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        synchronize()
        return sum(start.elapsed_time(end) for start, end in pairs) / 1e3 / calls  # milliseconds

    return sample


def is_gpu(device: str) -> bool:
    return torch.device(device).type == "cuda"


def sample_of(device: str) -> Sample | None:
    """How calls on a device are timed; None: by the clock."""
    return on_device(device) if is_gpu(device) else None


def on_device(device: str) -> Sample:
    cache = torch.empty(FLUSH, dtype=torch.int8, device=device)
    return by_events(lambda: torch.cuda.Event(enable_timing=True), lambda: torch.cuda.synchronize(device), cache.zero_)


def clock_of(device: str) -> Clock:
    """Seconds, once the device has done all it was asked for."""
    if not is_gpu(device):
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def peak_bytes(call: Call, device: str = "cpu") -> int:
    """The most bytes of tensors alive at once during one call, beyond those alive at its start.

    Inputs and weights do not count, gradients do. On CUDA as the allocator counts them. On the CPU from the profiler's
    record of every allocation, which also sees what compiled code and fused operations allocate for themselves; a
    tensor subclass or dispatch mode sees neither.
    """
    if is_gpu(device):
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to standard error when it starts and stops
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        result = call()  # alive until the profile ends
    del result
    events = profile.profiler.kineto_results.events()
    return highest((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")


def highest(changes: Iterable[tuple[int, int]]) -> int:
    """The highest sum of changes, (nanoseconds, bytes) each, in the order of their times.

    >>> highest([(3, -5), (1, 5), (2, 4)])
    9
    """
    ordered = sorted(changes, key=lambda change: change[0])
    return max(accumulate((change for _, change in ordered), initial=0))
