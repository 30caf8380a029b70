"""A least-recently-used cache by content: equal requests return the same object.

The key includes the rows added to the tables of `ops`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from tensornet_attn.ops.registered import added

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """At most `most` values by key; the least recently used value is dropped first.

    >>> squares = LruCache[int](most=2)
    >>> [squares.get(x, lambda: x * x) for x in (2, 3, 2, 4)], len(squares)
    ([4, 9, 4, 16], 2)
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, created by `make` if it is not cached. An exception of `make` propagates."""
        key = added(), key
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        cached = make()  # outside the lock: if two threads create the value, the first one is kept
        with self._lock:
            cached = self._values.setdefault(key, cached)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return cached

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)
