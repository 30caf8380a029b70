"""Counter-based random numbers, functions of (task, version, split, seed, index, attempt, purpose, slot).

A sample therefore does not depend on its batch, on the order of calls, or on the process. The content of a sample
determines its split, so training, validation and test are disjoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tensornet_attn.errors import InputError

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2 ** 64 / golden ratio, the step of splitmix64
_PURPOSE = np.uint64(2**32)  # number of slots per purpose


def mix(words: Words) -> Words:
    """splitmix64's finaliser: a bijection of 64 bits in which each bit depends on all of them."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def scaled(bits: Words, bound: int | Integers) -> Integers:
    """Integers below `bound` (at most 2 ** 31) from 32 or more random bits, biased by less than bound / 2 ** 32."""
    return (((bits >> np.uint64(32)) * np.asarray(bound, np.uint64)) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class RandomStream:
    """The random numbers of one split of one task, by number of the sample, from 0."""

    task: str
    version: int
    split: str
    seed: int

    @cached_property
    def key(self) -> np.uint64:
        name = f"{self.task}/{self.version}/{self.split}/{self.seed}"
        return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))

    def at(self, index: npt.ArrayLike, attempt: npt.ArrayLike = 0) -> Draws:
        """The random numbers of samples `index` [b], different for each attempt at a sample."""
        base = mix(self.key + np.atleast_1d(index).astype(np.uint64) * GOLDEN)
        return Draws(mix(base + (np.atleast_1d(attempt).astype(np.uint64) + np.uint64(1)) * GOLDEN))

    def order(self, epoch: int, size: int, block: int = 1) -> Integers:
        """The order [size] of the samples in an epoch: shuffled blocks of neighbours, each shuffled in itself."""
        return _order(self, epoch, size, block)


@lru_cache(maxsize=4)
def _order(stream: RandomStream, epoch: int, size: int, block: int) -> Integers:
    draws = stream.at([epoch], 2**32)  # larger than any number of attempts
    position = np.arange(size)
    blocks = draws.bits(0, -(-size // block))[0]
    return np.lexsort((draws.bits(1, size)[0], blocks[position // block]))


@dataclass(frozen=True, eq=False)
class Draws:
    """Random numbers for b samples, selected by purpose and slot."""

    base: Words  # [b]

    def bits(self, purpose: int, count: int) -> Words:
        """64 random bits for each sample and slot: [b, count]."""
        slots = np.uint64(purpose) * _PURPOSE + np.arange(1, count + 1, dtype=np.uint64)
        return mix(self.base[:, None] + slots * GOLDEN)

    def below(self, purpose: int, count: int, bound: int | Integers) -> Integers:
        """Integers from 0 to bound - 1: [b, count]."""
        return scaled(self.bits(purpose, count), bound)

    def uniform(self, purpose: int, count: int) -> npt.NDArray[np.float64]:
        """Numbers strictly between 0 and 1: [b, count]."""
        return ((self.bits(purpose, count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def distinct(self, purpose: int, count: int, bound: int) -> Integers:
        """Distinct integers below `bound`, [b, count], uniform over all sequences (Floyd, 1987)."""
        chosen, bits = np.full((len(self.base), count), -1, np.int64), self.bits(purpose, count)
        for slot, last in enumerate(range(bound - count, bound)):
            pick = scaled(bits[:, slot], last + 1)
            taken = (chosen[:, :slot] == pick[:, None]).any(1)
            chosen[:, slot] = np.where(taken, last, pick)
        return np.take_along_axis(chosen, np.argsort(self.bits(purpose + 1, count), 1, kind="stable"), 1)

    def weighted(self, purpose: int, count: int, weights: npt.NDArray[np.float64]) -> Integers:
        """Weighted sampling of indices without replacement: [b, count] (Efraimidis and Spirakis, 2006)."""
        waits = -np.log(self.uniform(purpose, len(weights))) / weights
        return np.argsort(waits, 1, kind="stable")[:, :count].astype(np.int64)


SPLITS = ("train", "validation", "test")
_SHARES = ("validation",) * 2 + ("test",) * 2 + ("train",) * 12  # the splits of sixteen hash classes of content
ATTEMPTS = 20_000  # maximum attempts at one sample
_AT_ONCE = 256  # candidates per round, if few samples are missing

# tokens [b, n], or numbers [b, n, features]; targets [b, n] or [b]; optional: source [b, m], group [b], key_mask [b, n]
Rows = dict[str, npt.NDArray[Any]]
Make = Callable[[Draws], tuple[Rows, Integers]]  # Draws of candidates -> rows of valid candidates, their indices


def split_of_text(text: str) -> str:
    """The split of a text, determined by its content.

    >>> [split_of_text(word) for word in ("bird", "tree", "farmer", "sailor")]
    ['train', 'train', 'validation', 'validation']
    """
    return _SHARES[hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[0] % len(_SHARES)]


def by_content(texts: Iterable[str]) -> dict[str, list[int]]:
    """The indices of the texts of each split, in order."""
    indices: dict[str, list[int]] = {split: [] for split in SPLITS}
    for index, text in enumerate(texts):
        indices[split_of_text(text)].append(index)
    return indices


def settled(make: Make, stream: RandomStream, index: Integers) -> Rows:
    """Samples by index: for each sample, the first valid attempt whose content falls in the stream's split."""
    samples: Rows = {}
    missing, attempt = np.arange(len(index)), 0
    while missing.size:
        width = max(1, min(64, _AT_ONCE // missing.size))
        attempts = np.tile(np.arange(attempt, attempt + width), missing.size)
        candidates = make(stream.at(np.repeat(index[missing], width), attempts))
        pair = isinstance(candidates, (tuple, list)) and len(candidates) == 2
        if not (pair and isinstance(candidates[0], Mapping) and "tokens" in candidates[0]):
            raise InputError(
                f"task '{stream.task}': samples are made as {' '.join(repr(candidates).split()):.60}; return a tuple "
                "of a dict of arrays, 'tokens' and 'targets' among them, and an array of indices of valid candidates."
            )
        rows, which = {name: np.asarray(values) for name, values in candidates[0].items()}, np.asarray(candidates[1])
        in_split = _class(rows) == SPLITS.index(stream.split)
        owner, first = np.unique(which[in_split] // width, return_index=True)  # the attempts of a sample are in order
        for name, values in rows.items():
            target = samples.setdefault(name, np.zeros((len(index), *values.shape[1:]), values.dtype))
            target[missing[owner]] = values[in_split][first]
        missing, attempt = np.delete(missing, owner), attempt + width
        if missing.size and attempt >= ATTEMPTS:
            raise InputError(
                f"task '{stream.task}': {ATTEMPTS:,} attempts found no sample for split '{stream.split}'; choose "
                "options with enough different samples for three disjoint splits."
            )
    return samples


def _class(rows: Rows) -> Integers:
    """The split of each row by its content, an index into SPLITS."""
    total: Words = np.zeros(len(rows["tokens"]), np.uint64)
    for name in ("tokens", "source"):
        if name in rows:
            values = rows[name].astype(np.uint64)
            factors = mix(np.arange(1, values.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
            total = mix(total + (values * factors).sum(1, dtype=np.uint64))
    return _TABLE[(total >> np.uint64(60)).astype(np.int64)]


_TABLE = np.array([SPLITS.index(split) for split in _SHARES])
