"""The parts of a task: its recipe, its options, and the source of its samples."""

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
from tensornet_attn.tasks.chance import SPLITS, Integers, Make, RandomStream, Rows, settled
from tensornet_attn.tasks.reading import Cache

Kind = Literal["language_model", "classification", "sequence_to_sequence"]
Measure = Literal["perplexity", "bits_per_character", "bits_per_dimension"]
BLOCK = 1024  # samples that are generated and stored together


def measured(measure: Measure, nats: float) -> float:
    """Converts a mean loss in nats: exp(nats) for words and subwords, nats / ln 2 for characters and pixels.

    >>> round(measured("perplexity", math.log(50)), 9), measured("bits_per_character", math.log(32))
    (50.0, 5.0)
    """
    if measure != "perplexity":
        return nats / math.log(2)
    return math.inf if nats > 709 else math.exp(nats)  # a larger exponent overflows float64


@dataclass(frozen=True)
class Parallel:
    """The references of a translation task.

    `references`: the target sentences of each split, by number of the sample. `text` converts tokens to a sentence.
    `edge`: the token that starts and ends a target.
    """

    references: Mapping[str, Sequence[str]]
    text: Callable[[Sequence[int]], str]
    edge: int


class Options(BaseModel):
    """Base of the options of a recipe. Lengths are in tokens, sizes of splits in samples."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Generated(Options):
    """Options of all generated tasks. `train` None is unlimited; a number gives epochs, each in another order."""

    train: int | None = Field(None, ge=1, description="training samples per epoch; none for unlimited")
    validation: int = Field(2000, ge=1, description="samples of the validation split")
    test: int = Field(2000, ge=1, description="samples of the test split")

    @property
    def sizes(self) -> dict[str, int | None]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


@dataclass(frozen=True)
class Source:
    """The samples of a task with its options.

    `rows(stream, index)` returns samples by number; a finite split has the numbers 0 to size - 1. `padding`: the token
    of padding; None without padding. `measure`: another unit of the loss, perplexity for words and subwords, bits for
    characters and pixels. `texts`: the splits of a text, for sliding windows. `parallel`: the references of a
    translation. With `features`, `tokens` are numbers [b, n, features] and the alphabet is empty.
    """

    kind: Kind
    alphabet: Alphabet | Bytes
    length: int
    sizes: Mapping[str, int | None]
    rows: Callable[[RandomStream, Integers], Rows]
    classes: tuple[str, ...] | None = None
    padding: int | None = None
    groups: tuple[str, ...] = ()
    features: int | None = None
    measure: Measure | None = None
    texts: Mapping[str, npt.NDArray[np.integer]] | None = field(default=None, repr=False)
    parallel: Parallel | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Recipe:
    """A named task. A change of its samples needs a new `version`, so that no result changes silently.

    `drawn`: samples are generated, not read from files. `costly`: samples are stored on disk by default. `files`: a
    description of the files that the task reads, which follows an error about a missing file. Raises InputError for
    fields of other types.
    """

    name: str
    version: int
    about: str
    options: type[Any]
    open: Callable[[Any, Cache], Source]
    drawn: bool = True
    costly: bool = False
    files: str = ""

    def __post_init__(self) -> None:
        for names, kind in _TYPES.items():
            for name in names.split():
                if not isinstance(getattr(self, name), kind):
                    raise InputError(f"'{name}' of a Recipe is {getattr(self, name)!r}; its type is {kind.__name__}.")


_TYPES: dict[str, Any] = {
    "name about files": str,
    "version": int,
    "drawn costly": bool,
    "options": type,
    "open": Callable,
}


def drawn(make: Make) -> Callable[[RandomStream, Integers], Rows]:
    """The `rows` of a source of generated samples, disjoint between splits."""
    return lambda stream, index: settled(make, stream, index)


def sizes_of(task: str, tables: Mapping[str, Any], more: str = "give more data") -> dict[str, int | None]:
    """The number of samples of each split. Raises InputError for an empty split, with the hint `more`."""
    for split in SPLITS:
        if not len(tables[split]):
            raise InputError(f"task '{task}': split '{split}' has no samples; {more}.")
    return {split: len(tables[split]) for split in SPLITS}
