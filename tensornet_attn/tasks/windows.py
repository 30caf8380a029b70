"""Windows of a running text: at random places to train on, side by side to be judged on, or in streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet, Bytes
from tensornet_attn.tasks.chance import Integers, Stream
from tensornet_attn.tasks.recipe import Measure, Options, Source
from tensornet_attn.tasks.splits import SPLITS, Rows

Text = npt.NDArray[np.integer]


class Windowed(Options):
    """Options of every language model on text. Each token of validation and test is asked for once.

    With `streams`, sample i goes on where sample i - streams ended, for models that carry a memory: batches of that
    many samples from a multiple of it.
    """

    length: int = Field(128, ge=1, le=2**20, description="tokens of a window")
    streams: int = Field(0, ge=0, description="texts read side by side; 0 trains on windows at random places")


@dataclass(frozen=True)
class Lanes:
    """A text cut into equal lanes, one a stream, each cut into windows."""

    tokens: int
    length: int
    streams: int

    @property
    def lane(self) -> int:
        """Places of one lane; the last token of the text is only a target."""
        return -(-(self.tokens - 1) // self.streams)

    @property
    def windows(self) -> int:
        return self.streams * -(-self.lane // self.length)

    def spans(self, index: Integers) -> tuple[Integers, Integers]:
        """First place of each window and the place behind it; equal for a window with nothing in it."""
        lane, part = index % self.streams, index // self.streams
        start = lane * self.lane + part * self.length
        end = np.minimum(np.minimum(start + self.length, (lane + 1) * self.lane), self.tokens - 1)
        return start, np.maximum(start, end)


@dataclass(frozen=True)
class Sliding:
    """Windows of `context` tokens, each `stride` further on, that score their last `stride` places.

    The first window scores all of its places, the last one ends with the text and scores what is left: every token of a
    text but the first is scored once, with at least context - stride + 1 tokens before it where the text has them.
    """

    tokens: int
    context: int
    stride: int

    @property
    def width(self) -> int:
        """Places of a window; the last token of the text is only a target."""
        return min(self.context, self.tokens - 1)

    @property
    def windows(self) -> int:
        return 1 + -(-(self.tokens - 1 - self.width) // self.stride)

    def rows(self, text: Text, index: Integers) -> Rows:
        """The windows of these numbers.

        >>> rows = Sliding(tokens=8, context=3, stride=2).rows(np.arange(8), np.arange(3))
        >>> rows["tokens"].tolist(), rows["targets"].tolist()
        ([[0, 1, 2], [2, 3, 4], [4, 5, 6]], [[1, 2, 3], [-100, 4, 5], [-100, 6, 7]])
        """
        end = np.minimum(self.width + index * self.stride, self.tokens - 1)
        done = np.where(index == 0, 0, self.width + (index - 1) * self.stride)  # places that earlier windows score
        place = (end - self.width)[:, None] + np.arange(self.width)
        targets = np.where(place >= done[:, None], text[place + 1].astype(np.int64), -100)
        return {"tokens": text[place], "targets": targets}


def windowed(
    task: str, texts: Mapping[str, Text], alphabet: Alphabet | Bytes, options: Windowed, measure: Measure
) -> Source:
    """The source of a running text in three parts. Raises InputError for parts that are too short."""
    for split in SPLITS:
        need = options.length + 1 if split == "train" else 2
        if len(texts[split]) < need:
            raise InputError(
                f"task '{task}': split '{split}' has {len(texts[split])} tokens; windows of {options.length} need at "
                f"least {need}."
            )
    lanes = {split: Lanes(len(text), options.length, max(1, options.streams)) for split, text in texts.items()}

    def rows(stream: Stream, index: Integers) -> Rows:
        text, lane = texts[stream.split], lanes[stream.split]
        if stream.split == "train" and not options.streams:
            start = stream.at(index).below(0, 1, len(text) - options.length)[:, 0]
            return cut(text, start, start + options.length, options.length)
        return cut(text, *lane.spans(index % lane.windows), options.length)

    sizes = {split: None if split == "train" else lanes[split].windows for split in SPLITS}
    return Source("language_model", alphabet, options.length, sizes, rows, measure=measure, texts=texts)


def separated(text: Text) -> dict[str, Text]:
    """The first 90 % of a text to train on, then 5 % each for validation and test."""
    validation, test = len(text) * 90 // 100, len(text) * 95 // 100
    return {"train": text[:validation], "validation": text[validation:test], "test": text[test:]}


def cut(text: Text, start: Integers, end: Integers, length: int) -> Rows:
    """Windows and the tokens after each of theirs.

    >>> rows = cut(np.arange(10), np.array([2, 7]), np.array([5, 9]), 3)
    >>> rows["tokens"].tolist(), rows["targets"].tolist()
    ([[2, 3, 4], [7, 8, 0]], [[3, 4, 5], [8, 9, -100]])
    """
    place = start[:, None] + np.arange(length)
    inside = place < end[:, None]
    place = np.minimum(place, len(text) - 2)
    return {
        "tokens": np.where(inside, text[place], 0),
        "targets": np.where(inside, text[place + 1].astype(np.int64), -100),
    }
