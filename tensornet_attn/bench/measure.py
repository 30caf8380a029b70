"""Times interleaved calls, and measures peak memory. Each round calls every contestant once, in rotated order.

GPU times come from CUDA events, with the L2 cache flushed before each call. Only `on_device` needs a GPU; tests of
`by_events` use fake events.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol, Self

import torch

Call = Callable[[], object]
Clock = Callable[[], float]
Sample = Callable[[Call, int], float]  # mean seconds per call, over a number of calls
LEAST_ROUNDS = 3  # minimum for quartiles, even beyond the time limit
SAMPLE = 0.005  # minimum seconds of a sample; faster calls are repeated
MOST_CALLS = 200
SHORT = 0.2  # seconds; shorter calls get a second warm-up call
FLUSH = 1 << 28  # bytes to write between calls: larger than any L2 cache, and the same as in triton.testing
WARM = 0.5  # seconds of warm-up rounds, in which the clock of an idle GPU rises


@dataclass
class Timed:
    """Seconds of one call in each round, or the exception in `failed`."""

    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    failed: Exception | None = None


def turns(names: Sequence[str], number: int) -> list[str]:
    """The order of one round. Each round starts with the next name, so that no contestant is always first.

    >>> [turns(["a", "b", "c"], number) for number in range(4)]
    [['a', 'b', 'c'], ['b', 'c', 'a'], ['c', 'a', 'b'], ['a', 'b', 'c']]
    """
    first = number % len(names) if names else 0
    return [*names[first:], *names[:first]]


def interleaved(
    calls: Mapping[str, Call],
    repeats: int,
    seconds: float,
    clock: Clock = time.perf_counter,
    sample: Sample | None = None,
    warm: float = 0.0,
) -> dict[str, Timed]:
    """Times each call in at most `repeats` rounds within `seconds`, but in at least three.

    Warm-up calls come first; their time determines the number of calls per sample. Warm-up rounds of `warm` seconds
    follow, and determine that number again, because a first call may have compiled. `sample` measures the time of
    calls; by default, it uses `clock`.
    """
    timing = sample or by_clock(clock)
    timed_calls = {name: Timed() for name in calls}

    def once(name: str) -> None:
        try:
            timed_calls[name].seconds.append(timing(calls[name], timed_calls[name].calls))
        except Exception as error:  # continue with the others
            timed_calls[name].failed = bare(error)

    def rounds(seconds: float, least: int = 0, most: float = math.inf) -> None:
        start, number = clock(), 0
        while number < most and (number < least or clock() - start < seconds):
            for name in turns([name for name, timed in timed_calls.items() if timed.failed is None], number):
                once(name)
            number += 1

    for name, timed in timed_calls.items():
        once(name)
        if timed.failed is None and timed.seconds[0] < SHORT:
            once(name)
        timed.calls = calls_for(timed.seconds[-1]) if timed.failed is None else 1
        timed.seconds.clear()
    gc.collect()
    gc.disable()
    try:
        rounds(warm)
        for timed in timed_calls.values():
            timed.calls = calls_for(min(timed.seconds)) if timed.seconds else timed.calls
            timed.seconds.clear()
        rounds(seconds, LEAST_ROUNDS, repeats)
    finally:
        gc.enable()
    return timed_calls


def calls_for(seconds: float) -> int:
    """The number of calls per sample for calls of these seconds.

    >>> calls_for(0.002), calls_for(1.0), calls_for(0.0)
    (3, 1, 200)
    """
    return min(MOST_CALLS, max(1, math.ceil(SAMPLE / max(seconds, 1e-9))))


def bare(error: Exception) -> Exception:
    """The error without tracebacks, whose frames would keep tensors alive."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__, link = None, link.__cause__ or link.__context__
    return error


def by_clock(clock: Clock) -> Sample:
    """Times consecutive calls with a clock."""

    def sample(call: Call, calls: int) -> float:
        start = clock()
        for _ in range(calls):
            call()
        return (clock() - start) / calls

    return sample


class Event(Protocol):
    def record(self) -> object: ...

    def elapsed_time(self, end: Self, /) -> float: ...


def by_events(event: Callable[[], Event], synchronize: Call, flush: Call) -> Sample:
    """Times calls with an event before and after each. The cache is flushed before the first event.

    `synchronize` waits for the device, because events have no times before. During the flush, the host launches the
    kernels of the call, so that launch overhead is hidden as in a training step.
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
    """The timing function of a device, or None for the clock."""
    return on_device(device) if is_gpu(device) else None


def on_device(device: str) -> Sample:
    cache = torch.empty(FLUSH, dtype=torch.int8, device=device)
    return by_events(lambda: torch.cuda.Event(enable_timing=True), lambda: torch.cuda.synchronize(device), cache.zero_)


def captured(call: Call, pool: object = None) -> Call:
    """Replays a CUDA graph of a call: the host launches one graph instead of kernels. Raises what forbids a capture.

    Graphs with the same `pool` share their memory: the results of a replay last until the next one of any of them.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles and allocates, which a graph cannot capture
        call()
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):  # type: ignore[arg-type]
        call()
    return graph.replay


def clock_of(device: str) -> Clock:
    """A clock that first waits for the device."""
    if not is_gpu(device):
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def peak_bytes(call: Call, device: str = "cpu") -> int:
    """The peak of allocated bytes during a call, minus the bytes at its start. It includes gradients.

    On CUDA, the allocator reports it. On the CPU, it comes from the allocations in a profile. Unlike a tensor subclass
    or dispatch mode, the profile includes allocations inside compiled code and fused operations.
    """
    if is_gpu(device):
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler's output on standard error
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        alive = call()  # alive until the profile ends
    del alive
    events = profile.profiler.kineto_results.events()
    return highest((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")


def highest(changes: Iterable[tuple[int, int]]) -> int:
    """The maximum of the running sum of changes, (nanoseconds, bytes), in time order.

    >>> highest([(3, -5), (1, 5), (2, 4)])
    9
    """
    ordered = sorted(changes, key=lambda change: change[0])
    return max(accumulate((change for _, change in ordered), initial=0))
