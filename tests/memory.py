"""Peak of live tensor memory on the CPU, as the allocator sees it: what a call allocates, scratch space included."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn


def peak(run: Callable[[], object]) -> int:
    """The most bytes of tensors that live at once while `run` runs, beside those that lived before.

    >>> peak(lambda: torch.zeros(1000, 4).exp().sum()) >= 2 * 16000
    True
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    records = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for record in sorted(records, key=lambda record: record.start_ns()):
        live += record.nbytes()
        most = max(most, live)
    return most


def training_peak(module: nn.Module, n: int, width: int, batch: int = 1) -> int:
    """`peak` of a forward and backward with input gradients, without the gradients of the weights."""
    x, few = (torch.randn(batch, length, width, requires_grad=True) for length in (n, min(n, 16)))
    weights = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)

    def run(x: torch.Tensor) -> None:
        module(x).sum().backward()

    run(few)  # what is made once
    module.zero_grad(set_to_none=True)
    return peak(lambda: run(x)) - weights


def slope(lengths: Sequence[int], peaks: Sequence[int]) -> float:
    """How log memory grows with log length, from the first to the last: 1 is linear, 2 quadratic."""
    return math.log(peaks[-1] / peaks[0]) / math.log(lengths[-1] / lengths[0])
