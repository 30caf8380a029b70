"""Data files of the user's: text and tables, and what is wrong with them in one sentence."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tensornet_attn.errors import InputError, nearest

_FIELD = 1 << 26  # bytes of one field of a table; csv's own bound is below the length of a paper


class MissingFile(InputError):
    """A file that was looked for is not there or cannot be read; a task adds what to put where."""


def read_bytes(path: Path) -> bytes:
    """A file's content. Raises MissingFile for one that is missing or unreadable."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingFile(f"'{path}' cannot be read: {error.strerror or error}.") from error


def read_text(path: Path) -> str:
    """A file's text. Raises InputError for one that is missing, unreadable or not UTF-8."""
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}': byte {error.start} is not UTF-8; save it as UTF-8 text.") from error


def read_table(path: Path, columns: Sequence[str], delimiter: str) -> list[tuple[int, list[str]]]:
    """(line, fields) of the named columns of a table with a header. Raises InputError for what is no such table."""
    old = csv.field_size_limit(_FIELD)
    try:
        reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter)
        header = next(reader, [])
        for column in columns:
            if column not in header:
                raise InputError(f"'{path}' has no column '{column}': {nearest(column, header)}")
        places, found = [header.index(column) for column in columns], []
        for row in filter(None, reader):
            if len(row) <= max(places):
                raise InputError(f"'{path}', line {reader.line_num}: {len(row)} columns; the header has more.")
            found.append((reader.line_num, [row[place] for place in places]))
        return found
    except csv.Error as error:
        raise InputError(f"'{path}' cannot be read as a table: {error}.") from error
    finally:
        csv.field_size_limit(old)


def the_file(folder: Path, pattern: str) -> Path:
    """The one file of a folder that fits a pattern. Raises MissingFile for none, InputError for several."""
    found = the_files(folder, pattern)
    if len(found) != 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"'{folder}' holds {len(found)} files {pattern} ({names}); exactly one is needed.")
    return found[0]


def the_files(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that fit a pattern, by name. Raises MissingFile for none."""
    found = sorted(folder.glob(pattern))
    if not found:
        held = f"holds no file {pattern}" if folder.is_dir() else f"is no folder, so that it holds no file {pattern}"
        raise MissingFile(f"'{folder}' {held}.")
    return found


def fingerprint(parts: Iterable[bytes | str]) -> str:
    """A checksum of what arrays are made from."""
    total = hashlib.sha256()
    for part in parts:
        data = os.fsencode(part)
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()
