"""Random choices by counter: which, is a function of the purpose, the seed, the number, and the place of the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tensornet_attn.search.values import Value, Values
from tensornet_attn.tasks.chance import Stream

T = TypeVar("T")
_VERSION = 1  # changes whenever a seed comes to mean other choices


class Luck:
    """The choices of one attempt at one proposal, in the order in which they are asked for."""

    def __init__(self, purpose: str, seed: int, number: int, attempt: int):
        self._draws = Stream(f"space/{purpose}", _VERSION, "proposals", seed).at([number], [attempt])
        self._place = 0

    def unit(self) -> float:
        """A number strictly between 0 and 1."""
        self._place += 1
        return float(self._draws.uniform(self._place, 1)[0, 0])

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.unit() * len(items))]

    def value(self, values: Values) -> Value:
        return values.at(self.unit())

    def shuffled(self, items: Sequence[T]) -> list[T]:
        order = sorted((self.unit(), place) for place in range(len(items)))
        return [items[place] for _, place in order]
