"""The folder of a run: one process at a time writes in it, and it goes on with the configuration that it has."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.train.config import Run, read
from tensornet_attn.train.save import CONFIG, decisive


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


_LONG = 60  # characters of a value that a message shows


def check_same(run: Run, out: Path) -> None:
    """Raises InputError where the folder holds another run: the first difference, or more steps on a fixed schedule."""
    if not (out / CONFIG).exists():
        return
    there = read(out / CONFIG, {})
    found = difference(decisive(run), decisive(there))
    if found is not None:
        place, told = found
        more = "" if place != "steps" else "; a schedule that ends cannot be lengthened, 'schedule: constant' could"
        raise InputError(f"'{out}' holds another run: {told}{more}; choose another --out.")
    if run.steps < there.steps:
        raise InputError(
            f"'{out}' holds a run of {there.steps} steps; {run.steps} are asked for: choose another --out."
        )


def difference(here: Any, there: Any) -> tuple[str, str] | None:
    """The place of the first difference, and what to say of it; None where there is none.

    >>> difference({"a": [1, 2], "b": 3}, {"a": [1, 5], "b": 3})
    ('a[1]', "'a[1]' is 5 there and 2 here")
    """
    found = next(differences(here, there), None)
    if found is None:
        return None
    place, *values = found
    own, before = ("not given" if value is None else str(value) for value in values)
    shown = [text if len(text) <= _LONG else text[: _LONG - 3] + "..." for text in (before, own)]
    return place, f"'{place}' is {shown[0]} there and {shown[1]} here"


def differences(here: Any, there: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(place, value here, value there) of all that differs, in order.

    >>> list(differences({"a": [1, 2], "b": 3}, {"a": [1, 5], "b": 3}))
    [('a[1]', 2, 5)]
    """
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for name in [*here, *(name for name in there if name not in here)]:
            yield from differences(here.get(name), there.get(name), f"{place}.{name}".lstrip("."))
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for index, (one, other) in enumerate(zip(here, there, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif here != there:
        yield place, here, there
