"""One process at a time writes in a folder; the lock goes with its process, however that ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensornet_attn.errors import InputError


@contextmanager
def locked(out: Path, wanted: bool) -> Iterator[None]:
    """Makes the folder and holds it. Raises InputError where another process does, OSError where it cannot be made."""
    if not wanted:
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process trains in '{out}': wait for it, or choose another --out.") from None
        yield
