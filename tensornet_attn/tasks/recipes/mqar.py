"""mqar: multi-query associative recall (Zoology, ICLR 2024): pairs of key and value, then each key once more.

The places of the keys are drawn one after the other, with probability ~ g ** -power for gap g behind the pairs. The
answer, its value, is the target at the key's place; nothing else is scored.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Draws, Integers
from tensornet_attn.tasks.recipe import Generated, Recipe, Source, drawn
from tensornet_attn.tasks.splits import Rows


class Options(Generated):
    length: int = Field(64, ge=1, le=2**20, description="tokens of a sample")
    pairs: int = Field(8, ge=1, description="pairs of key and value in a sample")
    vocabulary: int = Field(512, ge=1, le=2**24, description="tokens: a blank, then keys, the upper half values")
    power: float = Field(0.99, ge=0, le=8, description="of the law of gaps; 0 for the same chance everywhere")
    filler: Literal["blank", "random"] = Field("blank", description="what stands where neither pairs nor keys do")

    @property
    def keys(self) -> int:
        return self.vocabulary // 2 - 1

    @property
    def slots(self) -> int:
        """Places for keys behind the pairs, two tokens each."""
        return (self.length - 2 * self.pairs) // 2


def _open(options: Options, cache: Cache) -> Source:
    if options.slots < options.pairs:
        raise InputError(
            f"task 'mqar': length {options.length} is too short for {options.pairs} pairs and their questions; at "
            f"least {4 * options.pairs}."
        )
    if options.keys < options.pairs:
        raise InputError(
            f"task 'mqar': a vocabulary of {options.vocabulary} has {max(0, options.keys)} keys for {options.pairs} "
            f"pairs; at least {2 * options.pairs + 2}."
        )
    keys = (f"k{key}" for key in range(1, options.keys + 1))
    values = (f"v{value}" for value in range(1, options.vocabulary - options.keys))
    rows = drawn(lambda draws: _make(options, draws))
    return Source("language_model", Alphabet(("blank", *keys, *values)), options.length, options.sizes, rows)


def _make(options: Options, draws: Draws) -> tuple[Rows, Integers]:
    batch, pairs = len(draws.base), options.pairs
    keys = 1 + draws.distinct(0, pairs, options.keys)
    values = 1 + options.keys + draws.distinct(2, pairs, options.vocabulary - 1 - options.keys)
    weights = np.array([gap**-options.power for gap in range(1, options.slots + 1)])
    places = 2 * pairs + 2 * draws.weighted(4, pairs, weights)
    tokens = np.zeros((batch, options.length), np.int64)
    if options.filler == "random":
        tokens = draws.below(5, options.length, options.vocabulary)
    tokens[:, : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    np.put_along_axis(tokens, places, keys, 1)
    targets = np.full_like(tokens, -100)
    np.put_along_axis(targets, places, values, 1)
    return {"tokens": tokens, "targets": targets}, np.arange(batch)


RECIPE = Recipe("mqar", 1, "Pairs of key and value, then the keys again: say their values.", Options, _open)
