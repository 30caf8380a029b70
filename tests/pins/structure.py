"""A plan as lines that renames do not touch: legs and tensors of the diagram by name, all else by the place it has.

    1[n h d] = x[n f] Wq[f h d]
    4[h n d] = attention over m, scores h n m, scale 0.125: 1[n h d] 2[m h d] 3[m h d]
    5[h n d] = blockwise (32): 1[n h d] 2[m h d] 3[m h d]
      5.1[h n m] = 1[n h d] 2[m h d]
      ...

Numbers are those of steps in the order in which they run; `5.1` is the first step inside of step 5. In brackets are the
numbers in what is said of the choice: rows of a block, tiles of a program. `new1` is a leg or tensor that the diagram
does not have. A coefficient is its value where it has one.

All that is known here about how the package writes a plan stands in this module. `WORDS` is the one place where a
renamed kind is to be entered: what the package calls it on the left, what the pins call it on the right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tensornet_attn.compiler import plan_of
from tensornet_attn.cost.price import PlanPrice, price_of
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.target import target_from
from tensornet_attn.cost.work import saved
from tensornet_attn.errors import DesignError
from tensornet_attn.graph.graph import Box, Contraction, Function, Kernel, Step, Use
from tensornet_attn.graph.pairs import BATCH, split_products
from tensornet_attn.ir.arithmetic import Arith, evaluate, names, to_text
from tensornet_attn.plan.plan import Plan
from tensornet_attn.rewrite.fused import FusedAttention
from tests.shipped import graph_of

WORDS = {
    "rows": "blockwise",
    "tiles": "tiles",
    "linear": "linear",
    "sums": "cumsum",
    "band": "band",
    "states": "states",
    "experts": "experts",
    "join": "join",
    "part": "part",
}
WORKLOADS = ("training", "prefill", "decoding")
BACKENDS = ("torch", "inductor", "triton")


@cache
def plan(design: str, backend: str, workload: str, causal: bool) -> Plan:
    """The plan of a shipped design on the generic device, which no calibration changes. Each step has its own name."""
    made = plan_of(graph_of(design, causal), backend, target_from(workload=workload, device_costs="generic"))
    assert len(made.schedule.step) == len(made.schedule.steps)
    return made


def plan_lines(made: Plan) -> tuple[str, ...]:
    """The steps of a plan."""
    return tuple(_Writer(made).lines())


def elsewhere(made: Plan) -> str:
    """The steps that run on another backend than the plan's own, as `; torch: 1 2 5`; empty where there is none."""
    found: dict[str, list[str]] = {}
    for i, step in enumerate(made.schedule.steps, 1):
        backend = made.backends.get(made.region_of(step.name), made.backend)
        if backend != made.backend:
            found.setdefault(backend, []).append(str(i))
    return "".join(f"; {backend}: {' '.join(steps)}" for backend, steps in found.items())


def saved_line(made: Plan) -> str:
    """What the backward of a plan needs: results and operands by name, and the elements that are kept besides."""
    writer, sizes = _Writer(made), made.target.sizes(made.graph)
    known = {leg.name: leg.size for leg in made.schedule.legs if leg.size is not None}
    schedule = split_products(made.schedule)
    scene = SizedGraph(schedule, known | {leg: size for leg, size in sizes.items() if leg != BATCH}, made.target.batch)
    kept: dict[str, int] = {}
    for step in schedule.steps:
        kept |= saved(scene, step)
    whole = [writer.called[name] for name in kept if name in writer.called]
    more = [elements for name, elements in kept.items() if name not in writer.called]
    return " ".join([*sorted(whole, key=_by_number), *(f"+{elements}" for elements in sorted(more))])


def price(made: Plan) -> PlanPrice:
    """Predicted seconds and peak of bytes."""
    return price_of(made.schedule, made.target.sizes(made.graph), made.target)


def _by_number(name: str) -> tuple[bool, int, str]:
    return (not name.isdigit(), int(name) if name.isdigit() else 0, name)


