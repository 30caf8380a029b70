"""Each design once more as plain loops over positions, heads and components, written from its paper's equation.

`NAME(w, x, memory, sight, **settings)` is one sequence, no batch: `w` maps weight names to tensors, and `sight` says
which keys a query sees. A row that sees nothing is zeros.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import Tensor

from . import baselines, epa, fish, fmm, mgk, modern, modern_layers, positions, recurrences, tuformer
from .core import Sight

FAMILIES = (baselines, positions, modern, modern_layers, recurrences, tuformer, fish, mgk, fmm, epa)


def loops(name: str) -> Callable[..., Tensor]:
    """The plain loops of a design: `loops(NAME)(w, x, memory, causal=, key_mask=, mask=, **settings)`.

    Without `memory` the keys are those of x; `key_mask` is [m] and `mask` [n, m], true where one may look.
    """
    layer: Callable[..., Tensor] = next(getattr(family, name) for family in FAMILIES if hasattr(family, name))
    taken = inspect.signature(layer).parameters

    def of_sequence(
        w: dict[str, Tensor], x: Tensor, memory: Tensor | None = None, *, causal: bool = False,
        key_mask: Tensor | None = None, mask: Tensor | None = None, **settings: object,
    ) -> Tensor:  # fmt: skip
        memory = x if memory is None else memory
        sequences = {"memory": memory, "sight": Sight(len(x), len(memory), causal, key_mask, mask)}
        return layer(w, x, **settings, **{key: value for key, value in sequences.items() if key in taken})

    return of_sequence
