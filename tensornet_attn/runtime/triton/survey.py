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
from tensornet_attn.graph.model import Graph
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
        found, room = [], 1024 * SHARED[self.target]
        if self.stack > SPILLED:
            found.append(f"{self.stack} bytes per thread are outside registers; at most {SPILLED} are allowed")
        if self.shared > room:
            found.append(f"{self.shared} bytes of shared memory are needed; {room} are available")
        return found


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

    run, active, found = JITFunction.run, driver._active, dict[str, Used]()

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in found:
            found[kernel.hash] = used_by(kernel)
            listed.append(found[kernel.hash])

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
        done = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", str(file)], capture_output=True, text=True, check=True
        )
    usage = USAGE.search(done.stdout + done.stderr)
    if usage is None:
        raise InputError(f"cuobjdump reports no registers: {(done.stdout + done.stderr)[:200]!r}")
    registers, stack = map(int, usage.groups())
    types = dict.fromkeys(kind[1:] for kind in kernel.src.signature.values() if str(kind).startswith("*"))
    names = list(kernel.src.signature)
    sizes = {names[place[0]]: value for place, value in kernel.src.constants.items()}
    tiles = " ".join(
        f"{name} {value}"
        for name, value in sizes.items()
        if (name.isupper() or name.endswith("_block")) and name != "PARTS" and type(value) is int
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
    found: dict[Used, None] = {}
    for target in targets:
        with compiling(target) as used:
            for dtype in dtypes:
                for width in widths:
                    for out in FAMILIES[family](width, dtype):
                        out.sum().backward()
            found |= dict.fromkeys(used)
    return list(found)


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
    from tensornet_attn.runtime.triton.kernels.linear import triton_linear_attention

    q, k, v = _leaves(3, 1, ROWS, width, dtype=dtype)
    for causal in (True, False):
        for normalize in (True, False):
            yield triton_linear_attention([(q, k)], v, normalize=normalize, causal=causal)
    yield triton_linear_attention([(q, k)], v, torch.ones(ROWS, ROWS, dtype=torch.bool), causal=True)


def _decayed(width: int, dtype: torch.dtype) -> Iterator[Tensor]:
    from tensornet_attn.runtime.triton.kernels.decayed import triton_decay_reads

    q, k, v = _leaves(3, 1, ROWS, width, dtype=dtype)
    for rates in (1, width):
        a, b = _leaves(2, 1, ROWS, rates, dtype=torch.promote_types(dtype, torch.float32))
        yield triton_decay_reads([(q, k, a, b)], v, True, 64, False)[0][0]


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

    x, rows, heads = (_leaves(1, ROWS, *shape, dtype=dtype)[0] for shape in ((width,), (1, width), (2, width)))
    (weight,), (many,) = (_leaves(1, *shape, width, width, dtype=dtype) for shape in ((4,), (2, 4)))
    scores, several = (_leaves(1, ROWS, *shape, dtype=dtype)[0] for shape in ((4,), (2, 4)))
    gates, chosen = triton_top_chosen(scores, scores, 2)
    yield triton_expert_sums(rows, weight, gates, chosen)
    yield triton_expert_rows(rows, weight, chosen)
    yield triton_gated_expert_sums(x, many, several, 2)
    yield triton_gated_expert_sums(heads, many, several, 2, True)


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
    return lines + [f"| {' | '.join(_row(one))} |" for one in _most(used)]


def tables(found: dict[str, list[Used]]) -> str:
    """A Markdown table per family, after the explanation."""
    sections = [["", f"## {family.capitalize()}", "", *table(used)] for family, used in found.items()]
    return "\n".join([*head(), *(line for lines in sections for line in lines)])


def _most(used: list[Used]) -> list[Used]:
    """The maximum over variants, per kernel, dtype and tiles."""
    found: dict[tuple[str, str, str, int, int], Used] = {}
    for one in used:
        key = (one.kernel, one.operands, one.sizes, one.target, one.warps)
        other = found.get(key, one)
        most = {name: max(getattr(one, name), getattr(other, name)) for name in ("registers", "stack", "shared")}
        found[key] = replace(one, **most)
    return list(found.values())


_HEAD = ("kernel", "tensors", "tiles", "target", "warps", "registers", "stack", "shared memory")


def _row(one: Used) -> list[str]:
    numbers = [str(one.warps), str(one.registers), str(one.stack), f"{one.shared:,}"]
    return [f"`{one.kernel}`", one.operands, one.sizes.lower(), f"sm_{one.target}", *numbers]
