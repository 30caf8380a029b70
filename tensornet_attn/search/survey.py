"""Surveys of a space: its size, and samples with their costs, as text, JSON, or a page with pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from statistics import median
from typing import Any

from tensornet_attn.cost.sizes import columns
from tensornet_attn.errors import InputError
from tensornet_attn.report.page import Table, page
from tensornet_attn.report.words import column, counted
from tensornet_attn.search.build import Proposal, Walk, start
from tensornet_attn.search.propose import propose
from tensornet_attn.search.roles import maps
from tensornet_attn.search.space import COSTS, Choice, Space, fitting, missing, of_alternatives, to_text

TIRED = 24  # known proposals in a row after which sampling ends


@dataclass(frozen=True)
class Survey:
    """A survey of a space: its size, and different proposals."""

    space: Space
    size: Size
    samples: tuple[Proposal, ...]

    def ranges(self) -> dict[str, tuple[int, float, int]]:
        """The smallest, median and largest value of each cost among the samples."""
        by_cost = {cost: [getattr(sample.price, cost) for sample in self.samples] for cost in COSTS}
        return {cost: (min(values), median(values), max(values)) for cost, values in by_cost.items()}

    def as_dict(self) -> dict[str, Any]:
        bounds = self.space.bounds
        return {
            "space": self.space.name,
            "hash": self.space.hash,
            "size": self.size.count,
            "exact": self.size.exact,
            "n": bounds.n,
            "batch": bounds.batch,
            "ranges": {
                cost: dict(zip(("least", "median", "most"), values, strict=True))
                for cost, values in self.ranges().items()
            },
            "samples": [sample.as_dict() for sample in self.samples],
        }

    def to_text(self) -> str:
        """The survey as text."""
        paths = (f"  {to_text(sample.path)}" for sample in self.samples)
        return "\n".join([*self._lines(), "", *columns(self._rows()), "", f"{len(self.samples)} samples:", *paths])

    def _lines(self) -> list[str]:
        space = self.space
        varies = [*space.legs, *space.settings, *space.alternatives]
        moves = f"{', '.join(space.moves)}; at most {space.most} of them" if space.moves else "none"
        return [
            f"{space.name}{f': {space.about}' if space.about else ''}",
            f"bases: {', '.join(space.bases)}",
            f"varies: {', '.join(varies) or 'nothing'}",
            f"moves: {moves}",
            f"size: {self.size.to_text()}",
            f"costs at n = {space.bounds.n}, batch {space.bounds.batch}, of the samples below",
        ]

    def _rows(self) -> list[list[str]]:
        """The table of costs of the samples, with a header and the bounds."""
        ends = zip(("least", "median", "most"), zip(*self.ranges().values(), strict=True), strict=True)
        rows = [[word, *(f"{number:,.0f}" for number in values)] for word, values in ends]
        bounds, limits = ["bounds"], {name: ends for name, *ends in self.space.bounds.limits}
        for least, most in (limits.get(cost, (0, inf)) for cost in COSTS):
            words = [f">= {least:,.0f}"] * (least != 0) + [f"<= {most:,.0f}"] * (most != inf)
            bounds.append(" ".join(words) or "none")
        return [["", *map(column, COSTS)], *rows, bounds]

    def to_html(self) -> str:
        """A self-contained HTML page, with a picture of each sample if Graphviz is installed."""
        header, *rows = self._rows()
        costs = Table(header, rows, "Costs of the samples.")
        lines, samples = self._lines(), self.samples
        return page(
            "space.html", self.space.name, lines=lines, costs=costs, samples=samples, to_text=to_text, COSTS=COSTS
        )


def survey(space: Space, samples: int = 12, seed: int = 0) -> Survey:
    """Surveys a space. Raises InputError if it has no valid design within bounds."""
    if samples < 1:
        raise InputError(f"'samples' must be a whole number from 1, got {samples}.")
    unique: dict[str, Proposal] = {}
    number = repeats = 0
    while len(unique) < samples and repeats < TIRED:
        proposal = propose(space, seed, number)
        repeats = repeats + 1 if proposal.essence in unique else 0
        unique.setdefault(proposal.essence, proposal)
        number += 1
    size = size_of(space)
    if size.exact and len(unique) < min(samples, size.count):  # adds designs that are rarely drawn
        for proposal in every(space):
            unique.setdefault(proposal.essence, proposal)
    return Survey(space, size, tuple(unique.values())[:samples])


FEW = 200  # maximum number of paths for enumeration


@dataclass(frozen=True)
class Size:
    """The number of different designs within bounds if `exact`, otherwise an upper bound that counts paths."""

    count: int
    exact: bool

    def to_text(self) -> str:
        if self.exact:
            return f"{counted(self.count, 'design')}, enumerated: valid, within bounds, all different"
        few = f"{self.count:,}" if self.count < 10**12 else f"{self.count:.3g}"
        return f"at most {few} designs: the number of paths, including invalid and equivalent ones"


def size_of(space: Space) -> Size:
    """The size of a space."""
    paths = paths_at_most(space)
    if paths > FEW:
        return Size(paths, exact=False)
    return Size(len({proposal.essence for proposal in every(space)}), exact=True)


def paths_at_most(space: Space) -> int:
    """An upper bound on the number of paths: the choices of each base, and moves in every order at every map."""
    map_count = _maps_at_most(space)
    options = [
        map_count * prod(len(values) for values in move_options.values()) for move_options in space.moves.values()
    ]
    ordered = [1] + [0] * space.most  # by number of moves
    for count in options:
        for used in range(space.most, 0, -1):
            ordered[used] += ordered[used - 1] * count * used
    openings = 0
    for base in space.bases:
        alternatives = (1 + len(names) for names in fitting(space, base).values())
        numbers = (len(space.numbers(kind)[name]) for kind, name in missing(space, (Choice("base", base),)))
        others = (1 + len(space.numbers(kind)[name]) for kind, name in of_alternatives(space, base))
        openings += prod(alternatives) * prod(numbers) * prod(others)
    return openings * sum(ordered)


def _maps_at_most(space: Space) -> int:
    """An upper bound on the number of maps: of any base, plus those that alternatives and a split can add."""
    walks = [start(space, (Choice("base", name),)) for name in space.bases]
    base_maps = max(len(maps(walk.sketch)) if isinstance(walk, Walk) else 0 for walk in walks)
    printed, kernels = repr(space.alternatives), space.moves.get("split", {}).get("maps", ())
    split = max((str(names).count("+") + 1 for names in kernels), default=0)
    return base_maps + printed.count("'softmax'") + printed.count("'normalize'") + split


def every(space: Space) -> Iterator[Proposal]:
    """All proposals of a small space; equal designs appear once for each of their paths."""
    for name in space.bases:
        base = Choice("base", name)
        choices: list[list[Choice | None]] = [
            [None, *(Choice("alternative", step, alternative) for alternative in names)]
            for step, names in fitting(space, name).items()
        ]
        for kind, number in missing(space, (base,)):
            choices.append([Choice(kind, number, value) for value in space.numbers(kind)[number]])
        for kind, number in of_alternatives(space, name):
            choices.append([None, *(Choice(kind, number, value) for value in space.numbers(kind)[number])])
        for chosen in product(*choices):
            path = (base, *(choice for choice in chosen if choice is not None))
            walk = start(space, path)
            if isinstance(walk, Walk) and walk.path == path:  # otherwise a choice does not apply, and is redundant
                yield from (proposal for moved in _moved(walk) if isinstance(proposal := moved.end(), Proposal))


def _moved(walk: Walk) -> Iterator[Walk]:
    """A walk, and all walks that moves lead to from it."""
    yield walk
    for name, move_options in walk.space.moves.items():
        grids = [[(option, value) for value in values] for option, values in move_options.items()]
        for at, options in product(maps(walk.sketch), product(*grids)):
            new = walk.after(Choice("move", name, at=at.box, options=options))
            if new is not None:
                yield from _moved(new)
