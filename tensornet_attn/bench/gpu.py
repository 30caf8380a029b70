"""Timing on a GPU: by its own events, with its cache emptied before each call; where it is, and what it has.

What needs a GPU to run stands in `on_device` and below; `by_events` is tested with events that are counted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

import torch

from tensornet_attn.bench.measure import Call, Sample

FLUSH = 1 << 28  # bytes written between calls: more than the L2 of any GPU holds, and what triton.testing takes
WARM = 0.5  # seconds of rounds that do not count: clocks of a GPU at rest rise within them
PART = 0.5  # of the memory, which tensors over pairs of positions may be predicted to take


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


def memory_limit(device: str, otherwise: float) -> float:
    """GiB that tensors over pairs may be predicted to take: half of a GPU's memory, else `otherwise`."""
    return PART * torch.cuda.get_device_properties(device).total_memory / 2**30 if is_gpu(device) else otherwise


def tidy(device: str) -> None:
    """Gives back what earlier contestants left."""
    gc.collect()
    if is_gpu(device):
        torch.cuda.empty_cache()


def select(device: str) -> None:
    """Makes a GPU the current one: events, and kernels of Triton, go where that is."""
    where = torch.device(device)
    if where.type == "cuda" and where.index is not None:
        torch.cuda.set_device(where)


def gpu_words(device: str) -> dict[str, object] | None:
    """Name, capability, memory in bytes, multiprocessors and CUDA's version; None for a CPU."""
    if not is_gpu(device):
        return None
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory": found.total_memory,
        "processors": found.multi_processor_count,
        "cuda": str(torch.version.cuda),
    }
