"""copy: `0 w 0 w`, the next symbol; the task of linear transformers (ICML 2020).

Scored are the second w and the separator before it. Where w ends cannot be known, so the true next symbol is found at
l of l + 1 places. (A predictor that says 0 all through the first w, where nothing else is scored, evades that.)
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Draws, Integers
from tensornet_attn.tasks.recipe import Generated, Recipe, Source, drawn
from tensornet_attn.tasks.splits import Rows

SHORTEST = 5


class Options(Generated):
    length: int = Field(128, ge=1, le=2**20, description="tokens of a sample, L; w has L / 4 to (L - 1) / 2 of them")
    symbols: int = Field(10, ge=1, le=2**16, description="different symbols of w")


def _open(options: Options, cache: Cache) -> Source:
    if options.length < SHORTEST:
        raise InputError(f"task 'copy': length {options.length} leaves no room for 0 w 0 w; at least {SHORTEST}.")
    words = ("0", *(f"s{symbol}" for symbol in range(1, options.symbols + 1)))
    rows = drawn(lambda draws: _make(options, draws))
    return Source("language_model", Alphabet(words), options.length, options.sizes, rows)


def _make(options: Options, draws: Draws) -> tuple[Rows, Integers]:
    length = options.length
    lengths = length // 4 + draws.below(0, 1, (length - 1) // 2 - length // 4)  # of w: [b 1]
    symbols = 1 + draws.below(1, (length - 1) // 2, options.symbols)
    place = np.arange(length + 1)
    within = np.clip((place - 1) % (lengths + 1), 0, symbols.shape[1] - 1)
    inside = (place % (lengths + 1) != 0) & (place < 2 * lengths + 2)
    text = np.where(inside, np.take_along_axis(symbols, within, 1), 0)
    scored = (place >= lengths) & (place <= 2 * lengths)
    targets = np.where(scored[:, :-1], text[:, 1:], -100)
    return {"tokens": text[:, :-1], "targets": targets}, np.arange(len(text))


RECIPE = Recipe("copy", 1, "0 w 0 w over a few symbols: say w again.", Options, _open)
