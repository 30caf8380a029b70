"""uea: the class of a time series of one or more dimensions, from the `.ts` files of the UEA and UCR archives.

The folder has NAME_TRAIN.ts and NAME_TEST.ts. A position has the values of all dimensions at one time, which the model
projects to its width, as in the experiments that FiSH follows (Zerveas et al., 2021; Flowformer, 2022). As in these,
missing values are interpolated, each dimension is standardised with the mean and standard deviation of the training
series, and shorter series are padded at the end. Those experiments validate on the test set; this task validates on a
share of the training series of each class, or with `validation=0` on the test set."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.chance import Integers, RandomStream, Rows
from tensornet_attn.tasks.reading import Cache, read_text, the_file
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source, sizes_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SeriesFile:
    """A `.ts` file, in the format of sktime, aeon and the UEA and UCR archives.

        @problemName Walks         a header with one property per line; # starts a comment
        @classLabel true left right
        @data
        1,2,3:0,1,0:left           a series per line: dimensions and the class, separated by colons; ? is missing

    `series`: [n, dimensions] each, NaN for missing values; `labels`: the class of each series, one of `classes`."""

    path: Path
    series: list[Floats]
    labels: list[str]
    classes: tuple[str, ...]


def read_series(path: Path) -> SeriesFile:
    """Reads a `.ts` file. Raises MissingFile, and InputError with the line of an error."""
    lines = read_text(path).splitlines()
    classes, start = _header(path, lines)
    series, labels = [], []
    for number, line in enumerate(lines[start:], start + 1):
        if not line.strip():
            continue
        *dimensions, label = (section.strip() for section in line.split(":"))
        if label not in classes:
            raise InputError(f"'{path}', line {number}: '{label}' is not a class; use one of {', '.join(classes)}.")
        series.append(_series(f"'{path}', line {number}", dimensions))
        labels.append(label)
        if series[-1].shape[1] != series[0].shape[1]:
            counts = f"{series[-1].shape[1]} dimensions; the first series has {series[0].shape[1]}"
            raise InputError(f"'{path}', line {number}: {counts}.")
    if not series:
        raise InputError(f"'{path}' has no series below '@data'.")
    return SeriesFile(path, series, labels, classes)


def _header(path: Path, lines: list[str]) -> tuple[tuple[str, ...], int]:
    """(classes, index of the line after @data)."""
    classes: tuple[str, ...] = ()
    for number, line in enumerate(lines):
        words = line.split()
        key = words[0].lower() if words else "#"
        if key == "@data":
            if not classes:
                raise InputError(
                    f"'{path}' has no classes: add a line '@classLabel true CLASS CLASS ...' above '@data'."
                )
            return classes, number + 1
        if key == "@timestamps" and words[1:2] == ["true"]:
            raise InputError(f"'{path}', line {number + 1}: time stamps are not supported; give only values.")
        if key == "@classlabel" and words[1:2] == ["true"]:
            classes = tuple(words[2:])
        elif key[0] not in "#@":
            raise InputError(f"'{path}', line {number + 1}: begin lines before '@data' with '@' or '#'.")
    raise InputError(f"'{path}' has no line '@data'; give a .ts file of the archives.")


def _series(where: str, dimensions: list[str]) -> Floats:
    """The series [n, dimensions] of a line. Raises InputError for dimensions of different lengths."""
    if not dimensions or not all(dimensions):
        raise InputError(f"{where}: give the values of each dimension and the class, separated by colons.")
    try:
        columns = [np.array(dimension.replace("?", "nan").split(","), np.float64) for dimension in dimensions]
    except ValueError as error:
        raise InputError(f"{where}: {error}.") from error
    for number, column in enumerate(columns, 1):
        if len(column) != len(columns[0]):
            counts = f"dimension {number} has {len(column)} values, dimension 1 has {len(columns[0])}"
            raise InputError(f"{where}: {counts}; give all dimensions the same length.")
    return np.stack(columns, 1)


def filled(series: Floats) -> Floats:
    """A series with missing values interpolated linearly, and extrapolated by the nearest value.

    A dimension without any value stays NaN.

    >>> filled(np.array([[np.nan], [1.0], [np.nan], [3.0], [np.nan]]))[:, 0].tolist()
    [1.0, 1.0, 2.0, 3.0, 3.0]
    """
    present = ~np.isnan(series)
    if present.all():
        return series
    interpolated, position = series.copy(), np.arange(len(series))
    for column in range(series.shape[1]):
        observed = present[:, column]
        if observed.any():
            interpolated[:, column] = np.interp(position, position[observed], series[observed, column])
    return interpolated


class Options(Base):
    path: str = Field(description="the folder of NAME_TRAIN.ts and NAME_TEST.ts")
    length: int | None = Field(None, ge=1, le=2**20, description="positions of a sample; none for the longest series")
    validation: float = Field(
        0.2, ge=0, lt=1, description="share of the training series of each class; 0 validates on the test series"
    )


def _open(options: Options, cache: Cache) -> Source:
    train, test = (read_series(the_file(Path(options.path), f"*_{name}.ts")) for name in ("TRAIN", "TEST"))
    _check_same(train, test)
    length = options.length or max(len(series) for file in (train, test) for series in file.series)
    held_out = _held_out(train.labels, options.validation)
    mean, spread = _moments([series for series, out in zip(train.series, held_out, strict=True) if not out])
    arrays = [_arrays(file, train.classes, length, mean, spread) for file in (train, test)]
    unpadded = all(rows["key_mask"].all() for rows in arrays)
    indices = {
        "train": np.flatnonzero(~held_out),
        "validation": np.flatnonzero(held_out),
        "test": np.arange(len(test.series)),
    }
    rows_of = {"train": arrays[0], "validation": arrays[0], "test": arrays[1]}
    if not options.validation:
        indices["validation"], rows_of["validation"] = indices["test"], arrays[1]
    sizes = sizes_of("uea", indices, "change 'validation', the share of each class")

    def rows(stream: RandomStream, index: Integers) -> Rows:
        chosen = indices[stream.split][index]
        return {
            name: values[chosen]
            for name, values in rows_of[stream.split].items()
            if not (unpadded and name == "key_mask")
        }

    return Source("classification", Alphabet(()), length, sizes, rows, classes=train.classes, features=len(mean))


def _check_same(train: SeriesFile, test: SeriesFile) -> None:
    """Raises InputError for files with different classes or dimensions."""
    if set(train.classes) != set(test.classes):
        names = [", ".join(file.classes) for file in (train, test)]
        raise InputError(
            f"'{train.path}' has the classes {names[0]}, '{test.path}' has {names[1]}; give files of one problem."
        )
    counts = [file.series[0].shape[1] for file in (train, test)]
    if counts[0] != counts[1]:
        raise InputError(
            f"'{train.path}' has series of {counts[0]} dimensions, '{test.path}' of {counts[1]}; give files of one "
            "problem."
        )


def _held_out(labels: list[str], share: float) -> npt.NDArray[np.bool_]:
    """A mask of the training series for validation: the same share of every class, in a fixed order."""
    quota = {label: int(count * share) for label, count in Counter(labels).items()}
    held_out, taken = np.zeros(len(labels), bool), Counter[str]()
    for index in RandomStream("uea", 1, "train", 0).order(0, len(labels)).tolist():
        label = labels[index]
        held_out[index] = taken[label] < quota[label]
        taken[label] += 1
    return held_out


def _moments(series: list[Floats]) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each dimension over all series; the deviation of a constant dimension is 1."""
    values = np.concatenate([filled(sample) for sample in series])
    present = np.where(np.isnan(values), 0.0, 1.0)
    count = np.maximum(present.sum(0), 1)
    mean = np.nansum(values, 0) / count
    spread = np.sqrt(np.nansum((values - mean) ** 2, 0) / count)
    return mean, np.where(spread > 0, spread, 1.0)


def _arrays(file: SeriesFile, classes: tuple[str, ...], length: int, mean: Floats, spread: Floats) -> Rows:
    """All series of a file: [series, length, dimensions], 0 for padding and missing dimensions."""
    tokens = np.zeros((len(file.series), length, len(mean)), np.float32)
    mask = np.zeros((len(file.series), length), bool)
    for row, series in enumerate(file.series):
        scaled = np.nan_to_num((filled(series)[:length] - mean) / spread)
        tokens[row, : len(scaled)], mask[row, : len(scaled)] = scaled, True
    targets = np.array([classes.index(label) for label in file.labels])
    return {"tokens": tokens, "targets": targets, "key_mask": mask}


UEA = Recipe(
    "uea",
    1,
    "The class of a time series, from .ts files of the UEA archive.",
    Options,
    _open,
    drawn=False,
    files="path is the folder of NAME_TRAIN.ts and NAME_TEST.ts: one problem of the UEA or UCR archive, unpacked.",
)
