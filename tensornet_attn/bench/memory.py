"""Memory of a call: what its tensors over pairs of positions are predicted to take, and the peak that was measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import accumulate
from math import prod

import torch

from tensornet_attn.bench.case import Case
from tensornet_attn.bench.measure import is_gpu
from tensornet_attn.cost.sizes import dtype_bytes, sizes_at
from tensornet_attn.graph.model import Graph

SAVED = 4  # copies of a pair tensor that autograd keeps where every box is written out
AT_ONCE = 3  # copies alive while one is made: operand, mask applied, result


def pair_elements(graph: Graph, lengths: dict[str, int]) -> list[int]:
    """Elements of one sequence's tensors over both a query and a key, step by step.

    >>> from tensornet_attn import build, load
    >>> pair_elements(build(load("mhsa")), {"n": 4, "m": 4})  # A.of and A: 8 heads, 16 pairs
    [128, 128]
    """
    sizes, pair = sizes_at(graph, lengths), {graph.query, graph.key}
    return [prod(sizes[leg] for leg in step.legs) for step in graph.steps if pair <= set(step.legs)]


def pair_bytes(graph: Graph, case: Case, kept: bool) -> int:
    """What the pair tensors of a graph take where each step is made by itself; `kept`: until the last is made."""
    found = pair_elements(graph, case.lengths)
    elements = AT_ONCE * max(found, default=0) + (sum(found) if kept else 0)
    return case.batch * dtype_bytes(case.dtype) * elements


def reference_bytes(case: Case) -> int:
    """What the comparison with the reference takes: one sequence, float64, everything kept."""
    return SAVED * dtype_bytes("float64") * sum(pair_elements(case.graph, case.lengths))


def peak_bytes(call: Callable[[], object], device: str = "cpu") -> int:
    """The most bytes of tensors alive at once during one call, beyond those alive at its start.

    Inputs and weights do not count, gradients do. On CUDA as the allocator counts them. On the CPU from the profiler's
    record of every allocation, which also sees what compiled code and fused operations allocate for themselves; a
    tensor subclass or dispatch mode sees neither.
    """
    if is_gpu(device):
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to standard error when it starts and stops
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        result = call()  # alive until the profile ends
    del result
    events = profile.profiler.kineto_results.events()
    return highest((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")


def highest(changes: Iterable[tuple[int, int]]) -> int:
    """The highest sum of changes, (nanoseconds, bytes) each, in the order of their times.

    >>> highest([(3, -5), (1, 5), (2, 4)])
    9
    """
    ordered = sorted(changes, key=lambda change: change[0])
    return max(accumulate((change for _, change in ordered), initial=0))
