"""reverse: a word for the encoder, the word backwards from the decoder."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Draws, Integers
from tensornet_attn.tasks.recipe import Generated, Recipe, Source, drawn
from tensornet_attn.tasks.splits import Rows

PADDING, EDGE = 0, 1  # the decoder begins with the edge and ends with it


class Options(Generated):
    length: int = Field(
        32, ge=2, le=2**20, description="tokens of the longest word, with its edge; half to all are used"
    )
    symbols: int = Field(10, ge=1, le=2**16, description="different symbols")


def _open(options: Options, cache: Cache) -> Source:
    words = ("padding", "edge", *(f"s{symbol}" for symbol in range(1, options.symbols + 1)))
    rows = drawn(lambda draws: _make(options, draws))
    return Source("sequence_to_sequence", Alphabet(words), options.length, options.sizes, rows, padding=PADDING)


def _make(options: Options, draws: Draws) -> tuple[Rows, Integers]:
    most = options.length - 1
    lengths = options.length // 2 + draws.below(0, 1, most - options.length // 2 + 1)  # [b 1]
    place = np.arange(options.length)
    symbols = 2 + draws.below(1, options.length, options.symbols)
    source = np.where(place < lengths, symbols, PADDING)
    answer = np.take_along_axis(symbols, np.clip(lengths - 1 - place, 0, most), 1)
    targets = np.where(place < lengths, answer, np.where(place == lengths, EDGE, -100))
    begun = np.concatenate([np.full_like(lengths, EDGE), targets[:, :-1]], 1)
    tokens = np.where(place <= lengths, begun, PADDING)
    return {"tokens": tokens, "targets": targets, "source": source}, np.arange(len(tokens))


RECIPE = Recipe("reverse", 1, "A word for an encoder: the decoder says it backwards.", Options, _open)
