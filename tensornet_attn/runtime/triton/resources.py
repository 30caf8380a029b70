"""What kernels need of a GPU that is not here: registers, stack and shared memory, of every launch of some code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.runtime.triton.configure import SHARED
from tensornet_attn.runtime.triton.target import interpreting

SPILLED = 64  # bytes a thread may keep outside its registers
USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True)
class Used:
    """One compiled kernel: `target` 90 is sm_90; `stack` in bytes a thread, `shared` in bytes a program."""

    kernel: str
    operands: str  # the dtypes of its tensors
    sizes: str  # of its tiles
    target: int
    warps: int
    registers: int
    stack: int
    shared: int

    @property
    def reasons_against(self) -> list[str]:
        """What makes it too large for the target; empty where it fits."""
        found, room = [], 1024 * SHARED[self.target]
        if self.stack > SPILLED:
            found.append(f"{self.stack} bytes a thread are outside of registers, where {SPILLED} may be")
        if self.shared > room:
            found.append(f"{self.shared} bytes of shared memory are wanted of {room}")
        return found


@contextmanager
def compiling(target: int) -> Iterator[list[Used]]:
    """In this context a launch compiles its kernel for `target`, 80 or 90, and does not run it; results are arbitrary.

    The list has what each kernel uses, once. Raises InputError in the interpreter of triton, which compiles nothing.
    """
    if interpreting():
        raise InputError("kernels are compiled without TRITON_INTERPRET alone: unset it in a new process.")
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    run, active, found = JITFunction.run, driver._active, dict[str, Used]()

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in found:
            found[kernel.hash] = used_by(kernel)
            listed.append(found[kernel.hash])

    listed: list[Used] = []
    JITFunction.run = compiled
    driver.set_active(_Absent(target))
    try:
        yield listed
    finally:
        JITFunction.run, driver._active = run, active


class _Absent:
    """A driver of a GPU that is not there: enough of one to compile."""

    def __init__(self, target: int):
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", target, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return -self.target.arch  # what is compiled is kept by device

    def get_current_stream(self, device: int) -> int:
        return 0


def used_by(kernel: Any) -> Used:
    """What a kernel that triton has compiled needs, as the tools in its wheel say."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(kernel.asm["cubin"])
        done = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", str(file)], capture_output=True, text=True, check=True
        )
    usage = USAGE.search(done.stdout + done.stderr)
    if usage is None:
        raise InputError(f"cuobjdump says nothing of registers: {(done.stdout + done.stderr)[:200]!r}")
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
