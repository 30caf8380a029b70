"""A look into a space: how many designs it holds, samples with their costs, as text, JSON, and a page with pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from statistics import median
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.report.page import Table, page
from tensornet_attn.report.words import column
from tensornet_attn.search.build import Proposal, Walk, start
from tensornet_attn.search.propose import propose
from tensornet_attn.search.roles import maps
from tensornet_attn.search.space import COSTS, Choice, Path, Space, fitting, to_text
from tensornet_attn.search.values import Values

TIRED = 24  # proposals that are known already, one after the other, until no more are asked for


@dataclass(frozen=True)
class Survey:
    """What a space holds: its size, and different proposals of one seed."""

    space: Space
    size: Size
    samples: tuple[Proposal, ...]

    def ranges(self) -> dict[str, tuple[int, float, int]]:
        """The least, median and greatest of each cost among the samples."""
        found = {cost: [getattr(sample.price, cost) for sample in self.samples] for cost in COSTS}
        return {cost: (min(values), median(values), max(values)) for cost, values in found.items()}

    def as_dict(self) -> dict[str, Any]:
        bounds = self.space.bounds
        return {
            "space": self.space.name,
            "hash": self.space.hash,
            "size": self.size.count,
            "exact": self.size.exact,
            "n": bounds.n,
            "batch": bounds.batch,
            "ranges": {c: dict(zip(("least", "median", "most"), r, strict=True)) for c, r in self.ranges().items()},
            "samples": [sample.as_dict() for sample in self.samples],
        }

    def to_text(self) -> str:
        """What people read."""
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = (
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        )
        paths = (f"  {to_text(sample.path)}" for sample in self.samples)
        return "\n".join([*self._lines(), "", *table, "", f"{len(self.samples)} samples:", *paths])

    def _lines(self) -> Iterator[str]:
        space = self.space
        about = f": {space.about}" if space.about else ""
        yield f"{space.name}{about}"
        yield f"bases: {', '.join(space.bases)}"
        varies = [*space.legs, *space.settings, *space.alternatives]
        yield f"varies: {', '.join(varies) or 'nothing'}"
        moves = f"{', '.join(space.moves)}; at most {space.most} of them" if space.moves else "none"
        yield f"moves: {moves}"
        yield f"size: {self.size.to_text()}"
        yield f"costs at n = {space.bounds.n}, batch {space.bounds.batch}, of the samples below"

    def _rows(self) -> list[list[str]]:
        """The costs of the samples and the bounds, under their names."""
        ends = zip(("least", "median", "most"), zip(*self.ranges().values(), strict=True), strict=True)
        rows = [[word, *(f"{value:,.0f}" for value in values)] for word, values in ends]
        return [["", *map(column, COSTS)], *rows, ["bounds", *self._bounds()]]

    def _bounds(self) -> Iterator[str]:
        limits = {name: (least, most) for name, least, most in self.space.bounds.limits}
        for cost in COSTS:
            least, most = limits.get(cost, (0, float("inf")))
            words = [
                f"{word} {end:,.0f}"
                for word, end, free in ((">=", least, 0), ("<=", most, float("inf")))
                if end != free
            ]
            yield " ".join(words) or "free"

    def to_html(self) -> str:
        """A page of HTML in one file, with a picture of each sample where Graphviz is there."""
        header, *rows = self._rows()
        costs = Table(header, rows, "Costs of the samples.")
        lines, samples = list(self._lines()), self.samples
        return page(
            "space.html", self.space.name, lines=lines, costs=costs, samples=samples, to_text=to_text, COSTS=COSTS
        )


def survey(space: Space, samples: int = 12, seed: int = 0) -> Survey:
    """Looks into a space. Raises InputError where no proposal of it is valid and within bounds."""
    if samples < 1:
        raise InputError(f"'samples' is a whole number from 1, {samples} given.")
    found: dict[str, Proposal] = {}
    number = known = 0
    while len(found) < samples and known < TIRED:
        proposal = propose(space, seed, number)
        known = known + 1 if proposal.essence in found else 0
        found.setdefault(proposal.essence, proposal)
        number += 1
    size = size_of(space)
    if size.exact and len(found) < min(samples, size.count):  # what is drawn seldom
        for proposal in every(space):
            found.setdefault(proposal.essence, proposal)
    return Survey(space, size, tuple(found.values())[:samples])


FEW = 200  # paths that are walked one by one


@dataclass(frozen=True)
class Size:
    """`count` designs that differ and keep to the bounds, where `exact`; else paths at most, equal designs included."""

    count: int
    exact: bool

    def to_text(self) -> str:
        if self.exact:
            noun = f"design{'s' * (self.count != 1)}"
            return f"{self.count:,} {noun}, counted one by one: valid, within bounds, all different"
        few = f"{self.count:,}" if self.count < 10**12 else f"{self.count:.3g}"
        return f"at most {few} designs: a bound that counts paths, those without a place and equal ones too"


def size_of(space: Space) -> Size:
    """The size of a space."""
    most = paths_at_most(space)
    if most > FEW:
        return Size(most, exact=False)
    return Size(len({proposal.essence for proposal in every(space)}), exact=True)


def paths_at_most(space: Space) -> int:
    """No fewer than the paths of the space: what varies in each base, and moves in every order at every map."""
    places = _maps_at_most(space)
    options = [places * prod(len(values) for values in given.values()) for given in space.moves.values()]
    ordered = [1] + [0] * space.most  # by how many moves there are
    for count in options:
        for used in range(space.most, 0, -1):
            ordered[used] += ordered[used - 1] * count * used
    return sum(_openings(space, base) for base in space.bases) * sum(ordered)


def _openings(space: Space, base: str) -> int:
    data = space.bases[base]
    alternatives = (1 + len(given) for step, given in fitting(space, base).items())
    numbers = (
        len(v) for part in ("legs", "settings") for n, v in getattr(space, part).items() if n in data.get(part, {})
    )
    return prod(alternatives) * prod(numbers)


def _maps_at_most(space: Space) -> int:
    """Maps of the base with the most, those that alternatives may add, and those that a split makes."""
    most = 0
    for name in space.bases:
        walk = start(space, (Choice("base", name),))
        most = max(most, len(maps(walk.sketch)) if isinstance(walk, Walk) else 0)
    text = repr(space.alternatives)
    kernels = space.moves.get("split", {}).get("maps", Values(("",)))
    split = max(str(kernels[place]).count("+") + 1 for place in range(len(kernels))) if "split" in space.moves else 0
    return most + text.count("'softmax'") + text.count("'normalize'") + split


def every(space: Space) -> Iterator[Proposal]:
    """Every proposal of a space, equal designs once for each of their paths; for small spaces."""
    for path in _starts(space):
        walk = start(space, path)
        if isinstance(walk, Walk) and walk.path == path:  # a choice without a place: the path without it comes as well
            yield from (found for way in _moved(walk) if isinstance(found := way.end(), Proposal))


def _starts(space: Space) -> Iterator[Path]:
    for base, data in space.bases.items():
        choices: list[list[Choice | None]] = [
            [None, *(Choice("alternative", step, name) for name in given)]
            for step, given in fitting(space, base).items()
        ]
        for kind, part in (("leg", "legs"), ("setting", "settings")):
            numbers = [(n, v) for n, v in space.numbers(kind).items() if n in data.get(part, {})]
            choices += [[Choice(kind, n, values[place]) for place in range(len(values))] for n, values in numbers]
        for chosen in product(*choices):
            yield (Choice("base", base), *(choice for choice in chosen if choice is not None))


def _moved(walk: Walk) -> Iterator[Walk]:
    """A way, and all those that moves lead to from it."""
    yield walk
    for name, given in walk.space.moves.items():
        grids = [[(option, values[i]) for i in range(len(values))] for option, values in given.items()]
        for at, options in product(maps(walk.sketch), product(*grids)):
            new = walk.after(Choice("move", name, at=at.box, options=options))
            if new is not None:
                yield from _moved(new)
