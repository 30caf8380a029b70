"""Paths: the typed choices that lead from a base design to a proposal, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.search.values import Value

KINDS = ("base", "alternative", "leg", "setting", "move")  # in the order in which they are made


@dataclass(frozen=True)
class Choice:
    """One choice: a base; an alternative at a step; the size of a leg; a setting; or a move at the map of a box.

    `name` is the base, step, leg, setting or move; `value` the alternative or number; `at` and `options` a move's.
    """

    kind: str
    name: str
    value: Value | None = None
    at: str = ""
    options: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        if self.kind == "base":
            return self.name
        if self.kind == "move":
            return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.options)}) at {self.at}"
        return f"{self.name}: {self.value}" if self.kind == "alternative" else f"{self.name} = {self.value}"


Path = tuple[Choice, ...]


def to_text(path: Path) -> str:
    """`mhsa; h = 4; share(g=2) at A`."""
    return "; ".join(map(str, path))


def of_kind(path: Path, kind: str) -> Path:
    return tuple(choice for choice in path if choice.kind == kind)


def base_of(path: Path) -> str:
    """The name of the base that a path starts from. Raises InputError where it has none."""
    bases = of_kind(path, "base")
    if not bases:
        raise InputError("a path begins with a base, e.g. (Choice('base', 'mhsa'),).")
    return bases[0].name


def as_data(path: Path) -> list[dict[str, Any]]:
    """A path as JSON holds it; `from_data` reads it back."""
    return [
        {"kind": c.kind, "name": c.name}
        | ({} if c.value is None else {"value": c.value})
        | ({"at": c.at, "options": dict(c.options)} if c.kind == "move" else {})
        for c in path
    ]


def from_data(data: Sequence[Mapping[str, Any]]) -> Path:
    """The path of what `as_data` gave."""
    return tuple(
        Choice(c["kind"], c["name"], c.get("value"), c.get("at", ""), tuple(c.get("options", {}).items())) for c in data
    )
