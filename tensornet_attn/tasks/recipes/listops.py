"""listops: nested MIN, MAX, MED and SM (sum modulo 10) of digits: which digit comes out; the arena's generator."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks import trees
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Draws, Integers
from tensornet_attn.tasks.recipe import Generated, Recipe, Source, drawn
from tensornet_attn.tasks.splits import Rows

DIGITS = tuple("0123456789")
WORDS = Alphabet(("padding", *DIGITS, *(f"[{name}" for name in trees.OPERATORS), "]"))
CLOSE = len(WORDS) - 1


class Options(Generated):
    """The arena's parameters. A digit alone has length 1; an operator with its bracket adds 2."""

    train: int | None = Field(96_000, ge=1, description="training samples of an epoch; none for no end")
    max_depth: int = Field(10, ge=2, le=64, description="levels of the tree, the digits' included")
    max_args: int = Field(10, ge=2, le=100, description="most arguments of an operator")
    min_length: int = Field(500, ge=1, description="tokens; a sample has more")
    max_length: int = Field(2000, ge=5, le=2**20, description="tokens; a sample has fewer, and is padded to this")


class Mini(Options):
    """Two operators deep, so that a small model learns it in a minute; without end."""

    train: int | None = Field(None, ge=1, description="training samples of an epoch; none for no end")
    max_depth: int = Field(3, ge=2, le=64, description="levels of the tree, the digits' included")
    max_args: int = Field(5, ge=2, le=100, description="most arguments of an operator")
    min_length: int = Field(1, ge=1, description="tokens; a sample has more")
    max_length: int = Field(32, ge=5, le=2**20, description="tokens; a sample has fewer, and is padded to this")


def _open(options: Options, cache: Cache) -> Source:
    if options.max_length - options.min_length < 2:
        raise InputError(
            f"task 'listops': no length lies between min_length {options.min_length} and max_length "
            f"{options.max_length}."
        )
    longest = 1
    for _ in range(options.max_depth - 1):
        longest = min(2 + options.max_args * longest, options.max_length)
    if longest <= options.min_length:
        raise InputError(
            f"task 'listops': a tree of depth {options.max_depth} with at most {options.max_args} arguments has at "
            f"most {longest} tokens; min_length {options.min_length} asks for more."
        )
    return Source(
        "classification", WORDS, options.max_length, options.sizes, drawn(lambda draws: _make(options, draws)),
        classes=DIGITS, padding=0, groups=trees.OPERATORS,
    )  # fmt: skip


def _make(options: Options, draws: Draws) -> tuple[Rows, Integers]:
    bits = draws.bits(0, 1)[:, 0]
    length = trees.lengths(bits, options.max_depth, options.max_args, options.max_length)
    which = np.flatnonzero((length > options.min_length) & (length < options.max_length)).astype(np.int64)
    levels = trees.grown(bits[which], options.max_depth, options.max_args)
    tokens = trees.written(levels, options.max_length, 1, 1 + len(DIGITS), CLOSE)
    rows: Rows = {"tokens": tokens, "targets": trees.values(levels), "group": levels[0].name}
    return rows, which


RECIPE = Recipe("listops", 1, "Nested list operations at the arena's length: ten classes.", Options, _open, costly=True)
MINI = Recipe("listops_mini", 1, "Nested list operations, two deep, below 32 tokens.", Mini, _open)
