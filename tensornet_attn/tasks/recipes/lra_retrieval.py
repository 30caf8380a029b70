"""lra_retrieval: the Long Range Arena's retrieval: whether of two papers one cites the other, byte by byte.

A folder with *.train.tsv, *.eval.tsv and *.test.tsv, without header: label, id, id, text, text. Both texts stand in one
sample with a mark between them; the arena encodes them apart and joins the results.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Bytes
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.labelled import Text, byte_tokens, labelled
from tensornet_attn.tasks.reading import read_text, the_file
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source

FILES = {"train": "*.train.tsv", "validation": "*.eval.tsv", "test": "*.test.tsv"}
CLASSES = ("0", "1")
MARK = 257


class Options(Base):
    path: str = Field(description="the folder of *.train.tsv, *.eval.tsv and *.test.tsv")
    length: int = Field(8001, ge=3, le=2**20, description="tokens of both texts and the mark; half for each text")


def _open(options: Options, cache: Cache) -> Source:
    paths = {split: the_file(Path(options.path), name) for split, name in FILES.items()}
    samples = {split: _read(path, (options.length - 1) // 2) for split, path in paths.items()}
    return labelled("lra_retrieval", samples, Bytes(marks=1), options.length, CLASSES)


def _read(path: Path, each: int) -> list[tuple[Text, int]]:
    """(tokens, class) of each line; quotes are text here."""
    found = []
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        fields = line.split("\t")
        if len(fields) != 5 or fields[0] not in ("0", "1", "0.0", "1.0"):
            raise InputError(f"'{path}', line {number}: label (0 or 1), id, id, text and text are needed, with tabs.")
        first, second = byte_tokens(fields[3], each), byte_tokens(fields[4], each)
        found.append((np.concatenate([first, np.array([MARK], np.uint16), second]), int(float(fields[0]))))
    return found


RECIPE = Recipe(
    "lra_retrieval",
    1,
    "The arena's retrieval: does one paper cite the other.",
    Options,
    _open,
    drawn=False,
    files="path is the folder of *.train.tsv, *.eval.tsv and *.test.tsv: tsv_data of the arena's lra_release.",
)
