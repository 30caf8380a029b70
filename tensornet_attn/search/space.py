"""Spaces of designs (bases, choices, moves, bounds and prices) and paths, the choices that lead to a design."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from hashlib import sha256
from math import isfinite, log, prod
from typing import Any

from tensornet_attn import compiler
from tensornet_attn.errors import InputError
from tensornet_attn.graph import Graph
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.read import merge
from tensornet_attn.spec.report import Reporter

SECTIONS = {"leg": "legs", "setting": "settings"}  # kind of choice: section of a design
Value = int | float | str
GRID = 1001  # number of grid points of a range of decimals


@dataclass(frozen=True)
class Values:
    """The values of one choice: `items`, or the whole numbers, or a grid of decimals, from `low` to `high`."""

    items: tuple[Value, ...] = ()
    low: int | float = 0
    high: int | float = 0
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __len__(self) -> int:
        return len(self.items) or (int(self.high) - int(self.low) + 1 if self.whole else GRID)

    def at(self, unit: float) -> Value:
        """The value at a number between 0 and 1, on a linear scale, or on a logarithmic scale with `log`."""
        if self.items:
            return self.items[int(unit * len(self.items))]
        if self.whole:
            ends = self.low, self.high + 1
            number = ends[0] * (ends[1] / ends[0]) ** unit if self.log else ends[0] + unit * (ends[1] - ends[0])
            return min(int(self.high), int(number))
        return self[int(unit * GRID)]

    def __iter__(self) -> Iterator[Value]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Value:
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self.items:
            return self.items[index]
        if self.whole:
            return int(self.low) + index
        step = index / (GRID - 1)
        number = self.low * (self.high / self.low) ** step if self.log else self.low + step * (self.high - self.low)
        return float(f"{number:.6g}")

    def place(self, value: Any) -> int | None:
        """The index of a value, or of the nearest grid point in a range of decimals; None if it is not a value."""
        if self.items or not is_number(value) or not self.low <= value <= self.high:
            return self.items.index(value) if value in self.items else None
        if self.whole:
            return value - int(self.low) if is_whole(value) else None
        ends = self.high / self.low if self.log else self.high - self.low
        return round((log(value / self.low, ends) if self.log else (value - self.low) / ends) * (GRID - 1))


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return is_whole(value) or (isinstance(value, float) and isfinite(value))


@dataclass(frozen=True)
class Alternative:
    """A replacement of a step: sections of a child design, and the bases in which it is valid."""

    change: Mapping[str, Any]
    bases: tuple[str, ...]


@dataclass(frozen=True)
class Space:
    """A checked space. `bases`: designs as data, by name. `alternatives`: by step and name.

    `moves`: the values of each option, by name. A proposal has at most `most` moves, each at most once.
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
        """The values of legs (`leg`) or settings (`setting`) that vary."""
        return self.legs if kind == "leg" else self.settings

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the space without name and about. A study belongs to one space."""
        parts = (self.bases, self.legs, self.settings, self.alternatives, self.moves, self.most, self.bounds)
        return sha256(json.dumps(parts, default=repr).encode()).hexdigest()


def with_alternative(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A design's data with an alternative merged into it, like a child under `extends`."""
    parent, child = Document(dict(base), "base"), Document(dict(change), "alternative")
    return {"name": base["name"], **merge(parent, child, Reporter(child)).data}


def fitting(space: Space, base: str) -> dict[str, list[str]]:
    """The names of the alternatives that are valid in a base, by step."""
    alternatives = space.alternatives.items()
    by_step = {
        step: [name for name, alternative in choices.items() if base in alternative.bases]
        for step, choices in alternatives
    }
    return {step: names for step, names in by_step.items() if names}


def ordered(space: Space, path: Path) -> Path:
    """A path in canonical order, so that equal choices give equal paths; the order of moves is kept."""
    tables = {"alternative": space.alternatives, "leg": space.legs, "setting": space.settings}

    def sort_key(choice: Choice) -> tuple[int, int]:
        names = list(tables.get(choice.kind, ()))
        return KINDS.index(choice.kind), names.index(choice.name) if choice.name in names else len(names)

    return tuple(sorted(path, key=sort_key))


