"""Where a measurement is made: what the machine is, what of its memory may be taken, what rates it reaches itself."""

from __future__ import annotations

import gc
import os
import platform
import time
from dataclasses import dataclass
from importlib import metadata
from math import inf
from pathlib import Path

import torch

from tensornet_attn.bench.measure import Call, Sample, by_clock, is_gpu, sample_of
from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.sizes import dtype_bytes
from tensornet_attn.version import __version__

PART = 0.5  # of a GPU's memory, which tensors over pairs of positions may be predicted to take
LEAST = 3  # samples of a rate
SIZES = {"cuda": (8192, 1 << 30), "cpu": (512, 1 << 24)}  # side of the matrices, bytes that are copied
SECONDS = {"cuda": 0.5, "cpu": 0.1}  # for each of the two


def machine(device: str) -> dict[str, object]:
    """Processor, cores, threads, device and versions."""
    try:
        triton: str | None = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]  # as Linux names it
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if is_gpu(device) else "cpu",
        "gpu": gpu_words(device),
        "torch": torch.__version__,
        "triton": triton,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "tensornet_attn": __version__,
    }


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


def load() -> float | None:
    """Processes that wanted to run in the last minute, on average; None where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


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
    if is_gpu(device) and torch.device(device).index is not None:
        torch.cuda.set_device(device)


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


def measured_rates(device: str, dtype: str) -> Rates:
    """The rates of a device in a dtype, of the shortest sample each: whatever else runs only ever adds."""
    where = torch.device(device).type
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
