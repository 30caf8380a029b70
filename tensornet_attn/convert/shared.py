"""What the layers of a model work out of a call's masks and positions: once, by the first of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

MOST = 8  # results of one call: masks and positions, for each kind of layer


class Shared:
    """The last results, by the tensors that they were made of: the very objects, unchanged since, and still alive."""

    def __init__(self) -> None:
        self._last: list[tuple[tuple[Any, ...], Any]] = []

    def get(self, made: Callable[[], Any], *given: Any) -> Any:
        """made(), or what it gave before for the same tensors and equal other values."""
        if torch.compiler.is_compiling():
            return made()
        for key, value in self._last:
            if len(key) == len(given) and all(_same(a, b) for a, b in zip(key, given, strict=True)):
                return value
        value = made()
        held = tuple((ref(one, self._forget), _version(one)) if isinstance(one, Tensor) else one for one in given)
        self._last = [*self._last[1 - MOST :], (held, value)]
        return value

    def _forget(self, gone: Any) -> None:
        self._last = []

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model begins anew."""
        return Shared, ()


def _same(held: Any, given: Any) -> bool:
    if isinstance(given, Tensor):
        return isinstance(held, tuple) and held[0]() is given and bool(held[1] == _version(given))
    return not isinstance(held, tuple) and bool(held == given)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
