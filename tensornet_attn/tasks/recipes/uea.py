"""uea: the class of a time series of one or more dimensions, from the `.ts` files of the UEA and UCR archives.

A folder with NAME_TRAIN.ts and NAME_TEST.ts. A position of a sample is the values of all dimensions at one time, real
numbers that the model projects to its width, as the experiments on these archives do that FiSH follows (Zerveas et al.,
2021; Flowformer, 2022). As there, missing values are interpolated, each dimension has the mean of the training series
taken away and is divided by their standard deviation, and shorter series are padded behind. Where those judge while
they train by the test set, a share of each class of the training series is for validation here; `validation=0` is as
there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Integers, Stream
from tensornet_attn.tasks.reading import the_file
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source
from tensornet_attn.tasks.series import Floats, SeriesFile, filled, read_series
from tensornet_attn.tasks.splits import Rows


class Options(Base):
    path: str = Field(description="the folder of NAME_TRAIN.ts and NAME_TEST.ts")
    length: int | None = Field(None, ge=1, le=2**20, description="positions of a sample; none for the longest series")
    validation: float = Field(
        0.2, ge=0, lt=1, description="share of the training series of each class; 0 takes the test series"
    )


def _open(options: Options, cache: Cache) -> Source:
    train, test = (read_series(the_file(Path(options.path), f"*_{name}.ts")) for name in ("TRAIN", "TEST"))
    _check_same(train, test)
    length = options.length or max(len(series) for file in (train, test) for series in file.series)
    held = _held_out(train.labels, options.validation)
    mean, spread = _moments([series for series, out in zip(train.series, held, strict=True) if not out])
    arrays = [_arrays(file, train.classes, length, mean, spread) for file in (train, test)]
    whole = all(rows["key_mask"].all() for rows in arrays)
    places = {"train": np.flatnonzero(~held), "validation": np.flatnonzero(held), "test": np.arange(len(test.series))}
    of = {"train": arrays[0], "validation": arrays[0], "test": arrays[1]}
    if not options.validation:
        places["validation"], of["validation"] = places["test"], arrays[1]
    for split, found in places.items():
        if not len(found):
            raise InputError(
                f"task 'uea': split '{split}' has no series; 'validation' is the share of each class for it."
            )

    def rows(stream: Stream, index: Integers) -> Rows:
        chosen = places[stream.split][index]
        return {name: values[chosen] for name, values in of[stream.split].items() if not (whole and name == "key_mask")}

    sizes: dict[str, int | None] = {split: len(found) for split, found in places.items()}
    return Source(
        "classification", Alphabet(()), length, sizes, rows, classes=train.classes, features=len(mean)
    )  # fmt: skip


def _check_same(train: SeriesFile, test: SeriesFile) -> None:
    """Raises InputError for files of different problems."""
    if set(train.classes) != set(test.classes):
        told = [", ".join(file.classes) for file in (train, test)]
        raise InputError(f"'{train.path}' has the classes {told[0]}, '{test.path}' has {told[1]}.")
    counts = [file.series[0].shape[1] for file in (train, test)]
    if counts[0] != counts[1]:
        raise InputError(f"'{train.path}' has series of {counts[0]} dimensions, '{test.path}' of {counts[1]}.")


def _held_out(labels: list[str], share: float) -> npt.NDArray[np.bool_]:
    """Which training series are for validation: the same share of every class, in an order fixed once."""
    most = {label: int(count * share) for label, count in Counter(labels).items()}
    found, taken = np.zeros(len(labels), bool), Counter[str]()
    for place in Stream("uea", 1, "train", 0).order(0, len(labels)).tolist():
        label = labels[place]
        found[place] = taken[label] < most[label]
        taken[label] += 1
    return found


def _moments(series: list[Floats]) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each dimension over all times of all series; 0 and 1 for one that is constant."""
    values = np.concatenate([filled(one) for one in series])
    known = np.where(np.isnan(values), 0.0, 1.0)
    count = np.maximum(known.sum(0), 1)
    mean = np.nansum(values, 0) / count
    spread = np.sqrt(np.nansum((values - mean) ** 2, 0) / count)
    return mean, np.where(spread > 0, spread, 1.0)


def _arrays(file: SeriesFile, classes: tuple[str, ...], length: int, mean: Floats, spread: Floats) -> Rows:
    """All series of a file: [series length dimensions], 0 behind the end and where a dimension is missing."""
    tokens = np.zeros((len(file.series), length, len(mean)), np.float32)
    mask = np.zeros((len(file.series), length), bool)
    for row, series in enumerate(file.series):
        kept = np.nan_to_num((filled(series)[:length] - mean) / spread)
        tokens[row, : len(kept)], mask[row, : len(kept)] = kept, True
    targets = np.array([classes.index(label) for label in file.labels])
    return {"tokens": tokens, "targets": targets, "key_mask": mask}


RECIPE = Recipe(
    "uea",
    1,
    "The class of a time series, from .ts files of the UEA archive.",
    Options,
    _open,
    drawn=False,
    files="path is the folder of NAME_TRAIN.ts and NAME_TEST.ts: one problem of the UEA or UCR archive, unpacked.",
)
