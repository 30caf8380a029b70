"""Whether Triton kernels can run here, the reasons if not, and the interpreter that runs them without a GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch

from tensornet_attn.cost.devices import GENERIC, costs_on_cpu

LEAST = (8, 0)  # compute capability of the oldest GPUs that the tests compile for


def interpreting() -> bool:
    """Whether kernels run on the CPU in triton's interpreter; the same test that triton does on import."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def reasons_against(dtype: torch.dtype | None = None) -> list[str]:
    """Why Triton kernels cannot run here, as sentences without full stop; empty if they can."""
    if find_spec("triton") is None:
        return ["triton is not installed: 'pip install triton' on Linux"]
    if interpreting():
        return ["the interpreter of triton rounds bfloat16 incorrectly"] if dtype == torch.bfloat16 else []
    if not torch.cuda.is_available():
        return ["there is no GPU, and triton runs on the CPU only if TRITON_INTERPRET=1 is set"]
    capability = torch.cuda.get_device_capability()
    if capability < LEAST:
        return [f"the GPU has capability {capability[0]}.{capability[1]}, but 8.0 or above is required"]
    return []


def costs_for(
    device: torch.device | str | None, dtype: torch.dtype | None, backend: str = "torch", workload: str = "training"
) -> str:
    """The entry of the device table used to plan a module on this device: for GPUs, the nearest one.

    A module on the meta device is planned for a CPU; a GPU that it is moved to plans it again.
    """
    if not on_gpu(device):
        on_cpu = device_of(device).type in ("cpu", "meta")
        return costs_on_cpu(backend, workload) if on_cpu else GENERIC.name
    name = "h200" if torch.cuda.get_device_capability(device) >= (9, 0) else "a100"
    half = (torch.get_default_dtype() if dtype is None else dtype) in (torch.bfloat16, torch.float16)
    return f"{name}-bfloat16" if half else name


def on_gpu(device: torch.device | str | None) -> bool:
    """Whether a device is a GPU that Triton compiles for."""
    return device_of(device).type == "cuda"


def device_of(device: torch.device | str | None) -> torch.device:
    """A device; None is torch's default device."""
    return torch.device(torch.get_default_device() if device is None else device)


def mend_interpreter() -> None:
    """Makes `range` work in kernels in the interpreters of triton 3.6 and 3.7 with numpy 2.4 or newer.

    There a scalar is an array with one element, which numpy no longer converts to int. Idempotent.
    """
    from triton.runtime import interpreter

    if getattr(interpreter, "mended", False):
        return
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor, interpreter.mended = patched, True
