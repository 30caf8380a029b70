"""Where a run was going: the configuration in its folder against the one asked for now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.train.config import Run
from tensornet_attn.train.read import read
from tensornet_attn.train.save import CONFIG, decisive


def check_same(run: Run, out: Path) -> None:
    """Raises InputError where the folder holds another run: the first difference, or more steps on a fixed schedule."""
    if not (out / CONFIG).exists():
        return
    there = read(out / CONFIG, {})
    found = next(differences(decisive(run), decisive(there)), None)
    if found is not None:
        place, here, before = found
        more = "" if place != "steps" else "; a schedule that ends cannot be lengthened, 'schedule: constant' could"
        raise InputError(
            f"'{out}' holds another run: '{place}' is {_format(before)} there and {_format(here)} here{more}; choose "
            "another --out."
        )
    if run.steps < there.steps:
        raise InputError(
            f"'{out}' holds a run of {there.steps} steps; {run.steps} are asked for: choose another --out."
        )


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


def _format(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
