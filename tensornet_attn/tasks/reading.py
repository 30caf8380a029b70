"""Reading of texts and tables, and the cache of arrays on disk."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.files import user_folder, write_whole

_FIELD = 1 << 26  # maximum bytes of a field of a table; csv's default is too short for a paper


class MissingFile(InputError):
    """A file is missing or unreadable; the task adds a description of the files that it needs."""


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises MissingFile if it is missing or unreadable."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingFile(f"'{path}' cannot be read: {error.strerror or error}.") from error


def read_text(path: Path) -> str:
    """The text of a file. Raises InputError if it is missing, unreadable or not UTF-8."""
    encoded = read_bytes(path)
    try:
        return encoded.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}': byte {error.start} is not UTF-8; save it as UTF-8 text.") from error


def read_table(path: Path, columns: Sequence[str], delimiter: str) -> list[tuple[int, list[str]]]:
    """(line, fields) of the named columns of a table. Raises InputError for a missing column or a short line."""
    old = csv.field_size_limit(_FIELD)
    try:
        reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter)
        header = next(reader, [])
        for column in columns:
            if column not in header:
                raise InputError(f"'{path}' has no column '{column}': {nearest(column, header)}")
        indices, rows = [header.index(column) for column in columns], []
        for row in filter(None, reader):
            if len(row) <= max(indices):
                raise InputError(f"'{path}', line {reader.line_num}: {len(row)} columns, fewer than the header.")
            rows.append((reader.line_num, [row[index] for index in indices]))
        return rows
    except csv.Error as error:
        raise InputError(f"'{path}' cannot be read as a table: {error}.") from error
    finally:
        csv.field_size_limit(old)


def the_file(folder: Path, pattern: str) -> Path:
    """The only file of a folder that matches a pattern. Raises MissingFile for none, InputError for several."""
    matches = the_files(folder, pattern)
    if len(matches) != 1:
        names = ", ".join(path.name for path in matches)
        raise InputError(f"'{folder}' has {len(matches)} files {pattern} ({names}); leave exactly one.")
    return matches[0]


def the_files(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that match a pattern, sorted by name. Raises MissingFile for none."""
    matches = sorted(folder.glob(pattern))
    if not matches:
        problem = f"has no file {pattern}" if folder.is_dir() else f"is not a folder with files {pattern}"
        raise MissingFile(f"'{folder}' {problem}.")
    return matches


def fingerprint(parts: Iterable[bytes | str]) -> str:
    """A checksum of the inputs of arrays."""
    total = hashlib.sha256()
    for chunk in parts:
        encoded = os.fsencode(chunk)
        total.update(len(encoded).to_bytes(8, "little") + encoded)
    return total.hexdigest()


Arrays = dict[str, npt.NDArray[Any]]
MARK = "tensornet_attn arrays 1"
_TYPES = ("uint8", "int8", "int16", "int32", "int64")
_HEADER = 1 << 20  # maximum bytes of a header


def default_folder() -> Path:
    """The folder `tasks` in `files.user_folder`. Raises InputError if there is none."""
    return user_folder() / "tasks"


@dataclass(frozen=True)
class Cache:
    """A folder of arrays; None stores nothing. Several processes can use it at once."""

    folder: Path | None

    def keep(self, key: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """The integer arrays of `make`, read from the cache if stored there, otherwise computed and stored.

        `key` has everything that the arrays depend on, as JSON. A damaged file is replaced. Raises InputError if the
        folder cannot be written.
        """
        if self.folder is None:
            return make()
        name = json.dumps(key, sort_keys=True)
        path = self.folder / str(key["task"]) / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.arrays"
        arrays = _read(path, name)
        if arrays is None:
            arrays = {field: _narrow(values) for field, values in make().items()}
            _write(path, name, arrays)
        return arrays


def _narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same integers in the narrowest sufficient type."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    kind = next(kind for kind in _TYPES if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return np.ascontiguousarray(values, dtype=f"<{np.dtype(kind).str[1:]}")


def _write(path: Path, name: str, arrays: Arrays) -> None:
    body = b"".join(values.tobytes() for values in arrays.values())
    fields = [[field, values.dtype.str.replace("|", "<"), list(values.shape)] for field, values in arrays.items()]
    header = {"mark": MARK, "key": name, "fields": fields, "sha256": hashlib.sha256(body).hexdigest()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(header).encode() + b"\n" + body)
    except OSError as error:
        raise InputError(
            f"'{path.parent}': samples cannot be stored: {error.strerror or error}; set cache=FOLDER, or "
            "cache=False to store nothing."
        ) from error


def _read(path: Path, name: str) -> Arrays | None:
    """The arrays of a file; None if the file is missing or damaged, or has another key."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline(_HEADER))
            body = file.read()
        if (header["mark"], header["key"]) != (MARK, name) or header["sha256"] != hashlib.sha256(body).hexdigest():
            return None
        arrays, start = {}, 0
        for field, kind, shape in header["fields"]:
            values = np.frombuffer(body, kind, int(np.prod(shape)), start)
            arrays[field] = values.reshape(shape)
            start += values.nbytes
        return arrays
    except (OSError, ValueError, KeyError, TypeError):
        return None
