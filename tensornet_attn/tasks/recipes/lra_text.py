"""lra_text: the Long Range Arena's text classification, byte by byte: reviews in folders, or tables.

A folder with train/pos, train/neg, test/pos and test/neg, one review a file, or with NAME_train.tsv, NAME_val.tsv and
NAME_test.tsv (columns Source, Target). The reviews have no validation set: it is the eighth of the training texts that
their content chooses, where the arena takes the test set.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Bytes
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.labelled import byte_tokens, labelled, sorted_labels
from tensornet_attn.tasks.reading import read_table, read_text, the_file, the_files
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source
from tensornet_attn.tasks.splits import split_of_text

Pairs = list[tuple[str, str]]
LABELS = ("neg", "pos")
TABLES = {"train": "*_train.tsv", "validation": "*_val.tsv", "test": "*_test.tsv"}


class Options(Base):
    path: str = Field(description="a folder with train/pos, train/neg, test/pos, test/neg, or with tables")
    length: int = Field(4000, ge=1, le=2**20, description="bytes of a text; longer ones are cut off")


def _open(options: Options, cache: Cache) -> Source:
    folder = Path(options.path)
    pairs = _reviews(folder) if (folder / "train" / "pos").is_dir() else _tables(folder)
    classes = sorted_labels({label for split in pairs.values() for _, label in split})
    samples = {
        split: [(byte_tokens(text, options.length), classes.index(label)) for text, label in found]
        for split, found in pairs.items()
    }
    return labelled("lra_text", samples, Bytes(), options.length, classes)


def _reviews(folder: Path) -> dict[str, Pairs]:
    train = _folder(folder / "train")
    held = [split_of_text(text) == "validation" for text, _ in train]
    return {
        "train": [pair for pair, out in zip(train, held, strict=True) if not out],
        "validation": [pair for pair, out in zip(train, held, strict=True) if out],
        "test": _folder(folder / "test"),
    }


def _folder(folder: Path) -> Pairs:
    """(text, label) of each file, by the name of the file."""
    found = []
    for label in LABELS:
        paths = the_files(folder / label, "*.txt")
        found += [(_filled(read_text(path), f"'{path}'"), label) for path in paths]
    return found


def _tables(folder: Path) -> dict[str, Pairs]:
    paths = {split: the_file(folder, name) for split, name in TABLES.items()}
    rows = {split: read_table(path, ["Source", "Target"], "\t") for split, path in paths.items()}
    return {
        split: [(_filled(text, f"'{paths[split]}', line {line}"), label) for line, (text, label) in table]
        for split, table in rows.items()
    }


def _filled(text: str, place: str) -> str:
    if not text:
        raise InputError(f"{place} has no text.")
    return text


RECIPE = Recipe(
    "lra_text",
    1,
    "The arena's text classification: reviews, byte by byte.",
    Options,
    _open,
    drawn=False,
    files="path is the folder of train/pos, train/neg, test/pos and test/neg, aclImdb of the IMDb reviews unpacked, or "
    "of NAME_train.tsv, NAME_val.tsv and NAME_test.tsv.",
)
