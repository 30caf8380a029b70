"""Rows that are added to the tables of the language while a program runs: masks, maps, kinds of boxes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tensornet_attn.errors import InputError

Row = TypeVar("Row", bound=Hashable)
_added: list[Hashable] = []


def added() -> tuple[Hashable, ...]:
    """The rows that are added now: what is kept by its text is kept for these, as a name may come to mean another."""
    return tuple(_added)


@contextmanager
def registered(table: dict[str, Row], name: str, row: Row, noun: str) -> Iterator[None]:
    """The table has one more row, inside of `with`. Raises InputError for a name that it has already."""
    if name in table:
        raise InputError(f"there is already a {noun} '{name}'; choose another name.")
    table[name] = row
    _added.append(row)
    try:
        yield
    finally:
        del table[name]
        _added.remove(row)
