"""What a task is made of: a recipe with its options, and the source of samples that it opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from tensornet_attn.tasks.alphabet import Alphabet, Bytes
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Integers, Stream
from tensornet_attn.tasks.measure import Measure
from tensornet_attn.tasks.parallel import Parallel
from tensornet_attn.tasks.splits import SPLITS, Make, Rows, settled

Kind = Literal["language_model", "classification", "sequence_to_sequence"]
BLOCK = 1024  # samples that are made and stored together


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
    causal: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "causal", self.kind == "language_model")


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


def sizes_of(tables: Mapping[str, Any]) -> dict[str, int | None]:
    """The size of each split of tables that hold all samples."""
    return {split: len(tables[split]) for split in SPLITS}
