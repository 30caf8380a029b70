"""Builds the design of a path and prices it: choices apply in order, and those that do not apply are dropped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tensornet_attn import compiler, limits
from tensornet_attn.errors import DesignError, InputError
from tensornet_attn.graph import build
from tensornet_attn.ir.steps import without
from tensornet_attn.search.moves import MOVES
from tensornet_attn.search.sketch import FIXED, Sketch, data_of, sketch_of
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
from tensornet_attn.spec import Design


@dataclass(frozen=True)
class Proposal:
    """A design of a space, with its path, canonical hash, and price.

    `essence`: the hash of the design without legs of size 1. Proposals with the same essence are the same design.
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
    """The reason why a path has no proposal: a violated bound with the cost and its value, or the checker's message."""

    reason: str
    bound: bool = False
    cost: str = ""
    value: float = 0


@dataclass(frozen=True)
class Walk:
    """A partial path: the choices that apply, and the resulting design and sketch."""

    space: Space
    design: Design
    sketch: Sketch
    path: Path

    def after(self, choice: Choice) -> Walk | None:
        """The walk after another move; None if the move does not apply, is not in the space, or is in the path."""
        applied = {move.name for move in of_kind(self.path, "move")}
        if choice.name not in self.space.moves.keys() - applied or len(applied) >= self.space.most:
            return None
        new = MOVES[choice.name](self.sketch, choice.at, dict(choice.options))
        return None if new is None else replace(self, sketch=new, path=(*self.path, choice))

    def end(self) -> Proposal | Refused:
        """The proposal of the walk, or the reason why it is refused."""
        design, bounds = self.design, self.space.bounds
        try:
            moves = of_kind(self.path, "move")
            if moves:
                name = "_".join([base_of(self.path), *(move.name for move in moves)])[: limits.NAME_LENGTH]
                titled = {**self.sketch.head, "name": name, "about": f"{to_text(self.path)}."}
                design = compiler.load(data_of(replace(self.sketch, head=titled)))
            graph = build(design)
            priced = price(graph, bounds.n, bounds.batch)
        except DesignError as error:
            return Refused(f"the checker: {error.problems[0].message}")
        except InputError as error:
            return Refused(str(error))
        broken = bounds.broken(priced)
        if broken is not None:
            cost = broken.split()[0]
            return Refused(broken, True, cost, getattr(priced, cost))
        return Proposal(design, self.path, graph.hash, essence(self.sketch, graph.hash), priced)


def start(space: Space, choices: Path) -> Walk | Refused:
    """The walk after base, alternatives, legs and settings; choices that do not apply and moves are dropped."""
    choices = ordered(space, choices)
    base = next((choice for choice in of_kind(choices, "base") if choice.name in space.bases), None)
    if base is None:
        return Refused("the space has no base of this name")
    content: dict[str, Any] = dict(space.bases[base.name])
    kept: list[Choice] = [base]
    for choice in of_kind(choices, "alternative"):
        alternative = space.alternatives.get(choice.name, {}).get(str(choice.value))
        if alternative is not None and base.name in alternative.bases:
            content = with_alternative(content, alternative.change)
            kept.append(choice)
    numbers = [
        choice
        for kind, section in SECTIONS.items()
        for choice in of_kind(choices, kind)
        if choice.name in content.get(section, {})
    ]
    legs, settings = ({choice.name: choice.value for choice in of_kind(tuple(numbers), kind)} for kind in SECTIONS)
    try:
        design = compiler.load(content, legs, settings)  # type: ignore[arg-type]
        return Walk(space, design, sketch_of(design), (*kept, *numbers))
    except DesignError as error:
        return Refused(f"the checker: {error.problems[0].message}")


def walked(space: Space, path: Path) -> Walk | Refused:
    """The walk along a path, without choices that do not apply."""
    walk = start(space, path)
    for choice in of_kind(path, "move"):
        walk = walk if isinstance(walk, Refused) else walk.after(choice) or walk
    return walk


def built(space: Space, path: Path) -> Proposal | Refused:
    """The proposal of a path, without choices that do not apply."""
    walk = walked(space, path)
    return walk if isinstance(walk, Refused) else walk.end()


KEPT = (*FIXED, "constants", "noise")  # tensors whose legs cannot change


def essence(sketch: Sketch, own_hash: str) -> str:
    """The canonical hash of a design without its legs of size 1; `own_hash`, its hash, if no leg can be left out.

    For example, grouped-query attention with one group is multi-query attention.
    """
    unit_legs = {leg for leg, size in sketch.sizes.items() if size == 1 and leg in sketch.declared}
    boxes = [step.box for step in sketch.step.values() if step.box is not None]
    acting = {leg for box in boxes for leg in box.acting}  # legs that a box acts along
    fixed = {leg for declared in sketch.tensors.values() if declared.role in KEPT for leg in declared.legs}
    if not unit_legs or unit_legs & (acting | fixed):
        return own_hash
    reduced = sketch.copy()
    reduced.change_legs(lambda _, legs: without(legs, *unit_legs))
    try:
        return compiler.load(data_of(reduced)).hash
    except DesignError:  # e.g. an initialiser refers to the leg
        return own_hash
