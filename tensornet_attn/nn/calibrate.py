"""Measures the rates of this machine's CPU in about a second."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from tensornet_attn.cost.devices import THIS, Device

SECONDS = 0.5  # per rate
SIDE = 1024  # matrix side, large enough for the full rate
NUMBERS = 2**24  # elements copied: 64 MiB, more than the caches hold


def calibrate(seconds: float = SECONDS) -> Device:
    """Measures float32 matrix products and copies on this CPU, with torch's number of threads."""
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    source, target = torch.rand(NUMBERS), torch.empty(NUMBERS)
    product = _best(lambda: torch.mm(a, b), seconds)
    copy = _best(lambda: target.copy_(source), seconds)
    return Device(THIS, int(2 * SIDE**3 / product), int(2 * 4 * NUMBERS / copy))


def _best(run: Callable[[], object], seconds: float) -> float:
    """The shortest run in this time, of at least two: other processes can only slow a run down."""
    end, times = perf_counter() + seconds, list[float]()
    while len(times) < 2 or perf_counter() < end:
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times)
