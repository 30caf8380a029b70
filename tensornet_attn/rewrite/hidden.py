"""Replaces masked entries before they can produce NaN: a gradient would multiply an infinite entry by zero.

# D = exp(E);  A = keep over m of D, causal     ->     E' = E, 1 where masked;  D = exp(E');  A = keep over m of D

This applies to graphs that are evaluated or emitted; plans are made from graphs without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from tensornet_attn.graph.hidden import EVERYTHING, looks
from tensornet_attn.graph.model import Box, Function, Graph, Seen, Step, Use
from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.ops import OPS
from tensornet_attn.rewrite.change import fresh, terms_of, with_uses

_EXP = Function("exp")
_FACTOR, _OPERAND = 0, 1  # replacements of masked entries: all boxes and their derivatives are finite at 1
_POWER = -inf  # for exp, so that the result and its derivative are zero


def hiding(graph: Graph, shown: Iterable[str] = (), everywhere: bool = False, blocks: bool = False) -> Graph:
    """The graph with a box `hide` wherever masked entries could produce NaN.

    A box is inserted before maps that are infinite at some number, or have an infinite derivative; and before all maps
    and products of an input with query and key leg, whose entries may be infinite. `everywhere`: before all maps and
    products. `shown` names steps whose entries are all needed. `blocks`: the graph runs on blocks of queries and keys,
    whose entries beyond the last position are masked too, so that such maps get a box even if all entries are visible.
    """
    found = _Hiding(graph, looks(graph, shown), everywhere, blocks)
    for step in graph.steps:
        found.add(step)
    return replace(graph, steps=tuple(found.steps))


@dataclass
class _Hiding:
    """`doubtful` names tensors and steps with possibly infinite masked entries; `made` has the boxes so far."""

    graph: Graph
    looks: Mapping[str, tuple[Seen, ...]]
    everywhere: bool
    blocks: bool
    steps: list[Step] = field(default_factory=list)
    made: dict[tuple[Use, Seen, float], Use] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.doubtful = {tensor.name for tensor in self.graph.of_role("input") if self.pairs(tensor.legs)}

    def pairs(self, legs: Iterable[str]) -> bool:
        return self.graph.key is not None and {self.graph.query, self.graph.key} <= {*legs}

    def add(self, step: Step) -> None:
        """Adds a step, preceded by its boxes."""
        if step.fused is not None or self.graph.masked(step):
            self.steps.append(step)
            return
        harmful = self.harmful(step)
        power = step.box is not None and step.box.function == _EXP and not self.everywhere
        fill = _FACTOR if step.box is None else _POWER if power else _OPERAND
        new = []
        for use, look, harm in zip(step.op.uses, self.looks[step.name], harmful, strict=True):
            if use.name in self.doubtful and not harm:
                self.doubtful.add(step.name)
            new.append(self.hidden(step, use, look, fill) if harm else use)
        uses = iter(new)
        self.steps.append(with_uses(step, lambda use: next(uses)) if any(harmful) else step)

    def harmful(self, step: Step) -> list[bool]:
        """For each use, whether a possibly infinite entry would produce NaN."""
        if step.box is None:
            many = [len(term.factors) > 1 for term in terms_of(step) for _ in term.factors]
            return [more and self.infinite(use) for more, use in zip(many, step.op.uses, strict=True)]
        if not OPS[step.box.kind].multiplies:
            return [False] * len(step.op.uses)
        always = self.everywhere or not OPS[step.box.kind].finite(self.graph, step.box)
        return [always or self.infinite(use) for use in step.op.uses]

    def infinite(self, use: Use) -> bool:
        return self.pairs(use.legs) if self.everywhere else use.name in self.doubtful

    def hidden(self, step: Step, use: Use, look: Seen, fill: float) -> Use:
        """The replacement of a use of which `look` is visible."""
        if look == EVERYTHING and not (self.blocks and fill != _FACTOR and self.pairs(use.legs)):
            return use
        if (use, look, fill) not in self.made:
            taken = replace(self.graph, steps=(*self.graph.steps, *self.steps))
            box = Box("hide", self.graph.key, (("of", use),), (("fill", Number(fill)),), seen=look)
            self.steps.append(Step(fresh(taken, f"{step.name}.hidden"), box, use.legs))
            self.made[use, look, fill] = Use(self.steps[-1].name, use.legs)
        return self.made[use, look, fill]
