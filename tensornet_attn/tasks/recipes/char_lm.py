"""char_lm: the next character of any UTF-8 text; the first 90 % to train on, then 5 % each for validation and test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks import sentences
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.reading import read_text
from tensornet_attn.tasks.recipe import Recipe, Source
from tensornet_attn.tasks.windows import Windowed, separated, windowed


class Options(Windowed):
    path: str | None = Field(None, description="a text file; none for a made-up text of simple sentences")
    vocabulary: int | None = Field(None, ge=1, description="most different characters; none for as many as there are")


def _open(options: Options, cache: Cache) -> Source:
    text = sentences.text() if options.path is None else read_text(Path(options.path))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    letters, tokens = np.unique(points, return_inverse=True)
    if options.vocabulary is not None and len(letters) > options.vocabulary:
        raise InputError(
            f"task 'char_lm': the text has {len(letters):,} different characters; a vocabulary of "
            f"{options.vocabulary:,} is too small."
        )
    return windowed(
        "char_lm", separated(tokens), Alphabet(tuple(map(chr, letters.tolist())), ""), options, "bits_per_character"
    )


RECIPE = Recipe(
    "char_lm",
    1,
    "The next character of any text file.",
    Options,
    _open,
    drawn=False,
    files="path is any file of UTF-8 text; without it a text is made up.",
)
