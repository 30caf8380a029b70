"""The executable form of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor


class Arguments(NamedTuple):
    """The checked arguments of a call; `lengths`: those of the sequence legs."""

    inputs: tuple[Tensor, ...]
    lengths: dict[str, int]
    mask: Tensor | None
    key_mask: Tensor | None
    noise: Mapping[str, Tensor] | None
    losses: bool = False


Result = Tensor | tuple[Tensor, dict[str, Tensor]] | tuple[Tensor, ...]  # output; (output, losses); several outputs
Run = Callable[[Any, Arguments], Result]  # (module or its replacement, arguments) -> result


@dataclass(frozen=True)
class Executable:
    """A plan made executable: source text, the function that runs it, and the reference that evaluates single steps."""

    source: str
    run: Run
    evaluate: Callable[..., dict[str, Tensor]]
    compiled: bool = True  # False: C++ is neither in the cache nor to be compiled
