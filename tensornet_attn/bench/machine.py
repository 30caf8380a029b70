"""The machine of a measurement: its description, memory limit and measured rates."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from math import inf
from multiprocessing import parent_process
from threading import Thread

import torch

from tensornet_attn.bench.measure import Call, Sample, by_clock, is_gpu, sample_of
from tensornet_attn.bench.rates import copy_rate, exponential_rate, product_rates
from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.products import MeasuredRate, Shape, rate_at
from tensornet_attn.cost.rates import KEPT, processor
from tensornet_attn.cost.sizes import dtype_bytes
from tensornet_attn.version import __version__

PART = 0.5  # share of a GPU's memory for tensors over pairs of positions
LEAST = 3  # minimum number of samples of a rate
SIZES = {"cuda": (8192, 1 << 30), "cpu": (512, 1 << 24)}  # side of the matrices, bytes to copy
SECONDS = {"cuda": 0.5, "cpu": 0.1}  # measuring time of each rate
BRIEF = 0.3  # share of this time for each of many rates
EXPONENTIALS = 1 << 17  # elements, which stay in a cache


def start_worker(threads: int) -> None:
    """Called first in a process that measures for another one: it uses so many threads, and ends with the other one."""
    torch.set_num_threads(threads)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None  # set in each child of multiprocessing
    parent.join()
    os._exit(1)


def machine(device: str) -> dict[str, object]:
    """Processor, cores, threads, device and versions."""
    try:
        triton: str | None = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = None
    return {
        "cpu": processor(),
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
    """Name, capability, memory in bytes, number of multiprocessors and CUDA version of a GPU; None for a CPU."""
    if not is_gpu(device):
        return None
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory": properties.total_memory,
        "processors": properties.multi_processor_count,
        "cuda": str(torch.version.cuda),
    }


def load() -> float | None:
    """The load average of the last minute, or None if the system does not report it."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def memory_limit(device: str, otherwise: float) -> float:
    """The limit in GiB for tensors over pairs of positions: half of a GPU's memory, or `otherwise` on a CPU."""
    return PART * torch.cuda.get_device_properties(device).total_memory / 2**30 if is_gpu(device) else otherwise


def tidy(device: str) -> None:
    """Frees the memory of earlier contestants. On a CPU, that of tensors up to `KEPT` is then used again.

    Otherwise, a new process gets new pages from the system in each call, until a tensor as large as its largest ones
    has been freed.
    """
    gc.collect()
    if is_gpu(device):
        torch.cuda.empty_cache()
    else:
        torch.empty(KEPT, dtype=torch.uint8)


def select(device: str) -> None:
    """Makes a GPU the current device, which events and Triton kernels use."""
    if is_gpu(device) and torch.device(device).index is not None:
        torch.cuda.set_device(device)


@dataclass(frozen=True)
class Rates:
    """FLOP/s of a product of two `side` x `side` matrices, and bytes per second that a copy reads and writes.

    `products`: FLOP/s by shape, none on a GPU. `exponentials`: per second, 0 if not measured.
    """

    dtype: str
    flops: float
    bandwidth: float
    side: int
    copied: int
    products: tuple[MeasuredRate, ...] = ()
    exponentials: float = 0.0

    def floor(self, flops: float, moved: float, work: Sequence[tuple[Shape, float]] = (), exps: float = 0.0) -> float:
        """The minimum seconds: the longer of arithmetic and of moving bytes, which can happen at the same time.

        Arithmetic is the sum of products at the rate of their shape and of exponentials. `work`: FLOPs by shape;
        the rest of `flops` counts at the rate of square matrices.

        >>> Rates("bfloat16", 1e12, 1e10, 8192, 2**30).floor(5e9, 2e8)
        0.02
        """
        shaped = [(rate_at(shape, self.products), shape_flops) for shape, shape_flops in work] if self.products else []
        plain = max(0.0, flops - sum(shape_flops for _, shape_flops in shaped))
        arithmetic = sum(shape_flops / min(rate, self.flops) for rate, shape_flops in shaped) + plain / self.flops
        arithmetic += exps / self.exponentials if self.exponentials else 0.0
        return max(arithmetic, moved / self.bandwidth)

    @property
    def device(self) -> Device:
        """The machine as a device of the cost table."""
        return Device("measured", int(self.flops), int(self.bandwidth), dtype_bytes(self.dtype), gpu=not self.products)


def measured_rates(device: str, dtype: str) -> Rates:
    """The rates of a device in a dtype, from the shortest samples, because other load only adds time.

    Rates by shape and of exponentials are those of a CPU: on a GPU, products and exponentials of fused kernels overlap,
    and products by shape would mostly measure the memory that their results take.
    """
    device_type = torch.device(device).type
    (side, copied), seconds = SIZES[device_type], SECONDS[device_type]
    torch_dtype: torch.dtype = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(side, side, generator=generator).to(device, torch_dtype) for _ in range(2))
    sample = sample_of(device) or by_clock(time.perf_counter)
    product = shortest(lambda: torch.mm(left, right), sample, seconds)
    copy = copy_rate(lambda call: shortest(call, sample, seconds), device, copied)

    def best(call: Call) -> float:
        return shortest(call, sample, seconds * BRIEF)

    rates = Rates(dtype, 2 * side**3 / product, copy, side, copied)
    if device_type == "cuda":
        return rates
    exponentials = exponential_rate(best, device, torch_dtype, EXPONENTIALS)
    return replace(rates, products=tuple(product_rates(best, device, torch_dtype)), exponentials=exponentials)


def shortest(call: Call, sample: Sample, seconds: float) -> float:
    """The shortest sample within this time, of at least three. The first call is a warm-up."""
    sample(call, 1)
    end, count, best = time.perf_counter() + seconds, 0, inf
    while count < LEAST or time.perf_counter() < end:
        best, count = min(best, sample(call, 1)), count + 1
    return best
