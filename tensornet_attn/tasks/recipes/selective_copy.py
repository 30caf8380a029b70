"""selective_copy: symbols at random places among blanks, then a mark and the symbols again, in order."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Draws, Integers
from tensornet_attn.tasks.recipe import Generated, Recipe, Source, drawn
from tensornet_attn.tasks.splits import Rows


class Options(Generated):
    length: int = Field(128, ge=1, le=2**20, description="tokens of a sample, the answer's included")
    count: int = Field(16, ge=1, description="symbols to repeat")
    symbols: int = Field(14, ge=1, le=2**16, description="different symbols")


def _open(options: Options, cache: Cache) -> Source:
    if options.length < 2 * options.count:
        raise InputError(
            f"task 'selective_copy': length {options.length} is too short for {options.count} tokens and their copy; "
            f"at least {2 * options.count}."
        )
    words = ("blank", *(f"s{symbol}" for symbol in range(1, options.symbols + 1)), "mark")
    rows = drawn(lambda draws: _make(options, draws))
    return Source("language_model", Alphabet(words), options.length, options.sizes, rows)


def _make(options: Options, draws: Draws) -> tuple[Rows, Integers]:
    batch, room = len(draws.base), options.length - options.count
    symbols = 1 + draws.below(0, options.count, options.symbols)
    places = np.sort(draws.distinct(1, options.count, room), 1)
    tokens = np.zeros((batch, options.length), np.int64)
    np.put_along_axis(tokens, places, symbols, 1)
    tokens[:, room] = options.symbols + 1
    tokens[:, room + 1 :] = symbols[:, :-1]
    targets = np.full_like(tokens, -100)
    targets[:, room:] = symbols
    return {"tokens": tokens, "targets": targets}, np.arange(batch)


RECIPE = Recipe("selective_copy", 1, "Symbols among blanks: say them again in order.", Options, _open)
