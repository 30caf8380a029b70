"""What the machine itself reaches, measured in the run: a large product of matrices and a large copy."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from math import inf

import torch

from tensornet_attn.bench.gpu import is_gpu, sample_of
from tensornet_attn.bench.measure import Call, Sample, by_clock
from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.sizes import dtype_bytes

LEAST = 3  # samples
SIZES = {"cuda": (8192, 1 << 30), "cpu": (512, 1 << 24)}  # side of the matrices, bytes that are copied
SECONDS = {"cuda": 0.5, "cpu": 0.1}  # for each of the two


@dataclass(frozen=True)
class Rates:
    """FLOPs a second of a product of two `side` x `side` matrices, bytes read and written a second by a copy."""

    dtype: str
    flops: float
    bandwidth: float
    side: int
    copied: int

    def floor(self, flops: float, moved: float) -> float:
        """Seconds that neither can be below.

        >>> Rates("bfloat16", 1e12, 1e10, 8192, 2**30).floor(5e9, 2e8)
        0.02
        """
        return max(flops / self.flops, moved / self.bandwidth)

    @property
    def device(self) -> Device:
        """The machine as plans are made for it."""
        return Device("measured", int(self.flops), int(self.bandwidth), dtype_bytes(self.dtype))

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measured_rates(device: str, dtype: str) -> Rates:
    """The rates of a device in a dtype, of the shortest sample each: whatever else runs only ever adds."""
    where = "cuda" if is_gpu(device) else "cpu"
    (side, copied), seconds = SIZES[where], SECONDS[where]
    kind: torch.dtype = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(side, side, generator=generator).to(device, kind) for _ in range(2))
    source = torch.ones(copied // 4, device=device)
    target = torch.empty_like(source)
    sample = sample_of(device) or by_clock(time.perf_counter)
    product = shortest(lambda: torch.mm(a, b), sample, seconds)
    copy = shortest(lambda: target.copy_(source), sample, seconds)
    return Rates(dtype, 2 * side**3 / product, 2 * copied / copy, side, copied)


def shortest(call: Call, sample: Sample, seconds: float) -> float:
    """The shortest sample of those that this time allows, three at least; the first call does not count."""
    sample(call, 1)
    end, count, best = time.perf_counter() + seconds, 0, inf
    while count < LEAST or time.perf_counter() < end:
        best, count = min(best, sample(call, 1)), count + 1
    return best
