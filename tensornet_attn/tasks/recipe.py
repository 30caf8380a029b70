"""What a task is made of: a recipe with its options, and the source of samples that it opens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet, Bytes
from tensornet_attn.tasks.chance import SPLITS, Integers, Make, Rows, Stream, settled
from tensornet_attn.tasks.reading import Cache

Kind = Literal["language_model", "classification", "sequence_to_sequence"]
Measure = Literal["perplexity", "bits_per_character", "bits_per_dimension"]
BLOCK = 1024  # samples that are made and stored together


def measured(measure: Measure, nats: float) -> float:
    """A mean loss in nats as the measure: exp(nats) for words and subwords; nats / ln 2 for characters and pixels.

    >>> round(measured("perplexity", math.log(50)), 9), measured("bits_per_character", math.log(32))
    (50.0, 5.0)
    """
    if measure != "perplexity":
        return nats / math.log(2)
    return math.inf if nats > 709 else math.exp(nats)  # exp of more is no float64


@dataclass(frozen=True)
class Parallel:
    """What a translation is judged by.

    `references`: for each split the target sentences as they stand in the files, by the number of the sample. `text`
    makes a sentence of tokens. `edge`: the token that a decoder begins with and ends with.
    """

    references: Mapping[str, Sequence[str]]
    text: Callable[[Sequence[int]], str]
    edge: int


class Options(BaseModel):
    """Options of a recipe: checked, and the same for equal data. Lengths are in tokens, sizes of splits in samples."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Generated(Options):
    """Options of every task whose samples are drawn; `train` is None for as many samples as are asked for.

    A number for `train` gives epochs over that many samples, each in an order of its own.
    """

    train: int | None = Field(None, ge=1, description="training samples of an epoch; none for no end")
    validation: int = Field(2000, ge=1, description="samples of the validation split")
    test: int = Field(2000, ge=1, description="samples of the test split")

    @property
    def sizes(self) -> dict[str, int | None]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


@dataclass(frozen=True)
class Source:
    """The samples of a task with its options.

    `rows(stream, index)` gives samples by number, those of a finite split counted from 0 to its size - 1. `padding` is
    the token that stands where there is no input, None where every place is one. `measure` is what the loss is also
    given as: perplexity where a token is a word or subword, bits where it is a character or a pixel. `texts` are the
    splits of a running text, which windows can slide over. `parallel` is what translations are compared with. With
    `features` a position has that many numbers and no token: `tokens` are [b n features], the alphabet is empty.
    """

    kind: Kind
    alphabet: Alphabet | Bytes
    length: int
    sizes: Mapping[str, int | None]
    rows: Callable[[Stream, Integers], Rows]
    classes: tuple[str, ...] | None = None
    padding: int | None = None
    groups: tuple[str, ...] = ()
    features: int | None = None
    measure: Measure | None = None
    texts: Mapping[str, npt.NDArray[np.integer]] | None = field(default=None, repr=False)
    parallel: Parallel | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Recipe:
    """A named task: a change of what its samples say comes with a new `version`, so that no result changes silently.

    `drawn`: samples are drawn, not read from files. `costly`: what is made is stored on disk unless told otherwise.
    `files`: which files it reads, from where, in words that follow an error about one of them.
    """

    name: str
    version: int
    about: str
    options: type[Options]
    open: Callable[[Any, Cache], Source]
    drawn: bool = True
    costly: bool = False
    files: str = ""


def drawn(make: Make) -> Callable[[Stream, Integers], Rows]:
    """Rows by number of samples that are drawn, disjoint between splits."""
    return lambda stream, index: settled(make, stream, index)


def sizes_of(task: str, tables: Mapping[str, Any], more: str = "give more data") -> dict[str, int | None]:
    """The size of each split of tables that hold all samples. Raises InputError for one without."""
    for split in SPLITS:
        if not len(tables[split]):
            raise InputError(f"task '{task}': split '{split}' has no samples; {more}.")
    return {split: len(tables[split]) for split in SPLITS}
