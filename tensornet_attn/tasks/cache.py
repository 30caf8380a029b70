"""Arrays on disk: a file is named by what they are made from, appears whole, and carries a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensornet_attn.errors import InputError
from tensornet_attn.files import write_whole

Arrays = dict[str, npt.NDArray[Any]]
MARK = "tensornet_attn arrays 1"
_TYPES = ("uint8", "int8", "int16", "int32", "int64")
_HEADER = 1 << 20  # bytes of the longest header that is read


def default_folder() -> Path:
    """The user's cache directory: `$XDG_CACHE_HOME`, else `~/Library/Caches` on macOS and `~/.cache` elsewhere."""
    home = Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or home).expanduser() / "tensornet_attn" / "tasks"


@dataclass(frozen=True)
class Cache:
    """A folder of arrays, or None for none. Any number of processes may use it at once."""

    folder: Path | None

    def keep(self, key: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """The integer arrays of `make`, read where they are stored under this key, else made and stored.

        `key` is all that they depend on, as JSON. A file that is damaged is made again. Raises InputError where the
        folder cannot be written.
        """
        if self.folder is None:
            return make()
        name = json.dumps(key, sort_keys=True)
        path = self.folder / str(key["task"]) / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.arrays"
        found = _read(path, name)
        if found is None:
            found = {field: _narrow(values) for field, values in make().items()}
            _write(path, name, found)
        return found


def _narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same integers in the narrowest type that holds them."""
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
            f"'{path.parent}': samples cannot be stored here: {error.strerror or error}; give cache=FOLDER, or "
            "cache=False to store nothing."
        ) from error


def _read(path: Path, name: str) -> Arrays | None:
    """The arrays of a file; None for a file that is missing, damaged, or of another key."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline(_HEADER))
            body = file.read()
        if (header["mark"], header["key"]) != (MARK, name) or header["sha256"] != hashlib.sha256(body).hexdigest():
            return None
        found, start = {}, 0
        for field, kind, shape in header["fields"]:
            values = np.frombuffer(body, kind, int(np.prod(shape)), start)
            found[field] = values.reshape(shape)
            start += values.nbytes
        return found
    except (OSError, ValueError, KeyError, TypeError):
        return None
