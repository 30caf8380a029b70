"""Training, validation and test are disjoint: what a sample says decides its split, and none is in two."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.chance import Draws, Integers, Stream, Words, mix

SPLITS = ("train", "validation", "test")
_SHARES = ("validation",) * 2 + ("test",) * 2 + ("train",) * 12  # of sixteen classes of content
ATTEMPTS = 20_000  # at one sample, before the options are told to leave too few
_AT_ONCE = 256  # candidates of one round, where few samples are left to find

# tokens [b n], or numbers [b n features]; targets [b n] or [b]; source [b m], group [b], key_mask [b n] where there are
Rows = dict[str, npt.NDArray[Any]]
Make = Callable[[Draws], tuple[Rows, Integers]]  # candidates of Draws -> rows of those that fit, which ones these are


def split_of_text(text: str) -> str:
    """The split that a text falls in; equal texts fall in one.

    >>> [split_of_text(word) for word in ("bird", "tree", "farmer", "sailor")]
    ['train', 'train', 'validation', 'validation']
    """
    return _SHARES[hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[0] % len(_SHARES)]


def by_content(texts: Iterable[str]) -> dict[str, list[int]]:
    """The places of the texts of each split, in the order of the texts."""
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    for place, text in enumerate(texts):
        found[split_of_text(text)].append(place)
    return found


def settled(make: Make, stream: Stream, index: Integers) -> Rows:
    """Samples by index: for each the first attempt that fits and that falls in the stream's split."""
    result: Rows = {}
    left, attempt = np.arange(len(index)), 0
    while left.size:
        width = max(1, min(64, _AT_ONCE // left.size))
        attempts = np.tile(np.arange(attempt, attempt + width), left.size)
        rows, which = make(stream.at(np.repeat(index[left], width), attempts))
        here = _class(rows) == SPLITS.index(stream.split)
        owner, first = np.unique(which[here] // width, return_index=True)  # attempts of one sample stand in order
        for name, values in rows.items():
            target = result.setdefault(name, np.zeros((len(index), *values.shape[1:]), values.dtype))
            target[left[owner]] = values[here][first]
        left, attempt = np.delete(left, owner), attempt + width
        if left.size and attempt >= ATTEMPTS:
            raise InputError(
                f"task '{stream.task}': {ATTEMPTS:,} attempts gave no sample for split '{stream.split}'; the options "
                "leave too few different samples for three disjoint splits."
            )
    return result


def _class(rows: Rows) -> Integers:
    """The split of each row by what it says: an index into SPLITS."""
    total: Words = np.zeros(len(rows["tokens"]), np.uint64)
    for name in ("tokens", "source"):
        if name in rows:
            values = rows[name].astype(np.uint64)
            factors = mix(np.arange(1, values.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
            total = mix(total + (values * factors).sum(1, dtype=np.uint64))
    return _TABLE[(total >> np.uint64(60)).astype(np.int64)]


_TABLE = np.array([SPLITS.index(split) for split in _SHARES])
