"""The diagram that one process computes if a design is split along a leg: the same diagram on a shorter leg.

# y[n f] = A[h n m] V[m h d] Wo[h d f] + b[f]     ->     y[n f] = A[h_ n m] V[m h_ d] Wo[h_ d f] + 1/2 b[f]

Only split places get the shorter leg. The old leg keeps its size, because scales and coefficients refer to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tensornet_attn.errors import InputError
from tensornet_attn.graph.graph import Contraction, Function, Graph, Leg, Step, Tensor, Use
from tensornet_attn.graph.wires import StepLeg, joints
from tensornet_attn.ir.arithmetic import ONE, Binary, Number, times
from tensornet_attn.ir.steps import with_terms
from tensornet_attn.plan.parallel import SplitLeg
from tensornet_attn.rewrite.change import fresh, leg_like, with_legs, with_uses

ZEROS = Function("zeros")


@dataclass(frozen=True)
class ProcessDiagram:
    """The diagram of one process. `chooser`: the weight [whole leg, its part] that selects the process's entries.

    Every process creates constants and noise in full, so that their values do not depend on the number of processes.
    The chooser selects the process's entries of those that are split; it is None if none is split.
    """

    graph: Graph
    chooser: str | None


def shard_of(split: SplitLeg, processes: int) -> ProcessDiagram:
    """The diagram of one of several processes. Raises InputError if they do not divide the leg."""
    if processes < 1 or split.size % processes:
        raise InputError(
            f"{split.graph.name}: leg '{split.leg}' ({split.size}) cannot be split over {processes} processes: use a "
            "number of processes that divides its size."
        )
    return _SplitPlaces(split, processes).diagram()


@dataclass
class _SplitPlaces:
    """The split places and their new leg; `picked`: the replacement of each split constant and noise tensor."""

    split: SplitLeg
    processes: int
    picked: dict[str, str] = field(default_factory=dict)

    def diagram(self) -> ProcessDiagram:
        graph = self.split.graph
        self.leg = self._leg()
        self.chooser = fresh(graph, "own")
        picks = tuple(self._picks())
        tensors = tuple(map(self._tensor, graph.tensors))
        if picks:
            legs = (self.split.leg, self.leg.name)
            tensors += (Tensor(self.chooser, "weight", legs, ZEROS, frozen=True),)
        steps = (*picks, *map(self._step, graph.steps))
        divided = with_legs(replace(graph, tensors=tensors, steps=steps), [self.leg])
        return ProcessDiagram(divided, self.chooser if picks else None)

    def _leg(self) -> Leg:
        old, graph = self.split.leg, self.split.graph
        return leg_like(graph, old, self.split.size // self.processes, graph.leg[old].kind, graph.leg)

    def _own(self, name: str, legs: tuple[str, ...]) -> tuple[str, ...]:
        """The legs of a tensor or result, with the split leg replaced."""
        return tuple(self.leg.name if (name, StepLeg(leg)) in self.split.slots else leg for leg in legs)

    def _tensor(self, tensor: Tensor) -> Tensor:
        legs = self._own(tensor.name, tensor.legs)
        if legs == tensor.legs or tensor.role not in ("weight", "state"):
            return tensor
        new = dict(zip(tensor.legs, legs, strict=True))
        stored = tuple(tuple(new[leg] for leg in group) for group in tensor.stored)
        init = ZEROS if tensor.role == "weight" else tensor.init  # weights are copied from the initialised module
        return replace(tensor, legs=legs, stored=stored, init=init)

    def _picks(self) -> Iterator[Step]:
        """A step for each split constant and noise tensor: C[h d] -> C[h d] own[h h_] -> h_ d."""
        for tensor in self.split.graph.tensors:
            legs = self._own(tensor.name, tensor.legs)
            if legs != tensor.legs and tensor.role in ("constant", "noise"):
                (old,) = set(tensor.legs) - set(legs)
                uses = (tensor.use, Use(self.chooser, (old, self.leg.name)))
                self.picked[tensor.name] = fresh(self.split.graph, f"{tensor.name}_own")
                yield Step(self.picked[tensor.name], Contraction.of(*uses), legs)

    def _step(self, step: Step) -> Step:
        slots, leg = self.split.slots, self.leg.name
        uses = iter(
            Use(
                self.picked.get(joint.use.name, joint.use.name),
                tuple(leg if (step.name, wire) in slots else wire.leg for wire in joint.wires),
            )
            for joint in joints(step)
        )
        step = replace(with_uses(step, lambda use: next(uses)), legs=self._own(step.name, step.legs))
        if step.box is not None and step.box.leg is not None and (step.name, StepLeg(step.box.leg)) in slots:
            return replace(step, op=replace(step.box, leg=leg))  # a sum over the leg
        return self._shared(step)

    def _shared(self, step: Step) -> Step:
        """Terms that all processes have, in a sum over processes: each process adds its share of them."""
        numbers = {number for name, number in self.split.shared if name == step.name}
        if not numbers or step.contraction is None:
            return step
        share = Binary("/", ONE, Number(self.processes))
        terms = enumerate(step.terms, 1)
        return with_terms(
            step,
            (
                replace(term, coefficient=times(term.coefficient, share)) if number in numbers else term
                for number, term in terms
            ),
        )