def missing(space: Space, path: Path) -> list[tuple[str, str]]:
    """The (kind, name) of what varies in the base or an alternative of a path but is not chosen by the path."""
    chosen = {(choice.kind, choice.name) for choice in path}
    choices = of_kind(path, "alternative")
    alternatives = (space.alternatives.get(choice.name, {}).get(str(choice.value)) for choice in choices)
    contents = [
        space.bases[base_of(path)],
        *(alternative.change for alternative in alternatives if alternative is not None),
    ]
    vary = [
        (kind, name)
        for kind, section in SECTIONS.items()
        for name in space.numbers(kind)
        if any(name in (content.get(section) or ()) for content in contents)
    ]
    return [number for number in vary if number not in chosen]


def of_alternatives(space: Space, base: str) -> list[tuple[str, str]]:
    """The (kind, name) of what varies in an alternative of a base but not in the base."""
    choices = (Choice("alternative", step, name) for step, names in fitting(space, base).items() for name in names)
    path = (Choice("base", base), *choices)
    return [number for number in missing(space, path) if number not in missing(space, path[:1])]


@dataclass(frozen=True)
class Price:
    """The costs of a design at `n` queries and keys and a batch size.

    `macs`: multiply-adds of a forward call, as planned. `parameters`: trainable elements. `activations`: floats saved
    for the backward, as planned. `decoding_state`: floats of the decoding cache of one sequence of n tokens.
    """

    macs: int
    parameters: int
    activations: int
    decoding_state: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


COSTS = tuple(field.name for field in fields(Price))


def price(graph: Graph, n: int, batch: int = 1) -> Price:
    """The price of a graph. Raises InputError if n exceeds the maximum of a sequence leg."""
    report = compiler.cost_of(graph, n, n, batch)
    total = report.best.total
    state = report.decoding_state
    if state is None:  # without a cache, every step reads all inputs
        sizes = {leg.name: leg.size or n for leg in graph.legs}
        state = sum(
            prod(sizes[leg] for leg in tensor.legs) for tensor in graph.of_role("input") if tensor.default is None
        )
    return Price(total.macs, report.parameters, total.saved_floats, state)


@dataclass(frozen=True)
class Bounds:
    """Bounds (name, smallest, largest) on costs at n and batch; costs that are not in `limits` are unbounded."""

    n: int = 64
    batch: int = 1
    limits: tuple[tuple[str, float, float], ...] = ()

    def broken(self, design_price: Price) -> str | None:
        """The first bound that a price violates, such as `macs at most 1,000,000`; None if it violates none."""
        for name, least, most in self.limits:
            amount = getattr(design_price, name)
            if amount > most:
                return f"{name} at most {most:,.0f}"
            if amount < least:
                return f"{name} at least {least:,.0f}"
        return None


KINDS = ("base", "alternative", "leg", "setting", "move")  # in the order of choices in a path


@dataclass(frozen=True)
class Choice:
    """One choice: a base, an alternative of a step, the size of a leg, a setting, or a move at an attention map.

    `name`: the base, step, leg, setting or move. `value`: the alternative or number. `at`, `options`: the box of the
    map, and the options of a move.
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
    """A path as text, such as `mhsa; h = 4; share(g=2) at A`."""
    return "; ".join(map(str, path))


def of_kind(path: Path, kind: str) -> Path:
    return tuple(choice for choice in path if choice.kind == kind)


def base_of(path: Path) -> str:
    """The name of the base of a path. Raises InputError if the path has none."""
    bases = of_kind(path, "base")
    if not bases:
        raise InputError("a path needs a base, e.g. (Choice('base', 'mhsa'),).")
    return bases[0].name


def as_data(path: Path) -> list[dict[str, Any]]:
    """A path as data for JSON; `from_data` reads it back."""
    return [
        {"kind": c.kind, "name": c.name}
        | ({} if c.value is None else {"value": c.value})
        | ({"at": c.at, "options": dict(c.options)} if c.kind == "move" else {})
        for c in path
    ]


def from_data(data: Sequence[Mapping[str, Any]]) -> Path:
    """The path of the data of `as_data`."""
    return tuple(
        Choice(c["kind"], c["name"], c.get("value"), c.get("at", ""), tuple(c.get("options", {}).items())) for c in data
    )
