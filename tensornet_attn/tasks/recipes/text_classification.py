"""text_classification: the label of a text in a CSV file with a header; texts are read as bytes.

Without files of their own, validation and test are an eighth of the texts each, by what they say: equal texts fall in
one split.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Bytes
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.labelled import byte_tokens, labelled, sorted_labels
from tensornet_attn.tasks.reading import read_table
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source
from tensornet_attn.tasks.splits import by_content

Pairs = list[tuple[str, str]]


class Options(Base):
    path: str = Field(description="a CSV file with a header")
    text: str = Field("text", description="the column of the texts")
    label: str = Field("label", description="the column of the labels")
    length: int = Field(256, ge=1, le=2**20, description="bytes of a text; longer ones are cut off")
    delimiter: str = Field(",", min_length=1, max_length=1, description="what stands between columns")
    validation_path: str | None = Field(None, description="a CSV file for validation, with one for test")
    test_path: str | None = Field(None, description="a CSV file for test, with one for validation")


def _open(options: Options, cache: Cache) -> Source:
    pairs = _pairs(options)
    classes = sorted_labels({label for split in pairs.values() for _, label in split})
    place = {label: number for number, label in enumerate(classes)}
    samples = {
        split: [(byte_tokens(text, options.length), place[label]) for text, label in found]
        for split, found in pairs.items()
    }
    more = "give more texts, or validation_path= and test_path="
    return labelled("text_classification", samples, Bytes(), options.length, classes, more)


def _pairs(options: Options) -> dict[str, Pairs]:
    """(text, label) of each split."""
    if (options.validation_path is None) != (options.test_path is None):
        raise InputError("task 'text_classification': give validation_path and test_path both, or neither.")
    everything = _read(options.path, options)
    if options.validation_path is not None and options.test_path is not None:
        validation, test = _read(options.validation_path, options), _read(options.test_path, options)
        return {"train": everything, "validation": validation, "test": test}
    places = by_content(text for text, _ in everything)
    return {split: [everything[place] for place in found] for split, found in places.items()}


def _read(path: str, options: Options) -> Pairs:
    rows = read_table(Path(path), [options.text, options.label], options.delimiter)
    for line, fields in rows:
        for column, field in zip((options.text, options.label), fields, strict=True):
            if not field:
                raise InputError(f"'{path}', line {line}: column '{column}' is empty.")
    return [(text, label) for _, (text, label) in rows]


RECIPE = Recipe(
    "text_classification",
    1,
    "The label of a text in a CSV file, read as bytes.",
    Options,
    _open,
    drawn=False,
    files="path, and validation_path and test_path, are CSV files with a header that names the columns text= and "
    "label=.",
)
