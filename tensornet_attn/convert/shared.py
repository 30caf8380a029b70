"""A cache of converted masks and positions that the layers of a model share within a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

MOST = 8  # cached results: a call has one for each kind of layer


class Shared:
    """Caches recent results by their arguments: identical tensors that were not modified, and equal other values."""

    def __init__(self) -> None:
        self._last: list[tuple[tuple[Any, ...], list[Any], Any]] = []

    def get(self, made: Callable[[], Any], tensors: tuple[Tensor | None, ...], others: tuple[Any, ...]) -> Any:
        """The cached result for these arguments, or that of `made()`."""
        given = [one for one in tensors if one is not None]
        if torch.compiler.is_compiling() or any(one.is_inference() for one in given):  # have no version counter
            return made()
        for held, refs, value in self._last:
            if held == others and all(map(_same, refs, tensors)):
                return value
        value = made()
        refs = [None if one is None else (ref(one, self._forget), one._version) for one in tensors]
        self._last = [*self._last[1 - MOST :], (others, refs, value)]
        return value

    def _forget(self, gone: Any) -> None:
        self._last = []

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model has an empty cache."""
        return Shared, ()


def _same(held: Any, given: Tensor | None) -> bool:
    if held is None or given is None:
        return held is given
    return held[0]() is given and bool(held[1] == given._version)
