"""Implementations: each file has all that the compiler knows of one way to compute steps of a diagram.

Which forms it takes and the reasons against others, the kernel that it makes of them, its costs, and the text of its
call. The functions that the text calls are in `runtime/`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tensornet_attn.cost.kernels import KERNELS
from tensornet_attn.kernels.implementation import Implementation

__all__ = ["KERNELS", "Implementation"]

for _module in iter_modules(__path__):
    KERNELS |= {
        row.kind: row
        for row in vars(import_module(f"{__name__}.{_module.name}")).values()
        if isinstance(row, Implementation) and row.kind
    }
