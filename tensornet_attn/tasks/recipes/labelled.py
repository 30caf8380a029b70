"""Classification of texts, byte by byte: CSV files, and the Long Range Arena's reviews and papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet, Bytes
from tensornet_attn.tasks.chance import Integers, RandomStream, Rows, by_content, split_of_text
from tensornet_attn.tasks.reading import Cache, read_table, read_text, the_file, the_files
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source, sizes_of

Pairs = list[tuple[str, str]]  # (text, label)
Text = npt.NDArray[np.uint16]
Labelled = Mapping[str, Sequence[tuple[Text, int]]]  # split -> (tokens, class) of each sample


def labelled(
    task: str,
    samples: Labelled,
    alphabet: Alphabet | Bytes,
    length: int,
    classes: tuple[str, ...],
    more: str = "give more data",
) -> Source:
    """The source of labelled tokens, truncated to `length`. Raises InputError for a split without samples."""

    def rows(stream: RandomStream, index: Integers) -> Rows:
        chosen = [samples[stream.split][number] for number in index.tolist()]
        tokens = np.zeros((len(chosen), length), np.int64)
        for row, (text, _) in zip(tokens, chosen, strict=True):
            row[: len(text)] = text[:length]
        return {"tokens": tokens, "targets": np.array([label for _, label in chosen])}

    return Source("classification", alphabet, length, sizes_of(task, samples, more), rows, classes=classes, padding=0)


def byte_tokens(text: str, length: int) -> Text:
    """The first `length` bytes of a text as tokens of `Bytes`."""
    return np.frombuffer(text.encode()[:length], np.uint8).astype(np.uint16) + np.uint16(1)


def of_bytes(task: str, pairs: Mapping[str, Pairs], length: int, more: str = "give more data") -> Source:
    """The source of labelled texts, truncated to `length` bytes."""
    classes = sorted_labels({label for split in pairs.values() for _, label in split})
    class_index = {label: number for number, label in enumerate(classes)}
    samples = {
        split: [(byte_tokens(text, length), class_index[label]) for text, label in labelled_texts]
        for split, labelled_texts in pairs.items()
    }
    return labelled(task, samples, Bytes(), length, classes, more)


def sorted_labels(labels: set[str]) -> tuple[str, ...]:
    """Labels in numeric order, or in alphabetical order if a label is not a number.

    >>> sorted_labels({"10", "9"}), sorted_labels({"b", "a", "10"})
    (('9', '10'), ('10', 'a', 'b'))
    """
    numbers = all(label.lstrip("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


class LabelledTable(Base):
    path: str = Field(description="a CSV file with a header")
    text: str = Field("text", description="the column of the texts")
    label: str = Field("label", description="the column of the labels")
    length: int = Field(256, ge=1, le=2**20, description="maximum bytes of a text; longer texts are truncated")
    delimiter: str = Field(",", min_length=1, max_length=1, description="the character between columns")
    validation_path: str | None = Field(None, description="a CSV file for validation; needs test_path")
    test_path: str | None = Field(None, description="a CSV file for test; needs validation_path")


def _open_table(options: LabelledTable, cache: Cache) -> Source:
    """text_classification: the label of a text in a CSV file with a header; texts are read as bytes.

    Without separate files, validation and test are an eighth of the texts each, chosen by content: equal texts are in
    one split.
    """
    if (options.validation_path is None) != (options.test_path is None):
        raise InputError("task 'text_classification': give both validation_path and test_path, or neither.")
    everything = _read_table(options.path, options)
    if options.validation_path is not None and options.test_path is not None:
        validation, test = _read_table(options.validation_path, options), _read_table(options.test_path, options)
        pairs = {"train": everything, "validation": validation, "test": test}
    else:
        by_split = by_content(text for text, _ in everything)
        pairs = {split: [everything[index] for index in indices] for split, indices in by_split.items()}
    more = "give more texts, or set validation_path= and test_path="
    return of_bytes("text_classification", pairs, options.length, more)


def _read_table(path: str, options: LabelledTable) -> Pairs:
    rows = read_table(Path(path), [options.text, options.label], options.delimiter)
    for line, fields in rows:
        for column, field in zip((options.text, options.label), fields, strict=True):
            if not field:
                raise InputError(f"'{path}', line {line}: column '{column}' is empty.")
    return [(text, label) for _, (text, label) in rows]


TEXT_CLASSIFICATION = Recipe(
    "text_classification",
    1,
    "The label of a text in a CSV file, read as bytes.",
    LabelledTable,
    _open_table,
    drawn=False,
    files="path, validation_path and test_path are CSV files with a header; text= and label= are the names of columns.",
)


LABELS = ("neg", "pos")
TABLES = {"train": "*_train.tsv", "validation": "*_val.tsv", "test": "*_test.tsv"}


class Reviews(Base):
    path: str = Field(description="a folder with train/pos, train/neg, test/pos, test/neg, or with tables")
    length: int = Field(4000, ge=1, le=2**20, description="maximum bytes of a text; longer texts are truncated")


def _open_reviews(options: Reviews, cache: Cache) -> Source:
    """lra_text: the Long Range Arena's text classification, byte by byte: reviews in folders, or tables.

    The folder has train/pos, train/neg, test/pos and test/neg with one review per file, or NAME_train.tsv, NAME_val.tsv
    and NAME_test.tsv (columns Source, Target). The reviews have no validation set: the arena validates on the test set,
    and this task on an eighth of the training texts, chosen by content.
    """
    folder = Path(options.path)
    pairs = _reviews(folder) if (folder / "train" / "pos").is_dir() else _tables(folder)
    return of_bytes("lra_text", pairs, options.length)


def _reviews(folder: Path) -> dict[str, Pairs]:
    """(text, label) of each file, in the order of file names."""
    pairs: dict[str, Pairs] = {"train": [], "validation": [], "test": []}
    for subfolder, label in product(("train", "test"), LABELS):
        for path in the_files(folder / subfolder / label, "*.txt"):
            text = _filled(read_text(path), f"'{path}'")
            held_out = subfolder == "train" and split_of_text(text) == "validation"
            pairs["validation" if held_out else subfolder].append((text, label))
    return pairs


def _tables(folder: Path) -> dict[str, Pairs]:
    paths = {split: the_file(folder, name) for split, name in TABLES.items()}
    rows = {split: read_table(path, ["Source", "Target"], "\t") for split, path in paths.items()}
    return {
        split: [(_filled(text, f"'{paths[split]}', line {line}"), label) for line, (text, label) in table]
        for split, table in rows.items()
    }


def _filled(text: str, where: str) -> str:
    if not text:
        raise InputError(f"{where} has no text; remove it.")
    return text


LRA_TEXT = Recipe(
    "lra_text",
    1,
    "The arena's text classification: reviews, byte by byte.",
    Reviews,
    _open_reviews,
    drawn=False,
    files="path is the folder of train/pos, train/neg, test/pos and test/neg (aclImdb, the IMDb reviews, unpacked), or "
    "the folder of NAME_train.tsv, NAME_val.tsv and NAME_test.tsv.",
)


FILES = {"train": "*.train.tsv", "validation": "*.eval.tsv", "test": "*.test.tsv"}
CLASSES = ("0", "1")
MARK = 257


class Papers(Base):
    path: str = Field(description="the folder of *.train.tsv, *.eval.tsv and *.test.tsv")
    length: int = Field(
        8001, ge=3, le=2**20, description="tokens of a sample: two texts of equal maximum length and a marker"
    )


def _open_papers(options: Papers, cache: Cache) -> Source:
    """lra_retrieval: the Long Range Arena's retrieval, byte by byte: does one of two papers cite the other?

    The folder has *.train.tsv, *.eval.tsv and *.test.tsv without header: label, id, id, text, text. A sample has both
    texts, separated by a marker; the arena encodes them separately and joins the results.
    """
    paths = {split: the_file(Path(options.path), name) for split, name in FILES.items()}
    samples = {split: _read_papers(path, (options.length - 1) // 2) for split, path in paths.items()}
    return labelled("lra_retrieval", samples, Bytes(marks=1), options.length, CLASSES)


def _read_papers(path: Path, each: int) -> list[tuple[Text, int]]:
    """(tokens, class) of each line; quotes are part of the text."""
    samples = []
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        fields = line.split("\t")
        if len(fields) != 5 or fields[0] not in ("0", "1", "0.0", "1.0"):
            raise InputError(f"'{path}', line {number}: give label (0 or 1), id, id, text and text, separated by tabs.")
        first, second = byte_tokens(fields[3], each), byte_tokens(fields[4], each)
        samples.append((np.concatenate([first, np.array([MARK], np.uint16), second]), int(float(fields[0]))))
    return samples


LRA_RETRIEVAL = Recipe(
    "lra_retrieval",
    1,
    "The arena's retrieval: does one of two papers cite the other?",
    Papers,
    _open_papers,
    drawn=False,
    files="path is the folder of *.train.tsv, *.eval.tsv and *.test.tsv: tsv_data of the arena's lra_release.",
)
