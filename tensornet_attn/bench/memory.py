"""Peak memory of a call, above what was there before it: inputs and weights do not count, gradients do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import torch


def peak_bytes(call: Callable[[], object], device: str = "cpu") -> int:
    """The most bytes of tensors alive at once during one call, beyond those alive at its start.

    On CUDA as the allocator counts them. On the CPU from the profiler's record of every allocation, which also sees
    what compiled code and fused operations allocate for themselves; a tensor subclass or dispatch mode sees neither.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    return highest(_allocations(call))


def _allocations(call: Callable[[], object]) -> list[tuple[int, int]]:
    """(nanoseconds, bytes) of each allocation, negative where memory is given back."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to standard error when it starts and stops
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        result = call()  # alive until the profile ends
    del result
    events = profile.profiler.kineto_results.events()
    return [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]


def highest(changes: Iterable[tuple[int, int]]) -> int:
    """The highest sum of changes in the order of their times.

    >>> highest([(3, -5), (1, 5), (2, 4)])
    9
    """
    live = peak = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        live += change
        peak = max(peak, live)
    return peak
