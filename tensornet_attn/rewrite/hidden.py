"""Hidden entries are replaced before they do harm: in a gradient an infinite one would be multiplied by zero.

# D = exp(E);  A = keep over m of D, causal     ->     E' = E, 1 where hidden;  D = exp(E');  A = keep over m of D

Done to what is evaluated or emitted: plans are made of diagrams without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from tensornet_attn.graph.boxes import finite
from tensornet_attn.graph.hidden import EVERYTHING, looks
from tensornet_attn.graph.model import Box, Function, Graph, Seen, Step, Use
from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.ops import OPS
from tensornet_attn.rewrite.change import fresh, terms_of, with_uses

_EXP = Function("exp")
_FACTOR, _OPERAND = 0, 1  # what stands for hidden entries: at 1 every box is a number, and its derivative too
_POWER = -inf  # of exp, which is zero then, and its derivative too


def hiding(graph: Graph, shown: Iterable[str] = (), everywhere: bool = False, blocks: bool = False) -> Graph:
    """The graph with a box `hide` wherever hidden entries could do harm.

    That is before maps that are infinite somewhere, or whose derivative is; and, of an input with query and key leg,
    whose entries may be infinite themselves, before any map or product. `everywhere`: before all maps and products.
    `shown`: steps of which every entry is wanted. `blocks`: of queries and keys, whose entries beyond the last ones are
    hidden too: before such maps there is a box even where everything is seen.
    """
    found = _Hiding(graph, looks(graph, shown), everywhere, blocks)
    for step in graph.steps:
        found.add(step)
    return replace(graph, steps=tuple(found.steps))


@dataclass
class _Hiding:
    """`doubtful`: tensors and steps that may be infinite where they are hidden. `made`: the boxes so far."""

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
        """Adds a step, and what has to stand before it."""
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
        """Of each use whether an infinite entry would do harm, and there may be one."""
        if step.box is None:
            many = [len(term.factors) > 1 for term in terms_of(step) for _ in term.factors]
            return [more and self.infinite(use) for more, use in zip(many, step.op.uses, strict=True)]
        if not OPS[step.box.kind].multiplies:
            return [False] * len(step.op.uses)
        always = self.everywhere or not finite(self.graph, step.box)
        return [always or self.infinite(use) for use in step.op.uses]

    def infinite(self, use: Use) -> bool:
        return self.pairs(use.legs) if self.everywhere else use.name in self.doubtful

    def hidden(self, step: Step, use: Use, look: Seen, fill: float) -> Use:
        """What a step reads in place of a use of which it sees this much."""
        if look == EVERYTHING and not (self.blocks and fill != _FACTOR and self.pairs(use.legs)):
            return use
        if (use, look, fill) not in self.made:
            taken = replace(self.graph, steps=(*self.graph.steps, *self.steps))
            box = Box("hide", self.graph.key, (("of", use),), (("fill", Number(fill)),), seen=look)
            self.steps.append(Step(fresh(taken, f"{step.name}.hidden"), box, use.legs))
            self.made[use, look, fill] = Use(self.steps[-1].name, use.legs)
        return self.made[use, look, fill]
