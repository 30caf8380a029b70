"""lra_listops: the Long Range Arena's listops files: NAME_train.tsv, NAME_val.tsv, NAME_test.tsv (Source, Target).

Brackets are tokens; the parentheses, which say nothing more, are left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Integers, Stream
from tensornet_attn.tasks.reading import read_table, the_file
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source, sizes_of
from tensornet_attn.tasks.recipes.listops import DIGITS, WORDS
from tensornet_attn.tasks.splits import Rows

FILES = {"train": "*_train.tsv", "validation": "*_val.tsv", "test": "*_test.tsv"}
_WITHOUT_PARENTHESES = str.maketrans("()", "  ")


class Options(Base):
    path: str = Field(description="the folder of NAME_train.tsv, NAME_val.tsv and NAME_test.tsv")
    length: int = Field(2000, ge=1, le=2**20, description="tokens of a sample; longer ones are cut off")


def _open(options: Options, cache: Cache) -> Source:
    tables = {split: _read(the_file(Path(options.path), name), options.length) for split, name in FILES.items()}

    def rows(stream: Stream, index: Integers) -> Rows:
        return {name: values[index] for name, values in arrays[stream.split].items()}

    arrays = {split: _arrays(table, options.length) for split, table in tables.items()}
    return Source(
        "classification", WORDS, options.length, sizes_of(tables), rows, classes=DIGITS, padding=0
    )  # fmt: skip


def _read(path: Path, length: int) -> list[tuple[list[int], int]]:
    """(tokens, answer) of each line."""
    found = []
    for line, (source, target) in read_table(path, ["Source", "Target"], "\t"):
        try:
            tokens = WORDS.encode(source.translate(_WITHOUT_PARENTHESES))[:length]
        except InputError as error:
            raise InputError(f"'{path}', line {line}: {error}") from error
        if target not in DIGITS or not tokens:
            raise InputError(f"'{path}', line {line}: a list of operations and a digit are needed.")
        found.append((tokens, int(target)))
    if not found:
        raise InputError(f"'{path}' has no lines below its header.")
    return found


def _arrays(table: list[tuple[list[int], int]], length: int) -> Rows:
    tokens = np.zeros((len(table), length), np.uint8)
    for row, (text, _) in zip(tokens, table, strict=True):
        row[: len(text)] = text
    return {"tokens": tokens, "targets": np.array([answer for _, answer in table])}


RECIPE = Recipe(
    "lra_listops",
    1,
    "Listops from the arena's own files.",
    Options,
    _open,
    drawn=False,
    files="path is the folder of NAME_train.tsv, NAME_val.tsv and NAME_test.tsv: listops-1000 of the arena's "
    "lra_release.",
)
