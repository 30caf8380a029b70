"""The tables of the language: `OPS` (operations, the kinds of boxes), `MAPS` (elementwise maps), `MASKS`.

Each operation has its own file. A class in this folder that defines `kind` is an operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from tensornet_attn.ops.maps import MAPS, ElementwiseMap, another_map
from tensornet_attn.ops.masks import MASKS, Mask, another_mask
from tensornet_attn.ops.operation import Operation
from tensornet_attn.ops.registered import registered
from tensornet_attn.ops.schema import BOXES, rebuild

__all__ = [
    "MAPS",
    "MASKS",
    "OPS",
    "ElementwiseMap",
    "Mask",
    "Operation",
    "another_map",
    "another_mask",
    "another_operation",
]

ORDER = (
    "softmax normalize keep map logsumexp max sum mean cumsum reverse_cumsum topk rmsnorm layernorm groupnorm l1norm "
    "l2norm rope rel_shift conv delta_rule scan dropout".split()
)  # in messages and the JSON schema; other kinds follow


def _found(parent: Any) -> Iterator[Operation]:
    for operation in parent.__subclasses__():
        yield from [operation()] if "kind" in vars(operation) else []
        yield from _found(operation)


def _place(operation: Operation) -> tuple[int, str]:
    listed = operation.kind in ORDER
    return ORDER.index(operation.kind) if listed else len(ORDER), operation.kind


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
OPS: dict[str, Operation] = {operation.kind: operation for operation in sorted(_found(Operation), key=_place)}
BOXES |= {kind: operation.model for kind, operation in OPS.items() if operation.model is not None}


@contextmanager
def another_operation(operation: Operation) -> Iterator[None]:
    """Adds an operation to the language inside a `with` block."""
    with registered(OPS, operation.kind, operation, "box"):
        if operation.model is not None:
            BOXES[operation.kind] = operation.model
            rebuild()
        try:
            yield
        finally:
            if BOXES.pop(operation.kind, None) is not None:
                rebuild()