class _Writer:
    """Writes the steps of one plan; `called`: what tensors and steps are called in the pins."""

    def __init__(self, made: Plan):
        self.plan, self.graph = made, made.schedule
        own = made.graph
        tensors = [t.name for t in self.graph.tensors if t.name not in own.tensor]
        legs = [leg.name for leg in self.graph.legs if leg.name not in own.leg]
        self.called = {t.name: t.name for t in own.tensors} | _new(tensors) | _new(legs)
        self.called |= {step.name: str(i) for i, step in enumerate(self.graph.steps, 1)}
        self.legs = {leg.name: leg.name for leg in own.legs} | _new(legs)

    def lines(self) -> list[str]:
        new = [f"{self.legs[leg.name]} {leg.size}" for leg in self.graph.legs if leg.name not in self.plan.graph.leg]
        found = [f"legs {', '.join(new)}"] if new else []
        for step in self.graph.steps:
            found += self.step(step, self.called, "", self.remark(step))
        return found

    def step(self, step: Step, called: dict[str, str], indent: str, remark: str = "") -> Iterator[str]:
        text = self.operation(step, called, remark)
        yield f"{indent}{called[step.name]}{self.on(step.legs)} = {text}"
        if isinstance(step.op, Kernel) and not isinstance(step.form, FusedAttention):
            own = {part.name: f"{called[step.name]}.{i}" for i, part in enumerate(step.op.body, 1)}
            for part in step.op.body:
                yield from self.step(part, called | own, indent + "  ")

    def remark(self, step: Step) -> str:
        """The numbers of what was chosen for a fused operation."""
        if not isinstance(step.op, Kernel):
            return ""
        name = self.plan.region_of(step.name)
        chosen = " ".join(region.chosen for region in self.plan.regions if region.name == name)
        numbers = re.findall(r"(?<![\w'])\d+\b", chosen)  # no names, such as 'W2'
        return f" ({' '.join(numbers)})" if numbers else ""

    def operation(self, step: Step, called: dict[str, str], remark: str) -> str:
        op = step.form if isinstance(step.form, FusedAttention) else step.op
        if isinstance(op, Contraction):
            return " + ".join(self.term(term.coefficient, term.factors, called) for term in op.terms)
        uses = " ".join(self.use(use, called) for use in op.uses)
        words = [self.word(op), *self.details(step)]
        return f"{', '.join(words)}{remark}: {uses}"

    def word(self, op: Box | FusedAttention | Kernel) -> str:
        if isinstance(op, FusedAttention):
            return f"attention over {self.names((op.leg, *op.beside))}"
        return WORDS.get(op.kind, op.kind)

    def details(self, step: Step) -> Iterator[str]:
        op = step.form if isinstance(step.form, FusedAttention) else step.op
        if isinstance(op, FusedAttention):
            yield f"scores {self.names(op.scores)}"
            yield f"scale {self.number(op.scale)}"
            yield from (f"dropout {self.number(op.dropout)}" for _ in range(self.number(op.dropout) != "0"))
            yield from self.masks(op.masks)
        elif isinstance(op, Box):
            if op.leg is not None:
                yield f"over {self.legs[op.leg]}"
            if op.other is not None:
                yield f"and {self.legs[op.other]}"
            if op.function is not None:
                yield self.call(op.function)
            yield from (f"{name} {self.number(value)}" for name, value in op.numbers)
            yield from self.masks(op.masks)
            if op.mode is not None:
                yield op.mode

    def masks(self, masks: tuple[Function, ...]) -> Iterator[str]:
        """The masks but for `causal` of a causal plan, which its heading says."""
        for mask in masks:
            if not (mask.name == "causal" and self.graph.causal):
                yield f"mask {self.call(mask)}"

    def term(self, coefficient: Arith, factors: tuple[Use, ...], called: dict[str, str]) -> str:
        number = self.number(coefficient)
        uses = [self.use(use, called) for use in factors]
        return " ".join([*([number] if number != "1" or not uses else []), *uses])

    def use(self, use: Use, called: dict[str, str]) -> str:
        return f"{called[use.name]}{self.on(use.legs)}"

    def on(self, legs: tuple[str, ...]) -> str:
        return f"[{self.names(legs)}]"

    def names(self, legs: tuple[str, ...]) -> str:
        return " ".join(self.legs[leg] for leg in legs)

    def call(self, function: Function) -> str:
        parts = [self.call(part) if isinstance(part, Function) else self.number(part) for part in function.arguments]
        return f"{function.name}({', '.join(parts)})" if parts else function.name

    def number(self, value: Arith) -> str:
        known = all(part.name in self.graph.values for part in names(value))
        return f"{evaluate(value, self.graph.values):.12g}" if known else to_text(value)


def _new(found: list[str]) -> dict[str, str]:
    return {name: f"new{i}" for i, name in enumerate(found, 1)}


@cache
def causal_or_not(design: str) -> tuple[bool, ...]:
    """Whether a design can be computed without a causal mask, and with one."""
    return tuple(causal for causal in (False, True) if _allowed(design, causal))


def _allowed(design: str, causal: bool) -> bool:
    try:
        graph_of(design, causal)
    except DesignError:
        return False
    return True
