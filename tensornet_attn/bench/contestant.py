"""What a contestant is, and what it may lack here: memory, a compiler, a GPU."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec

from torch import nn

from tensornet_attn.bench.case import Case
from tensornet_attn.bench.gpu import is_gpu
from tensornet_attn.bench.guard import gibibytes


class SkippedError(Exception):
    """A contestant cannot run a case; the message says why."""


@dataclass(frozen=True)
class Contestant:
    """A module that is ready to run, the case that it computes, and a note on what it is."""

    module: nn.Module
    case: Case
    note: str = ""


def within(size: float, limit: float) -> None:
    if size > limit:
        raise SkippedError(
            f"its tensors over pairs of positions would take about {gibibytes(size)}, above the limit of "
            f"{gibibytes(limit)} (--memory)."
        )


def need_kernels(case: Case) -> None:
    """Raises SkippedError where the kernels of backend triton cannot run."""
    from tensornet_attn.runtime.triton.target import interpreting, reasons_against

    reasons = reasons_against(case.torch_dtype)
    if not reasons and not case.on_gpu and not interpreting():
        reasons = ["Triton kernels run on a GPU: --device cuda"]
    if reasons:
        raise SkippedError(f"{'; '.join(reasons)}.")


def need_compiler(device: str) -> None:
    """Raises SkippedError where torch.compile has nothing to compile with."""
    if is_gpu(device):
        if find_spec("triton") is None:
            raise SkippedError("torch.compile needs triton on a GPU, and it is not installed.")
    elif not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
        raise SkippedError("torch.compile needs a C++ compiler on the CPU, and none of g++ and clang++ is on the PATH.")
