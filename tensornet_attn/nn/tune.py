"""Tuning: times each candidate configuration of each launched kernel on the device and keeps the fastest."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.graph.pairs import BATCH
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.runtime.triton import configure
from tensornet_attn.runtime.triton.cache import Choices, cache_file, cache_key, keep, recall

RUNS = 5  # timed calls per candidate, after one that compiles; the shortest counts
NEVER = float("inf")


def tuned(call: Callable[[], object], source: str) -> Choices:
    """Times a call with each candidate of its kernels; later launches use the fastest, which is saved to disk.

    `source`: the source text of the kernels. Skips candidates that do not fit the device. Raises InputError if there is
    no GPU, or no folder for the results.
    """
    if not torch.cuda.is_available():
        raise InputError("tune: there is no GPU to time kernels on; leave it out to use the cost model.")
    cache_file().parent.mkdir(parents=True, exist_ok=True)  # fails before the measurements
    configure.ASKED.clear()
    configure.CONFIGS.clear()  # makes the call request all configurations
    call()
    choices: Choices = {}
    for key, candidates in list(configure.ASKED.items()):
        times = [_time(call, key, candidate) for candidate in candidates]
        if min(times) < NEVER:
            choices[key] = candidates[times.index(min(times))]
            configure.choose({key: choices[key]})
    keep(cache_key(source), choices)
    return choices


def tune_design(design: CompiledDesign) -> Choices:
    """Tunes the kernels of a compiled design, forward and backward, at the lengths and the batch of its plan.

    Restores states and random number generators afterwards. Raises InputError if the plan has no Triton kernels, or if
    there is no GPU.
    """
    plan = design.plan
    if plan.backend != "triton":
        raise InputError(f"{plan.graph.name}: the plan runs on '{plan.backend}'; only 'triton' can be tuned.")
    like, states = next(design.parameters()), {name: x.clone() for name, x in design.named_buffers()}
    sizes = {leg.name: leg.size or 1 for leg in plan.graph.legs} | dict(plan.target.sizes(plan.graph))
    shapes = [(sizes[BATCH], *(sizes[leg] for leg in tensor.legs)) for tensor in plan.graph.of_role("input")]
    draw = torch.Generator(like.device).manual_seed(0)
    inputs = [torch.randn(shape, generator=draw, device=like.device, dtype=like.dtype) for shape in shapes]

    def call() -> None:
        out = design(*inputs)
        if plan.target.backward:
            torch.autograd.grad(out.sum(), list(design.parameters()), allow_unused=True)

    with torch.random.fork_rng([like.device] if like.is_cuda else []):
        choices = tuned(call, design.source)
    for name, x in design.named_buffers():
        x.copy_(states[name])
    return choices


def recalled(source: str) -> None:
    """Uses the tuned configurations that are saved for this source text and device."""
    if choices := recall(cache_key(source)):
        configure.choose(choices)


def _time(call: Callable[[], object], key: str, config: dict[str, int]) -> float:
    """Milliseconds of the call with this configuration of one kernel. Returns NEVER if it does not fit."""
    from triton.runtime.errors import OutOfResources

    before = dict(configure.CHOICES)
    configure.choose({key: config})
    try:
        call()
        return min(_milliseconds(call) for _ in range(RUNS))
    except OutOfResources:
        return NEVER
    finally:
        configure.CHOICES.clear()
        configure.choose(before)


def _milliseconds(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
