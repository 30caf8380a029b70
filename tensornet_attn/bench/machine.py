"""Where a measurement was made."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

from tensornet_attn.bench.gpu import gpu_words, is_gpu
from tensornet_attn.version import __version__


def machine(device: str) -> dict[str, object]:
    """Processor, cores, threads, device and versions."""
    cuda = is_gpu(device)
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "gpu": gpu_words(device),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "tensornet_attn": __version__,
    }


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The model as Linux names it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def load() -> float | None:
    """Processes that wanted to run in the last minute, on average; None where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
