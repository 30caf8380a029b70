"""byte_lm: the next byte of any file, in the order that it has; 90, 5 and 5 % of it.

On enwik8, whose first 100,000,000 bytes the papers split at 90 and 95 million, these are their splits, and the bits per
character are theirs: of bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from tensornet_attn.tasks.alphabet import Bytes
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.reading import read_bytes
from tensornet_attn.tasks.recipe import Recipe, Source
from tensornet_attn.tasks.windows import Windowed, separated, windowed


class Options(Windowed):
    path: str = Field(description="any file, such as enwik8")


def _open(options: Options, cache: Cache) -> Source:
    tokens = np.frombuffer(read_bytes(Path(options.path)), np.uint8).astype(np.uint16) + np.uint16(1)
    return windowed("byte_lm", separated(tokens), Bytes(), options, "bits_per_character")


RECIPE = Recipe(
    "byte_lm",
    1,
    "The next byte of any file.",
    Options,
    _open,
    drawn=False,
    files="path is any file: enwik8, unpacked, for the bits per character of the papers.",
)
