"""The rates of this machine's CPU, measured in about a second."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from tensornet_attn.cost.devices import THIS, Device

SECONDS = 0.5  # for each of the two rates
SIDE = 1024  # of the matrices multiplied: large enough for the full rate
NUMBERS = 2**24  # of the tensor copied: 64 MiB, more than caches hold


def calibrate(seconds: float = SECONDS) -> Device:
    """This CPU in float32 with the threads that torch uses: its best matrix product and its best copy."""
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    source, target = torch.rand(NUMBERS), torch.empty(NUMBERS)
    product = _best(lambda: torch.mm(a, b), seconds)
    copy = _best(lambda: target.copy_(source), seconds)
    return Device(THIS, int(2 * SIDE**3 / product), int(2 * 4 * NUMBERS / copy))


def _best(run: Callable[[], object], seconds: float) -> float:
    """The shortest of the runs that this time allows, at least two: others on the machine only ever add."""
    end, times = perf_counter() + seconds, list[float]()
    while len(times) < 2 or perf_counter() < end:
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times)
