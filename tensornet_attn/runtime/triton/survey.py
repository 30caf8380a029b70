"""Compiles kernels at their default configurations for GPUs that need not be present, and tabulates resources."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.errors import InputError
from tensornet_attn.graph.graph import Graph
from tensornet_attn.runtime.triton.configure import CONFIGS, SHARED
from tensornet_attn.runtime.triton.target import interpreting

TARGETS = (80, 90)
WIDTHS = (16, 64, 128)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = 256  # at least the rows of the largest tile
SPILLED = 2048  # maximum bytes per thread outside registers: such kernels beat smaller tiles, as measured on an H200
USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True)
class Used:
    """One compiled kernel: `target` 90 is sm_90; `stack` in bytes per thread, `shared` in bytes per program."""

    kernel: str
    operands: str  # the dtypes of its tensors
    sizes: str  # tile sizes
    target: int
    warps: int
    registers: int
    stack: int
    shared: int

    @property
    def reasons_against(self) -> list[str]:
        """Why the kernel is too large for the target; empty if it fits."""
        reasons, room = [], 1024 * SHARED[self.target]
        if self.stack > SPILLED:
            reasons.append(f"{self.stack} bytes per thread are outside registers; at most {SPILLED} are allowed")
        if self.shared > room:
            reasons.append(f"{self.shared} bytes of shared memory are needed; {room} are available")
        return reasons


@contextmanager
def compiling(target: int) -> Iterator[list[Used]]:
    """In this context, launches compile their kernel for `target`, 80 or 90, without running it; results are arbitrary.

    Yields a list with the resources of each kernel. Raises InputError in the interpreter, which compiles nothing.
    """
    if interpreting():
        raise InputError("the interpreter of triton does not compile kernels: unset TRITON_INTERPRET in a new process.")
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    run, active, by_hash = JITFunction.run, driver._active, dict[str, Used]()

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in by_hash:
            by_hash[kernel.hash] = used_by(kernel)
            listed.append(by_hash[kernel.hash])

    listed: list[Used] = []
    absent = SimpleNamespace(  # a stub driver, sufficient for compiling
        get_current_target=lambda: GPUTarget("cuda", target, 32),
        get_current_device=lambda: -target,  # compiled kernels are cached by device
        get_current_stream=lambda device: 0,
    )
    JITFunction.run = compiled
    driver.set_active(absent)
    CONFIGS.clear()  # kept launches are for another target
    try:
        yield listed
    finally:
        JITFunction.run, driver._active = run, active
        CONFIGS.clear()


def used_by(kernel: Any) -> Used:
    """The resources of a compiled kernel, from the tools in the wheel of triton."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(kernel.asm["cubin"])
        completed = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", str(file)], capture_output=True, text=True, check=True
        )
    usage = USAGE.search(completed.stdout + completed.stderr)
    if usage is None:
        raise InputError(f"cuobjdump reports no registers: {(completed.stdout + completed.stderr)[:200]!r}")
    registers, stack = map(int, usage.groups())
    types = dict.fromkeys(kind[1:] for kind in kernel.src.signature.values() if str(kind).startswith("*"))
    names = list(kernel.src.signature)
    sizes = {names[path[0]]: constant for path, constant in kernel.src.constants.items()}
    tiles = " ".join(
        f"{name} {size}"
        for name, size in sizes.items()
        if (name.isupper() or name.endswith("_block")) and name != "PARTS" and type(size) is int
    )
    meta = kernel.metadata
    return Used(meta.name, " ".join(types), tiles, meta.target.arch, meta.num_warps, registers, stack, meta.shared)


def survey(
    family: str,
    targets: Iterable[int] = TARGETS,
    widths: Iterable[int] = WIDTHS,
    dtypes: Iterable[torch.dtype] = DTYPES,
) -> list[Used]:
    """The resources of all kernels of a family, forward and backward, see FAMILIES. Runs nothing."""
    kernels: dict[Used, None] = {}
    for target in targets:
        with compiling(target) as used:
            for dtype in dtypes:
                for width in widths:
                    for out in FAMILIES[family](width, dtype):
                        out.sum().backward()
            kernels |= dict.fromkeys(used)
    return list(kernels)


def used_by_module(module: nn.Module, graph: Graph, target: int) -> list[Used]:
    """The resources of all kernels of a module, forward and backward, with 256 queries and keys. Runs nothing."""
    dtype = next((weight.dtype for weight in module.parameters()), torch.get_default_dtype())
    size = {leg.name: leg.size or ROWS for leg in graph.legs}
    inputs = [
        torch.zeros(1, *(size[leg] for leg in tensor.legs), dtype=dtype, requires_grad=True)
        for tensor in graph.of_role("input")
    ]
    with compiling(target) as used:
        module(*inputs).sum().backward()
    return used


def _leaves(count: int, *shape: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.zeros(shape, dtype=dtype, requires_grad=True) for _ in range(count)]


