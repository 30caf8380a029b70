"""The diagram as an immutable graph: tensors and steps, connected by named legs. A leg may connect many tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import Function, Loss, Step, Tensor, Use
from tensornet_attn.ops import OPS
from tensornet_attn.ops.operation import NoBox, Operation
from tensornet_attn.spec.sizes import Leg


@dataclass(frozen=True)
class Diagram:
    """The data of a `Graph`. Each step uses only tensors and earlier steps.

    `also` names steps that a call returns after the output; `wide`, steps that are kept in at least float32 because of
    what other parts of the design compute from them. A design has none; a decoding step may have some.
    """

    name: str
    legs: tuple[Leg, ...]
    settings: tuple[tuple[str, int | float], ...]
    tensors: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    output: str
    causal: bool = False
    losses: tuple[Loss, ...] = ()
    also: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()

    @cached_property
    def leg(self) -> dict[str, Leg]:
        return {leg.name: leg for leg in self.legs}

    @cached_property
    def tensor(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def step(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}

    @cached_property
    def query(self) -> str:
        return next((leg.name for leg in self.legs if leg.kind == "query"), "")  # a checked design has one

    @cached_property
    def key(self) -> str | None:
        return next((leg.name for leg in self.legs if leg.kind == "key"), None)

    @cached_property
    def values(self) -> dict[str, int | float]:
        """The values of names in arithmetic: settings, and sizes known before run time."""
        return dict(self.settings) | {leg.name: leg.size for leg in self.legs if leg.size is not None}

    def of_role(self, role: str) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role == role)

    def legs_of(self, name: str) -> tuple[str, ...]:
        """The legs of a tensor or a step, in the declared order."""
        return (self.tensor.get(name) or self.step[name]).legs

    def shape_of(self, name: str) -> tuple[int | None, ...]:
        """The stored shape of a weight, constant or state; None for legs sized at run time."""
        tensor = self.tensor[name]
        if tensor.stored:
            return tuple(prod(self.leg[leg].stored or 1 for leg in group) for group in tensor.stored)
        return tuple(self.leg[leg].stored for leg in tensor.legs)

    def masks(self, step: Step) -> tuple[Function, ...]:
        """The masks of a box: its own, and `causal` if the design is causal and the box runs along the key leg."""
        box = step.box
        if box is None or not self.masked(step):
            return ()
        causal = Function("causal")
        query = self.query in box.of.legs
        return (*box.masks, causal) if self.causal and query and causal not in box.masks else box.masks

    def masked(self, step: Step) -> bool:
        """Whether masks apply to this step: a masked box along the key leg."""
        box = step.box
        return box is not None and box.leg is not None and box.leg == self.key and OPS[box.kind].masked

    @cached_property
    def updates(self) -> tuple[tuple[str, str], ...]:
        """(state, step) pairs; each training call stores the step's value in the state."""
        return tuple((t.name, t.update) for t in self.tensors if t.role == "state" and t.update is not None)

    @cached_property
    def loss_weights(self) -> dict[str, float]:
        """Maps each loss to its weight in training."""
        return {loss.name: float(evaluate(loss.weight, self.values)) for loss in self.losses}

    @cached_property
    def results(self) -> frozenset[str]:
        """The names of results: steps that a call returns, updates of states, and losses."""
        stored = (step for _, step in self.updates)
        return frozenset({self.output, *self.also, *stored, *(loss.step for loss in self.losses)})

    @cached_property
    def tied(self) -> bool:
        """Whether a tensor with one sequence leg is used with the other: self-attention, with one length."""
        pair, names = {self.query, self.key}, self.tensor.keys() | self.step.keys()
        bodies = [step.kernel.body for step in self.steps if step.kernel is not None]
        return any(
            declared != leg and {declared, leg} == pair
            for steps in (self.steps, *bodies)
            for local in [{} if steps is self.steps else {inner.name for inner in steps}]  # a body has its own names
            for step in steps
            for use in step.uses
            if use.name in names and use.name not in local
            for declared, leg in zip(self.legs_of(use.name), use.legs, strict=True)
        )

    def uses(self) -> Iterator[tuple[Step, Use]]:
        for step in self.steps:
            for use in step.uses:
                yield step, use

    @cached_property
    def readers(self) -> dict[str, tuple[tuple[Step, Use], ...]]:
        """Maps names of tensors and steps to their uses; each use comes with its step."""
        readers: dict[str, list[tuple[Step, Use]]] = {}
        for step, use in self.uses():
            readers.setdefault(use.name, []).append((step, use))
        return {name: tuple(uses) for name, uses in readers.items()}


def on_pairs(graph: Diagram, legs: Iterable[str]) -> bool:
    """Whether values with these legs belong to a query and a key each."""
    return {graph.query, graph.key} <= {*legs}


def producer_of(graph: Diagram, use: Use) -> Step | None:
    """The step that computes what is used; None for a tensor."""
    return graph.step.get(use.name)


def size_of(graph: Diagram, leg: str) -> int | None:
    """The size of a leg; None if it is sized at run time."""
    return graph.leg[leg].size


_NO_BOX = NoBox()


def operation_of(step: Step) -> Operation:
    """The operation of a box; of another step one with all defaults, some of which are true."""
    return _NO_BOX if step.box is None else OPS[step.box.kind]
