"""What the compiler makes of a plan for a module to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor


class Arguments(NamedTuple):
    """What a module was called with, checked; `lengths`: those of the sequence legs."""

    inputs: tuple[Tensor, ...]
    lengths: dict[str, int]
    mask: Tensor | None
    key_mask: Tensor | None
    noise: Mapping[str, Tensor] | None
    losses: bool = False


Result = Tensor | tuple[Tensor, dict[str, Tensor]] | tuple[Tensor, ...]  # with losses; of several outputs
Run = Callable[[Any, Arguments], Result]  # of the module, or of what stands in its place


@dataclass(frozen=True)
class Made:
    """What the compiler makes of a plan: source text, the function that runs it, and the oracle for single steps."""

    source: str
    run: Run
    evaluate: Callable[..., dict[str, Tensor]]
