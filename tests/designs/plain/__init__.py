"""Each design once more as plain loops over positions, heads and components, written from its paper's equation.

`NAME(w, *inputs, **settings, causal=False, key_mask=None, mask=None)` is one sequence, no batch; without a second input
the keys are those of the first: `w` maps weight names
to tensors, `key_mask` is [m] and `mask` [n, m], true where one may look. A row that sees nothing is zeros.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps

from torch import Tensor

from . import baselines, epa, fish, fmm, mgk, modern, modern_layers, positions, recurrences, tuformer


def loops(name: str) -> Callable[..., Tensor]:
    """The plain loops of a design; a module here holds the designs of one family."""
    for family in (baselines, positions, modern, modern_layers, recurrences, tuformer, fish, mgk, fmm, epa):
        if hasattr(family, name):
            return _of_itself(getattr(family, name))
    raise LookupError(f"no plain loops of '{name}'")


def _of_itself(layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The layer, whose memory is its input where none is given."""
    if "memory" not in inspect.signature(layer).parameters:
        return layer

    @wraps(layer)
    def of_itself(w: dict[str, Tensor], x: Tensor, memory: Tensor | None = None, **given: object) -> Tensor:
        return layer(w, x, x if memory is None else memory, **given)

    return of_itself
