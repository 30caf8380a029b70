"""Synthetic tasks on symbols: copying, selective copying, reversal, and associative recall."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.chance import Draws, Integers, Rows
from tensornet_attn.tasks.reading import Cache
from tensornet_attn.tasks.recipe import Generated, Recipe, Source, drawn

SHORTEST = 5


class Copy(Generated):
    length: int = Field(128, ge=1, le=2**20, description="tokens of a sample, L; w has L / 4 to (L - 1) / 2 tokens")
    symbols: int = Field(10, ge=1, le=2**16, description="number of different symbols")


def _open_copy(options: Copy, cache: Cache) -> Source:
    """copy: the next symbol of `0 w 0 w`; the task of linear transformers (ICML 2020).

    The second w and the separator before it are scored. The end of w is unpredictable, so for w of length l, the most
    probable next symbol is right at l of l + 1 positions. (Always answering 0 in the first w, where only the
    separator is scored, exceeds this.)
    """
    if options.length < SHORTEST:
        raise InputError(f"task 'copy': length {options.length} is too short for 0 w 0 w; set at least {SHORTEST}.")
    words = ("0", *(f"s{symbol}" for symbol in range(1, options.symbols + 1)))
    rows = drawn(lambda draws: _make_copy(options, draws))
    return Source("language_model", Alphabet(words), options.length, options.sizes, rows)


def _make_copy(options: Copy, draws: Draws) -> tuple[Rows, Integers]:
    length = options.length
    lengths = length // 4 + draws.below(0, 1, (length - 1) // 2 - length // 4)  # of w: [b 1]
    symbols = 1 + draws.below(1, (length - 1) // 2, options.symbols)
    position = np.arange(length + 1)
    within = np.clip((position - 1) % (lengths + 1), 0, symbols.shape[1] - 1)
    inside = (position % (lengths + 1) != 0) & (position < 2 * lengths + 2)
    sequence = np.where(inside, np.take_along_axis(symbols, within, 1), 0)
    scored = (position >= lengths) & (position <= 2 * lengths)
    targets = np.where(scored[:, :-1], sequence[:, 1:], -100)
    return {"tokens": sequence[:, :-1], "targets": targets}, np.arange(len(sequence))


COPY = Recipe("copy", 1, "0 w 0 w over a few symbols: repeat w.", Copy, _open_copy)


class SelectiveCopy(Generated):
    length: int = Field(128, ge=1, le=2**20, description="tokens of a sample, including the answer")
    count: int = Field(16, ge=1, description="number of symbols to repeat")
    symbols: int = Field(14, ge=1, le=2**16, description="number of different symbols")


def _open_selective_copy(options: SelectiveCopy, cache: Cache) -> Source:
    """selective_copy: symbols at random positions among blanks, then a marker and the symbols again, in order."""
    if options.length < 2 * options.count:
        raise InputError(
            f"task 'selective_copy': length {options.length} is too short for {options.count} tokens and their copy; "
            f"set at least {2 * options.count}."
        )
    words = ("blank", *(f"s{symbol}" for symbol in range(1, options.symbols + 1)), "mark")
    rows = drawn(lambda draws: _make_selective_copy(options, draws))
    return Source("language_model", Alphabet(words), options.length, options.sizes, rows)


def _make_selective_copy(options: SelectiveCopy, draws: Draws) -> tuple[Rows, Integers]:
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


SELECTIVE_COPY = Recipe(
    "selective_copy", 1, "Symbols among blanks: repeat them in order.", SelectiveCopy, _open_selective_copy
)


PADDING, EDGE = 0, 1  # the edge starts and ends a target


class Reverse(Generated):
    length: int = Field(
        32, ge=2, le=2**20, description="maximum tokens of a word and its edge; words have at least half of them"
    )
    symbols: int = Field(10, ge=1, le=2**16, description="number of different symbols")


def _open_reverse(options: Reverse, cache: Cache) -> Source:
    """reverse: the encoder reads a word, and the decoder writes it backwards."""
    words = ("padding", "edge", *(f"s{symbol}" for symbol in range(1, options.symbols + 1)))
    rows = drawn(lambda draws: _make_reverse(options, draws))
    return Source("sequence_to_sequence", Alphabet(words), options.length, options.sizes, rows, padding=PADDING)


def _make_reverse(options: Reverse, draws: Draws) -> tuple[Rows, Integers]:
    longest = options.length - 1
    lengths = options.length // 2 + draws.below(0, 1, longest - options.length // 2 + 1)  # [b 1]
    position = np.arange(options.length)
    symbols = 2 + draws.below(1, options.length, options.symbols)
    source = np.where(position < lengths, symbols, PADDING)
    answer = np.take_along_axis(symbols, np.clip(lengths - 1 - position, 0, longest), 1)
    targets = np.where(position < lengths, answer, np.where(position == lengths, EDGE, -100))
    begun = np.concatenate([np.full_like(lengths, EDGE), targets[:, :-1]], 1)
    tokens = np.where(position <= lengths, begun, PADDING)
    return {"tokens": tokens, "targets": targets, "source": source}, np.arange(len(tokens))


REVERSE = Recipe("reverse", 1, "A word for an encoder: the decoder reverses it.", Reverse, _open_reverse)


class Mqar(Generated):
    length: int = Field(64, ge=1, le=2**20, description="tokens of a sample")
    pairs: int = Field(8, ge=1, description="pairs of key and value in a sample")
    vocabulary: int = Field(512, ge=1, le=2**24, description="number of tokens: a blank, then keys, then values")
    power: float = Field(0.99, ge=0, le=8, description="exponent of the power law of gaps; 0 is uniform")
    filler: Literal["blank", "random"] = Field("blank", description="tokens of the other positions")

    @property
    def keys(self) -> int:
        return self.vocabulary // 2 - 1

    @property
    def slots(self) -> int:
        """Number of positions for keys after the pairs, two tokens each."""
        return (self.length - 2 * self.pairs) // 2


def _open_mqar(options: Mqar, cache: Cache) -> Source:
    """mqar: multi-query associative recall (Zoology, ICLR 2024): pairs of key and value, then each key again.

    The positions of the keys are drawn without replacement, with probability ~ g ** -power for gap g after the pairs.
    The target at a key's position is its value; other positions are not scored.
    """
    if options.slots < options.pairs:
        raise InputError(
            f"task 'mqar': length {options.length} is too short for {options.pairs} pairs and their queries; set at "
            f"least {4 * options.pairs}."
        )
    if options.keys < options.pairs:
        raise InputError(
            f"task 'mqar': a vocabulary of {options.vocabulary} has {max(0, options.keys)} keys for {options.pairs} "
            f"pairs; set at least {2 * options.pairs + 2}."
        )
    keys = (f"k{key}" for key in range(1, options.keys + 1))
    values = (f"v{value}" for value in range(1, options.vocabulary - options.keys))
    rows = drawn(lambda draws: _make_mqar(options, draws))
    return Source("language_model", Alphabet(("blank", *keys, *values)), options.length, options.sizes, rows)


def _make_mqar(options: Mqar, draws: Draws) -> tuple[Rows, Integers]:
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


MQAR = Recipe("mqar", 1, "Pairs of key and value, then the keys again: recall their values.", Mqar, _open_mqar)