def _linear(width: int, dtype: torch.dtype) -> Iterator[Tensor]:
    from tensornet_attn.runtime.linear import Term
    from tensornet_attn.runtime.triton.kernels.linear import triton_linear_attention

    q, k, v = _leaves(3, 1, ROWS, width, dtype=dtype)
    for causal in (True, False):
        for normalize in (True, False):
            yield triton_linear_attention([Term(q, k)], v, normalize=normalize, causal=causal)
    yield triton_linear_attention([Term(q, k)], v, torch.ones(ROWS, ROWS, dtype=torch.bool), causal=True)


def _decayed(width: int, dtype: torch.dtype) -> Iterator[Tensor]:
    from tensornet_attn.runtime.linear import Term
    from tensornet_attn.runtime.triton.kernels.decayed import triton_decay_reads

    q, k, v = _leaves(3, 1, ROWS, width, dtype=dtype)
    for rates in (1, width):
        a, b = _leaves(2, 1, ROWS, rates, dtype=torch.promote_types(dtype, torch.float32))
        yield triton_decay_reads([Term(q, k, a, b)], v, True, 64, False)[0][0]


def _delta(width: int, dtype: torch.dtype) -> Iterator[Tensor]:
    from tensornet_attn.runtime.triton.kernels.scan import triton_delta_rule

    q, k, v = _leaves(3, 1, ROWS, width, dtype=dtype)
    (rate,) = _leaves(1, 1, ROWS, dtype=dtype)
    for normalize in ("none", "read"):
        yield triton_delta_rule(q, k, v, rate, normalize=normalize)


def _gated(width: int, dtype: torch.dtype) -> Iterator[Tensor]:
    from tensornet_attn.runtime.triton.kernels.gated import triton_gated_delta_rule

    q, k, v, decay = _leaves(4, 1, ROWS, width, dtype=dtype)
    (rate,) = _leaves(1, 1, ROWS, dtype=dtype)
    yield triton_gated_delta_rule(q, k, v, rate, decay)


def _experts(width: int, dtype: torch.dtype) -> Iterator[Tensor]:
    from tensornet_attn.runtime.triton.kernels.choices import triton_top_chosen
    from tensornet_attn.runtime.triton.kernels.experts import triton_expert_rows, triton_expert_sums
    from tensornet_attn.runtime.triton.kernels.gated_experts import triton_gated_expert_sums

    x, rows, head_inputs = (_leaves(1, ROWS, *shape, dtype=dtype)[0] for shape in ((width,), (1, width), (2, width)))
    (weight,), (head_weights,) = (_leaves(1, *shape, width, width, dtype=dtype) for shape in ((4,), (2, 4)))
    scores, head_scores = (_leaves(1, ROWS, *shape, dtype=dtype)[0] for shape in ((4,), (2, 4)))
    gates, chosen = triton_top_chosen(scores, scores, 2)
    yield triton_expert_sums(rows, weight, gates, chosen)
    yield triton_expert_rows(rows, weight, chosen)
    yield triton_gated_expert_sums(x, head_weights, head_scores, 2)
    yield triton_gated_expert_sums(head_inputs, head_weights, head_scores, 2, True)


FAMILIES: dict[str, Callable[[int, torch.dtype], Iterator[Tensor]]] = {
    "linear attention": _linear,
    "decaying scores": _decayed,
    "delta rule": _delta,
    "delta rule with decay": _gated,
    "grouped experts": _experts,
}


def head() -> list[str]:
    """The explanation above the tables, and the triton version."""
    import triton

    return [
        f"With triton {triton.__version__}. Registers and stack (bytes) are per thread, shared memory (bytes) "
        "per program: the maximum over the variants with these tiles.",
        f"A GPU has {' and '.join(f'{1024 * SHARED[t]:,} bytes (sm_{t})' for t in TARGETS)} of it per program.",
    ]


def table(used: list[Used]) -> list[str]:
    """The resources of kernels, as the lines of a Markdown table."""
    lines = [f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]
    return lines + [f"| {' | '.join(_row(variant))} |" for variant in _most(used)]


def tables(by_family: dict[str, list[Used]]) -> str:
    """A Markdown table per family, after the explanation."""
    sections = [["", f"## {family.capitalize()}", "", *table(used)] for family, used in by_family.items()]
    return "\n".join([*head(), *(line for lines in sections for line in lines)])


def _most(used: list[Used]) -> list[Used]:
    """The maximum over variants, per kernel, dtype and tiles."""
    largest: dict[tuple[str, str, str, int, int], Used] = {}
    for variant in used:
        key = (variant.kernel, variant.operands, variant.sizes, variant.target, variant.warps)
        previous = largest.get(key, variant)
        maxima = {
            name: max(getattr(variant, name), getattr(previous, name)) for name in ("registers", "stack", "shared")
        }
        largest[key] = replace(variant, **maxima)
    return list(largest.values())


_HEAD = ("kernel", "tensors", "tiles", "target", "warps", "registers", "stack", "shared memory")


def _row(variant: Used) -> list[str]:
    numbers = [str(variant.warps), str(variant.registers), str(variant.stack), f"{variant.shared:,}"]
    return [f"`{variant.kernel}`", variant.operands, variant.sizes.lower(), f"sm_{variant.target}", *numbers]
