"""A space of designs: bases, what varies in them, moves, and bounds on what a design may cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from tensornet_attn.search.path import KINDS, Choice, Path, base_of
from tensornet_attn.search.price import Bounds
from tensornet_attn.search.values import Values
from tensornet_attn.spec.extend import merge
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.report import Reporter

SECTIONS = {"leg": "legs", "setting": "settings"}  # where a design has the numbers of a kind of choice


@dataclass(frozen=True)
class Alternative:
    """What may stand at a step in its place: sections of a child design, and the bases in which it is valid."""

    change: Mapping[str, Any]
    bases: tuple[str, ...]


@dataclass(frozen=True)
class Space:
    """A checked space. `bases`: designs as data, by name. `alternatives`: by step and name, what they change.

    `moves`: by name, the values of each option; at most `most` of them make one proposal, each at most once.
    """

    name: str
    about: str
    bases: Mapping[str, Mapping[str, Any]]
    legs: Mapping[str, Values]
    settings: Mapping[str, Values]
    alternatives: Mapping[str, Mapping[str, Alternative]]
    moves: Mapping[str, Mapping[str, Values]]
    most: int
    bounds: Bounds

    def numbers(self, kind: str) -> Mapping[str, Values]:
        """What varies among legs (`leg`) or settings (`setting`)."""
        return self.legs if kind == "leg" else self.settings

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all that the space says, name and about left out: a study belongs to one space."""
        parts = (self.bases, self.legs, self.settings, self.alternatives, self.moves, self.most, self.bounds)
        return sha256(json.dumps(parts, default=repr).encode()).hexdigest()


def with_alternative(data: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A design's data with an alternative merged over it, as a child is under `extends`."""
    parent, child = Document(dict(data), "base"), Document(dict(change), "alternative")
    return {"name": data["name"], **merge(parent, child, Reporter(child)).data}


def fitting(space: Space, base: str) -> dict[str, list[str]]:
    """The names of the alternatives that are valid in a base, by step."""
    found = {
        step: [name for name, one in given.items() if base in one.bases] for step, given in space.alternatives.items()
    }
    return {step: names for step, names in found.items() if names}


def ordered(space: Space, path: Path) -> Path:
    """A path in the space's own order; moves stay in theirs. Equal choices, equal paths."""
    names = {kind: list(names) for kind, names in _names(space).items()}

    def place(choice: Choice) -> tuple[int, int]:
        known = names.get(choice.kind, [])
        return KINDS.index(choice.kind), known.index(choice.name) if choice.name in known else len(known)

    return tuple(sorted(path, key=place))


def missing(space: Space, path: Path) -> list[tuple[str, str]]:
    """The (kind, name) of legs and settings that vary in the base of a path, and that the path does not choose."""
    chosen = {(choice.kind, choice.name) for choice in path}
    data = space.bases[base_of(path)]
    vary = [(kind, name) for kind in SECTIONS for name in space.numbers(kind) if name in data.get(SECTIONS[kind], {})]
    return [number for number in vary if number not in chosen]


def _names(space: Space) -> Mapping[str, Mapping[str, Any]]:
    return {"alternative": space.alternatives, "leg": space.legs, "setting": space.settings}
