"""The size of a space: how many designs, where they are few enough to be made; else how many paths at most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from tensornet_attn.search.build import Proposal, Refused, finished, moved, start
from tensornet_attn.search.path import Choice, Path, of_kind
from tensornet_attn.search.roles import maps
from tensornet_attn.search.sketch import Sketch, sketch_of
from tensornet_attn.search.space import Space, fitting
from tensornet_attn.search.values import Values
from tensornet_attn.spec import Design

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
        design, _ = start(space, (Choice("base", name),))
        most = max(most, len(maps(sketch_of(design))) if isinstance(design, Design) else 0)
    text = repr(space.alternatives)
    kernels = space.moves.get("split", {}).get("maps", Values(("",)))
    split = max(str(kernels[place]).count("+") + 1 for place in range(len(kernels))) if "split" in space.moves else 0
    return most + text.count("'softmax'") + text.count("'normalize'") + split


def every(space: Space) -> Iterator[Proposal]:
    """Every proposal of a space, equal designs once for each of their paths; for small spaces."""
    for path in _starts(space):
        design, kept = start(space, path)
        if isinstance(design, Refused) or kept != path:  # a choice without a place: the path without it comes as well
            continue
        first = sketch_of(design)
        for sketch, whole in _moved(space, first, kept):
            found = finished(space, design, sketch if sketch is not first else None, whole)
            if isinstance(found, Proposal):
                yield found


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


def _moved(space: Space, sketch: Sketch, path: Path) -> Iterator[tuple[Sketch, Path]]:
    """The sketch, and every sketch that moves lead to from it."""
    yield sketch, path
    used = {choice.name for choice in of_kind(path, "move")}
    for name in [name for name in space.moves if name not in used and len(used) < space.most]:
        grids = [[(option, values[i]) for i in range(len(values))] for option, values in space.moves[name].items()]
        for at, options in product(maps(sketch), product(*grids)):
            choice = Choice("move", name, at=at.box, options=options)
            new = moved(space, sketch, choice)
            if new is not None:
                yield from _moved(space, new, (*path, choice))
