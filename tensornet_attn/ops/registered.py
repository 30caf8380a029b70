"""Adds rows to the tables of the language at run time: masks, maps, kinds of boxes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tensornet_attn.errors import InputError

Row = TypeVar("Row", bound=Hashable)
_added: list[Hashable] = []


def added() -> tuple[Hashable, ...]:
    """The added rows. Caches with names in their keys must include them, because a name can change its meaning."""
    return tuple(_added)


@contextmanager
def registered(table: dict[str, Row], name: str, row: Row, noun: str) -> Iterator[None]:
    """Adds a row inside a `with` block. Raises InputError if the name is already in the table."""
    if name in table:
        raise InputError(f"there is already a {noun} '{name}'; choose another name.")
    table[name] = row
    _added.append(row)
    try:
        yield
    finally:
        del table[name]
        _added.remove(row)
