"""Whether Triton kernels can run here, what speaks against it, and the interpreter that runs them without a GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch

LEAST = (8, 0)  # the capability of the oldest GPUs that the kernels are compiled for in the tests


def interpreting() -> bool:
    """Whether kernels run on the CPU, in the interpreter of triton, as triton itself decides when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def reasons_against(dtype: torch.dtype | None = None) -> list[str]:
    """What speaks against Triton kernels here, a sentence without its full stop each; empty where they run."""
    if find_spec("triton") is None:
        return ["triton is not installed: 'pip install triton' on Linux"]
    if interpreting():
        return ["the interpreter of triton rounds bfloat16 wrongly"] if dtype == torch.bfloat16 else []
    if not torch.cuda.is_available():
        return ["there is no GPU, and triton runs on the CPU only where TRITON_INTERPRET=1 is set"]
    capability = torch.cuda.get_device_capability()
    if capability < LEAST:
        return [f"the GPU has capability {capability[0]}.{capability[1]}, where 8.0 or above is wanted"]
    return []


def costs_for(device: torch.device | str | None, dtype: torch.dtype | None) -> str:
    """The entry of the device table that a module is planned for, made on this device: of GPUs the nearest one."""
    if not on_gpu(device):
        return "generic"
    name = "h200" if torch.cuda.get_device_capability(device) >= (9, 0) else "a100"
    half = (torch.get_default_dtype() if dtype is None else dtype) in (torch.bfloat16, torch.float16)
    return f"{name}-bfloat16" if half else name


def on_gpu(device: torch.device | str | None) -> bool:
    """Whether what is made for a device stands on a GPU that Triton compiles for."""
    return torch.device(torch.get_default_device() if device is None else device).type == "cuda"


def mend_interpreter() -> None:
    """Lets kernels count with `range` in the interpreter of triton 3.6, where numpy is 2.4 or newer.

    A number of a kernel is an array of one entry there, of which numpy makes no int any more. Does nothing twice.
    """
    from triton.runtime import interpreter

    if getattr(interpreter, "mended", False):
        return
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor, interpreter.mended = patched, True
