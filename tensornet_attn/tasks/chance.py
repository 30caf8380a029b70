"""Random numbers by counter: a number is a function of (task, version, split, seed, index, attempt, purpose, slot).

Nothing is drawn in turn, so a sample never depends on its batch, on the order of the calls or on the process.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2 ** 64 / golden ratio, the step of splitmix64
_PURPOSE = np.uint64(2**32)  # slots of one purpose


def mix(words: Words) -> Words:
    """splitmix64's finaliser: a bijection of 64 bits in which each bit depends on all of them."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def scaled(bits: Words, bound: int | Integers) -> Integers:
    """Integers below `bound` (at most 2 ** 31) from 32 or more random bits, biased by less than bound / 2 ** 32."""
    return (((bits >> np.uint64(32)) * np.asarray(bound, np.uint64)) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class Stream:
    """The samples of one split of one task: numbered from 0, each with random numbers of its own."""

    task: str
    version: int
    split: str
    seed: int

    @cached_property
    def key(self) -> np.uint64:
        name = f"{self.task}/{self.version}/{self.split}/{self.seed}"
        return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))

    def at(self, index: npt.ArrayLike, attempt: npt.ArrayLike = 0) -> Draws:
        """The random numbers of samples [b]; each attempt at a sample has others."""
        base = mix(self.key + np.atleast_1d(index).astype(np.uint64) * GOLDEN)
        return Draws(mix(base + (np.atleast_1d(attempt).astype(np.uint64) + np.uint64(1)) * GOLDEN))

    def order(self, epoch: int, size: int, block: int = 1) -> Integers:
        """The order of the samples in an epoch: [size]. Blocks of neighbours stay together, shuffled inside."""
        return _order(self, epoch, size, block)


@lru_cache(maxsize=4)
def _order(stream: Stream, epoch: int, size: int, block: int) -> Integers:
    draws = stream.at([epoch], 2**32)  # no sample is attempted that often
    place = np.arange(size)
    blocks = draws.bits(0, -(-size // block))[0]
    return np.lexsort((draws.bits(1, size)[0], blocks[place // block]))


@dataclass(frozen=True, eq=False)
class Draws:
    """Random numbers for b samples; `purpose` and slot choose among them."""

    base: Words  # [b]

    def bits(self, purpose: int, count: int) -> Words:
        """64 random bits for each sample and slot: [b count]."""
        slots = np.uint64(purpose) * _PURPOSE + np.arange(1, count + 1, dtype=np.uint64)
        return mix(self.base[:, None] + slots * GOLDEN)

    def below(self, purpose: int, count: int, bound: int | Integers) -> Integers:
        """Integers from 0 to bound - 1: [b count]."""
        return scaled(self.bits(purpose, count), bound)

    def uniform(self, purpose: int, count: int) -> npt.NDArray[np.float64]:
        """Numbers strictly between 0 and 1: [b count]."""
        return ((self.bits(purpose, count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def distinct(self, purpose: int, count: int, bound: int) -> Integers:
        """Different integers below `bound` in random order: [b count]; every sequence is as likely (Floyd, 1987)."""
        chosen, bits = np.full((len(self.base), count), -1, np.int64), self.bits(purpose, count)
        for slot, last in enumerate(range(bound - count, bound)):
            pick = scaled(bits[:, slot], last + 1)
            taken = (chosen[:, :slot] == pick[:, None]).any(1)
            chosen[:, slot] = np.where(taken, last, pick)
        return np.take_along_axis(chosen, np.argsort(self.bits(purpose + 1, count), 1, kind="stable"), 1)

    def weighted(self, purpose: int, count: int, weights: npt.NDArray[np.float64]) -> Integers:
        """Different places, drawn one after the other by weight among those left: [b count] (Efraimidis, Spirakis)."""
        waits = -np.log(self.uniform(purpose, len(weights))) / weights
        return np.argsort(waits, 1, kind="stable")[:, :count].astype(np.int64)
