"""Peak of live tensor memory on the CPU, as the allocator sees it: what a call allocates, scratch space included."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn


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


def kept(run: Callable[[], object], but: Iterable[Tensor] = ()) -> int:
    """Bytes of the floats that autograd keeps for the backward of `run`, each memory once, without those of `but`."""
    memories: dict[int, Tensor] = {}  # held: a freed one's address may be given again

    def pack(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            memories[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    without = {tensor.untyped_storage().data_ptr() for tensor in but}
    return sum(x.untyped_storage().nbytes() for place, x in memories.items() if place not in without)


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
