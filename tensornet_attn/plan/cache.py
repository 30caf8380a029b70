"""What was made is kept by content, the last few of it: the same request gives the same object.

Its content is that of the tables of `ops` too, to which rows may be added.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from tensornet_attn.ops.registered import added

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """At most `most` values by key, the least recently used forgotten first.

    >>> squares = Cache[int](most=2)
    >>> [squares.get(x, lambda: x * x) for x in (2, 3, 2, 4)], len(squares)
    ([4, 9, 4, 16], 2)
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of the key, made where it is not kept; what `make` raises is raised, and nothing is kept."""
        key = added(), key
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()  # outside of the lock: two threads may make the same, and the first one stays
        with self._lock:
            made = self._values.setdefault(key, made)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return made

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)
