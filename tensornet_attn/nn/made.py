"""What the compiler makes of a plan for a module to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Tensor = torch.Tensor
Result = Tensor | tuple[Tensor, dict[str, Tensor]]
Run = Callable[..., Result]


@dataclass(frozen=True)
class Made:
    """What the compiler makes of a plan: source text, the function that runs it, and the oracle for single steps."""

    source: str
    run: Run
    evaluate: Callable[..., dict[str, Tensor]]
