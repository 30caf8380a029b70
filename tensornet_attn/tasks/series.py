"""Time series in `.ts` files, as sktime, aeon and the UEA and UCR archives have them.

@problemName Walks         what the file is, one fact a line; # begins a comment
@classLabel true left right
@data
1,2,3:0,1,0:left           a series a line: its dimensions between colons, its class at the end; ? is missing
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.reading import read_text

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SeriesFile:
    """`series`: [n dimensions] each, NaN where a value is missing; `labels`: the class of each, one of `classes`."""

    path: Path
    series: list[Floats]
    labels: list[str]
    classes: tuple[str, ...]


def read_series(path: Path) -> SeriesFile:
    """A file of labelled series. Raises MissingFile, and InputError for what is no such file, with its line."""
    lines = read_text(path).splitlines()
    classes, start = _header(path, lines)
    series, labels = [], []
    for number, line in enumerate(lines[start:], start + 1):
        if not line.strip():
            continue
        *dimensions, label = (part.strip() for part in line.split(":"))
        if label not in classes:
            raise InputError(f"'{path}', line {number}: '{label}' is no class; @classLabel has {', '.join(classes)}.")
        series.append(_series(f"'{path}', line {number}", dimensions))
        labels.append(label)
        if series[-1].shape[1] != series[0].shape[1]:
            counts = f"{series[-1].shape[1]} dimensions; the first series has {series[0].shape[1]}"
            raise InputError(f"'{path}', line {number}: {counts}.")
    if not series:
        raise InputError(f"'{path}' has no series below '@data'.")
    return SeriesFile(path, series, labels, classes)


def _header(path: Path, lines: list[str]) -> tuple[tuple[str, ...], int]:
    """(classes, the line below @data, counted from 0)."""
    classes: tuple[str, ...] = ()
    for number, line in enumerate(lines):
        words = line.split()
        key = words[0].lower() if words else "#"
        if key == "@data":
            if not classes:
                raise InputError(
                    f"'{path}' has no '@classLabel true CLASS CLASS ...' above '@data'; series have classes."
                )
            return classes, number + 1
        if key == "@timestamps" and words[1:2] == ["true"]:
            raise InputError(f"'{path}', line {number + 1}: series with time stamps are not read; give values alone.")
        if key == "@classlabel" and words[1:2] == ["true"]:
            classes = tuple(words[2:])
        elif key[0] not in "#@":
            raise InputError(f"'{path}', line {number + 1}: a line before '@data' begins with '@' or '#'.")
    raise InputError(f"'{path}' has no line '@data'; it is no .ts file of the archives.")


def _series(place: str, dimensions: list[str]) -> Floats:
    """[n dimensions]: every dimension has as many values."""
    if not dimensions or not all(dimensions):
        raise InputError(f"{place}: values, dimensions between colons, and a class are needed.")
    try:
        columns = [np.array(text.replace("?", "nan").split(","), np.float64) for text in dimensions]
    except ValueError as error:
        raise InputError(f"{place}: {error}.") from error
    for number, column in enumerate(columns, 1):
        if len(column) != len(columns[0]):
            counts = f"dimension {number} has {len(column)} values, dimension 1 has {len(columns[0])}"
            raise InputError(f"{place}: {counts}; series whose dimensions differ in length are not read.")
    return np.stack(columns, 1)


def filled(series: Floats) -> Floats:
    """A series without gaps: between known values on a straight line, before and after them the nearest one.

    A dimension without any known value stays NaN.

    >>> filled(np.array([[np.nan], [1.0], [np.nan], [3.0], [np.nan]]))[:, 0].tolist()
    [1.0, 1.0, 2.0, 3.0, 3.0]
    """
    known = ~np.isnan(series)
    if known.all():
        return series
    found, place = series.copy(), np.arange(len(series))
    for column in range(series.shape[1]):
        here = known[:, column]
        if here.any():
            found[:, column] = np.interp(place, place[here], series[here, column])
    return found
