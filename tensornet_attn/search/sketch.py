"""A design taken apart, for moves to change: declarations as written, steps as the graph has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tensornet_attn.graph import build
from tensornet_attn.graph.model import Box, Contraction, Function, Step, Term, Use
from tensornet_attn.spec import Design
from tensornet_attn.spec.arithmetic import ONE, Arith, evaluate, parse

ROLES = ("inputs", "weights", "constants", "noise", "state")
Number = int | float | str


@dataclass(frozen=True)
class Declared:
    """A tensor as a design declares it: its section, its legs, and what else the declaration says."""

    role: str
    legs: tuple[str, ...]
    rest: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Sketch:
    """A design under change. `head` holds what stands outside the sections: name, about, causal.

    `declared` and `settings` are the texts of legs and settings; `sizes` what they come out as (None: at run time).
    `losses`: the step and the text of the weight of each, by name.
    """

    head: Mapping[str, Any]
    declared: Mapping[str, Number]
    settings: Mapping[str, Number]
    sizes: Mapping[str, int | float | None]
    tensors: Mapping[str, Declared]
    steps: tuple[Step, ...]
    output: str
    losses: Mapping[str, tuple[str, Number]]

    @cached_property
    def step(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}

    @cached_property
    def query(self) -> str | None:
        return self._sequence("query")

    @cached_property
    def key(self) -> str | None:
        return self._sequence("key")

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """The steps that use each tensor or step, in order."""
        found: dict[str, list[str]] = {}
        for step in self.steps:
            for name in dict.fromkeys(use.name for use in step.op.uses):
                found.setdefault(name, []).append(step.name)
        return {name: tuple(steps) for name, steps in found.items()}

    def _sequence(self, kind: str) -> str | None:
        return next((name for name, text in self.declared.items() if str(text).split()[:1] == [kind]), None)

    def legs_of(self, name: str) -> tuple[str, ...]:
        return (self.tensors.get(name) or self.step[name]).legs

    def is_head(self, leg: str) -> bool:
        return str(self.declared[leg]).split()[0] == "head"

    def size(self, legs: str | Iterable[str]) -> int:
        """The product of the sizes of legs; 0 where one is known at run time only."""
        total = 1
        for leg in (legs,) if isinstance(legs, str) else legs:
            total *= int(self.sizes[leg] or 0)
        return total

    def new_leg(self, wanted: str, text: Number) -> tuple[Sketch, str]:
        """A sketch with one more leg, and the name it got. `text` is what a file would say: `4`, `head h / g`."""
        name = self.free(wanted, {*self.declared, *self.settings})
        number = str(text).removeprefix("head ")
        sizes = {**self.sizes, name: evaluate(parse(number), {k: v for k, v in self.sizes.items() if v is not None})}
        return replace(self, declared={**self.declared, name: text}, sizes=sizes), name

    def new_setting(self, wanted: str, value: int) -> tuple[Sketch, str]:
        name = self.free(wanted, {*self.declared, *self.settings})
        return replace(self, settings={**self.settings, name: value}, sizes={**self.sizes, name: value}), name

    def new_weight(self, wanted: str, legs: Iterable[str], init: str | None = None) -> tuple[Sketch, Use]:
        """A sketch with one more weight, and its use under the legs declared."""
        name = self.name(wanted)
        rest = () if init is None else (("init", init),)
        made = Declared("weights", tuple(legs), rest)
        return replace(self, tensors={**self.tensors, name: made}), Use(name, made.legs)

    def new_step(self, wanted: str, op: Contraction | Box, legs: Iterable[str], before: str) -> tuple[Sketch, Use]:
        """A sketch with one more step right before another, and its use."""
        step = Step(self.name(wanted), op, tuple(legs))
        place = next(i for i, other in enumerate(self.steps) if other.name == before)
        return replace(self, steps=(*self.steps[:place], step, *self.steps[place:])), Use(step.name, step.legs)

    def with_step(self, step: Step) -> Sketch:
        """The sketch with a step in place of the one of its name."""
        return replace(self, steps=tuple(step if other.name == step.name else other for other in self.steps))

    def with_tensor(self, name: str, made: Declared) -> Sketch:
        return replace(self, tensors={**self.tensors, name: made})

    def name(self, wanted: str) -> str:
        """The name that a new tensor or step would get; `far.of` is nested in a step `far` that is yet to come."""
        return self.free(wanted, {*self.tensors, *self.step})

    @staticmethod
    def free(wanted: str, taken: set[str]) -> str:
        """The name wanted, with the first number from 2 that makes it a new one."""
        if wanted not in taken:
            return wanted
        return next(f"{wanted}{count}" for count in range(2, len(taken) + 3) if f"{wanted}{count}" not in taken)


def sketch_of(design: Design) -> Sketch:
    """The sketch of a design. Raises DesignError where the design has errors."""
    graph, data = build(design), design.as_dict()
    tensors = {
        name: Declared(role, graph.tensor[name].legs, tuple((k, v) for k, v in made.items() if k != "legs"))
        for role in ROLES
        for name, made in data.get(role, {}).items()
    }
    head = {key: data[key] for key in ("name", "about", "causal") if data.get(key) is not None}
    sizes = {**dict(graph.settings), **{leg.name: leg.size for leg in graph.legs}}
    losses = {name: (made.get("step", name), made["weight"]) for name, made in data.get("losses", {}).items()}
    return Sketch(head, data["legs"], data.get("settings", {}), sizes, tensors, graph.steps, graph.output, losses)


def product(*factors: Use, times: Arith = ONE) -> Contraction:
    """The contraction of one term."""
    return Contraction((Term(times, factors),))


def mapped(function: str, use: Use) -> Box:
    """A map box around a use."""
    return Box("map", None, (("of", use),), function=Function(function))
