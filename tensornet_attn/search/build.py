"""From a path to a design with its price: choices are made in order, and those that have no place drop out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensornet_attn import compiler, limits
from tensornet_attn.errors import DesignError, InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.model import Box
from tensornet_attn.search.moves import MOVES
from tensornet_attn.search.sketch import Sketch, data_of, sketch_of
from tensornet_attn.search.space import (
    SECTIONS,
    Choice,
    Path,
    Price,
    Space,
    as_data,
    base_of,
    of_kind,
    ordered,
    price,
    to_text,
    with_alternative,
)
from tensornet_attn.search.wires import FIXED
from tensornet_attn.spec import Design


@dataclass(frozen=True)
class Proposal:
    """A design of a space: the path that leads to it, its canonical hash, and its price.

    `essence`: the hash of the design without legs of size 1. Two proposals of one essence are one design.
    """

    design: Design
    path: Path
    hash: str
    essence: str
    price: Price

    def as_dict(self) -> dict[str, Any]:
        names = {"path": to_text(self.path), "choices": as_data(self.path), "hash": self.hash, "essence": self.essence}
        return {**names, **self.price.as_dict(), "design": self.design.to_yaml()}


@dataclass(frozen=True)
class Refused:
    """Why a path gives nothing: the bound it breaks, and how far it is off, or what the checker said."""

    reason: str
    bound: bool = False
    cost: str = ""
    value: float = 0


def start(space: Space, choices: Path) -> tuple[Design | Refused, Path]:
    """The design after base, alternatives, legs and settings, and the choices that had a place."""
    choices = ordered(space, choices)
    base = next((choice for choice in choices if choice.kind == "base" and choice.name in space.bases), None)
    if base is None:
        return Refused("no base of this name"), ()
    data: dict[str, Any] = dict(space.bases[base.name])
    kept: list[Choice] = [base]
    for choice in of_kind(choices, "alternative"):
        found = space.alternatives.get(choice.name, {}).get(str(choice.value))
        if found is not None and base.name in found.bases:
            data = with_alternative(data, found.change)
            kept.append(choice)
    numbers = {kind: _fitting(data, section, of_kind(choices, kind)) for kind, section in SECTIONS.items()}
    kept += [*numbers["leg"], *numbers["setting"]]
    values = {kind: {choice.name: choice.value for choice in found} for kind, found in numbers.items()}
    try:
        return compiler.load(data, values["leg"], values["setting"]), tuple(kept)  # type: ignore[arg-type]
    except DesignError as error:
        return Refused(f"the checker: {error.problems[0].message}"), tuple(kept)


def _fitting(data: Mapping[str, Any], section: str, choices: Iterable[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice.name in data.get(section, {})]


def moved(space: Space, sketch: Sketch, choice: Choice) -> Sketch | None:
    """The sketch after a move of the space; None where it has no place."""
    if choice.name not in space.moves:
        return None
    return MOVES[choice.name](sketch, choice.at, dict(choice.options))


def finished(space: Space, design: Design, sketch: Sketch | None, path: Path) -> Proposal | Refused:
    """The proposal at the end of a path, within the space's bounds; `sketch` where moves have changed the design."""
    try:
        if sketch is not None:
            design = compiler.load(data_of(_titled(sketch, path)))
        graph = build(design)
        found = price(graph, space.bounds.n, space.bounds.batch)
    except DesignError as error:
        return Refused(f"the checker: {error.problems[0].message}")
    except InputError as error:
        return Refused(str(error))
    broken = space.bounds.broken(found)
    if broken is not None:
        cost = broken.split()[0]
        return Refused(broken, True, cost, getattr(found, cost))
    own = graph.hash
    return Proposal(design, path, own, essence(sketch or sketch_of(design), own), found)


def _titled(sketch: Sketch, path: Path) -> Sketch:
    """The sketch under a name and a sentence of its own."""
    moves = of_kind(path, "move")
    name = "_".join([base_of(path), *(move.name for move in moves)])[: limits.NAME_LENGTH]
    return replace(sketch, head={**sketch.head, "name": name, "about": f"{to_text(path)}."})


def built(space: Space, path: Path) -> Proposal | Refused:
    """The proposal of a path; choices that have no place drop out of its path."""
    design, kept = start(space, path)
    if isinstance(design, Refused):
        return design
    first = sketch_of(design)
    sketch, done = first, list(kept)
    for choice in of_kind(path, "move"):
        new = moved(space, sketch, choice) if len(of_kind(tuple(done), "move")) < space.most else None
        if new is not None and choice.name not in {other.name for other in done if other.kind == "move"}:
            sketch = new
            done.append(choice)
    return finished(space, design, sketch if sketch is not first else None, tuple(done))


KEPT = (*FIXED, "constants", "noise")  # what has the legs that its values were declared with


def essence(sketch: Sketch, own: str) -> str:
    """The canonical hash of a design without its legs of size 1; `own`, its own hash, where it has none to leave out.

    So grouped queries with one group are multi-query attention, and with one query a group multi-head attention.
    """
    gone = {leg for leg, size in sketch.sizes.items() if size == 1 and leg in sketch.declared}
    boxes = [step.op for step in sketch.step.values() if isinstance(step.op, Box)]
    acting = {leg for box in boxes for leg in (box.leg, box.other)}  # a box needs its leg
    fixed = {leg for made in sketch.tensors.values() if made.role in KEPT for leg in made.legs}
    if not gone or gone & (acting | fixed):
        return own
    less = sketch.copy()
    less.change_legs(lambda _, legs: tuple(leg for leg in legs if leg not in gone))
    try:
        return compiler.load(data_of(less)).hash
    except DesignError:  # an initialiser such as kron speaks of the leg
        return own
