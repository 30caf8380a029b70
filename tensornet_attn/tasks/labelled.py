"""Texts with labels as classifications of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Bytes
from tensornet_attn.tasks.chance import Integers, Stream
from tensornet_attn.tasks.recipe import Source, sizes_of
from tensornet_attn.tasks.splits import SPLITS, Rows

Text = npt.NDArray[np.uint16]
Labelled = Mapping[str, Sequence[tuple[Text, int]]]  # split -> (tokens, class) of each sample


def labelled(
    task: str, samples: Labelled, alphabet: Bytes, length: int, classes: tuple[str, ...], more: str = "give more data"
) -> Source:
    """The source of labelled tokens, cut off at `length`. Raises InputError for a split without samples."""
    for split in SPLITS:
        if not samples[split]:
            raise InputError(f"task '{task}': split '{split}' has no samples; {more}.")

    def rows(stream: Stream, index: Integers) -> Rows:
        chosen = [samples[stream.split][place] for place in index.tolist()]
        tokens = np.zeros((len(chosen), length), np.int64)
        for row, (text, _) in zip(tokens, chosen, strict=True):
            row[: len(text)] = text[:length]
        return {"tokens": tokens, "targets": np.array([label for _, label in chosen])}

    return Source("classification", alphabet, length, sizes_of(samples), rows, classes=classes, padding=0)


def byte_tokens(text: str, length: int) -> Text:
    """The first bytes of a text as tokens of `Bytes`."""
    return np.frombuffer(text.encode()[:length], np.uint8).astype(np.uint16) + np.uint16(1)


def sorted_labels(labels: set[str]) -> tuple[str, ...]:
    """Labels in the order of their numbers, or of the alphabet where one is no number.

    >>> sorted_labels({"10", "9"}), sorted_labels({"b", "a", "10"})
    (('9', '10'), ('10', 'a', 'b'))
    """
    numbers = all(label.lstrip("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))
