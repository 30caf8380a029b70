"""Where numbers stop being finite: the first layer whose output is not, or the first gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def culprit(model: nn.Module, call: Callable[[], Any]) -> str:
    """Calls a model once more, and says in words which layer gave the first output that is not finite.

    Where all are finite, the first parameter with a gradient that is not.
    """
    found: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and not all(torch.isfinite(value).all() for value in _floats(output)):
                found.append(name)

        return hook

    handles = [module.register_forward_hook(look(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return f"the first output that is not finite is that of '{found[0]}'"
    wrong = [name for name, value in model.named_parameters() if value.grad is not None and not _finite(value.grad)]
    if wrong:
        return f"all outputs are finite, and the gradient of '{wrong[0]}' is not"
    return "the outputs of all layers are finite, and the loss or the norm of the gradient is not"


def _finite(value: Any) -> bool:
    return bool(torch.isfinite(getattr(value, "_local_tensor", value)).all())


def _floats(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    return [value for part in parts for value in _floats(part)]
