"""Splitting a leg over processes: the kind of every value if the leg is split, or why the leg cannot be split.

A value is whole (the same in every process), split (it has the leg), or partial (the processes' values add up to it).
A product that is linear in one partial value is partial; no other operation may read a partial value. The output and
losses may be partial.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from networkx.utils import UnionFind

from tensornet_attn.graph.graph import Contraction, Graph, Step, Term, Use
from tensornet_attn.graph.pairs import batched
from tensornet_attn.graph.wires import WHOLE, Joint, StepLeg, joints
from tensornet_attn.ops import OPS
from tensornet_attn.tiles.legs import quadratic

Slot = tuple[str, StepLeg]  # a leg of a tensor or step


class Unsplit(Exception):
    """The reason why a leg cannot be split, as a clause."""


def glued(graph: Graph) -> list[frozenset[Slot]]:
    """Sets of slots that are the same leg: legs of tensors with their uses, legs of states with their new values."""
    union = UnionFind()
    for name in (*graph.tensor, *graph.step):
        for leg in graph.legs_of(name):
            union[name, StepLeg(leg)]
    for step in graph.steps:
        for joint in joints(step):
            for leg, wire in zip(graph.legs_of(joint.use.name), joint.wires, strict=True):
                union.union((joint.use.name, StepLeg(leg)), (step.name, wire))
    for state, name in graph.updates:
        for leg in graph.tensor[state].legs:
            union.union((state, StepLeg(leg)), (name, StepLeg(leg)))
    return [frozenset(slots) for slots in union.to_sets()]


@dataclass(frozen=True)
class Cut:
    """A leg of the whole diagram, considered for splitting."""

    graph: Graph
    slots: frozenset[Slot]

    @property
    def possible(self) -> bool:
        """Whether the leg is on a weight, has a fixed size, and is on no input and not on the output."""
        roles = {self.graph.tensor[name].role for name, _ in self.slots if name in self.graph.tensor}
        kept = any((self.graph.output, StepLeg(leg)) in self.slots for leg in self.graph.step[self.graph.output].legs)
        sized = all(self.graph.leg[wire.leg].kind in ("size", "head") for _, wire in self.slots)
        return "weight" in roles and "input" not in roles and not kept and sized

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the leg on weights, in the order of declaration."""
        legs = [leg for t in self.graph.of_role("weight") for leg in t.legs if (t.name, StepLeg(leg)) in self.slots]
        return tuple(dict.fromkeys(legs))

    @property
    def first_position(self) -> tuple[int, int]:
        """The first weight with the leg, and the leg's index on it."""
        weights = enumerate(self.graph.of_role("weight"))
        return min((i, t.legs.index(leg)) for i, t in weights for leg in t.legs if (t.name, StepLeg(leg)) in self.slots)

    @property
    def leg(self) -> str:
        """The name of the leg in messages."""
        return self.names[0]

    @property
    def heads(self) -> bool:
        return any(self.graph.leg[name].kind == "head" for name in self.names)

    def shards(self) -> Iterator[tuple[str, int]]:
        """The weights and states with the leg, and their stored dimension to shard. Raises Unsplit."""
        for tensor in self.graph.tensors:
            split_legs = [leg for leg in tensor.legs if (tensor.name, StepLeg(leg)) in self.slots]
            if len(split_legs) > 1:
                raise Unsplit(f"'{tensor.name}' has the leg twice, as {named(split_legs)}")
            groups = tensor.stored or tuple((leg,) for leg in tensor.legs)
            for dimension, group in enumerate(groups) if tensor.role in ("weight", "state") else ():
                if {*split_legs} & {*group[1:]}:
                    raise Unsplit(f"'{tensor.name}' stores '{split_legs[0]}' inside {named(group[:1])}")
                if {*split_legs} & {*group}:
                    yield tensor.name, dimension

    def kinds(self) -> tuple[dict[str, str], frozenset[tuple[str, int]]]:
        """The kind of each tensor and step, and the whole terms of partial sums. Raises Unsplit."""
        kinds = {t.name: "split" if self._has(t.name, t.legs) else "whole" for t in self.graph.tensors}
        shared: set[tuple[str, int]] = set()
        for step in self.graph.steps:
            if step.contraction is not None:
                terms = [self._term(step, number, term, kinds) for number, term in enumerate(step.terms, 1)]
                kinds[step.name] = _sum(terms, self._has(step.name, step.legs))
                if kinds[step.name] == "partial":
                    shared |= {(step.name, number) for number, kind in enumerate(terms, 1) if kind == "whole"}
            else:
                kinds[step.name] = self._box(step, kinds)
        for _, name in self.graph.updates:
            if kinds[name] == "partial":
                raise Unsplit(f"'{name}', which a state stores, is a sum over '{self.leg}'")
        if kinds[self.graph.output] != "partial":
            raise Unsplit(f"the output is not a sum over '{self.leg}'")
        return kinds, frozenset(shared)

    def _has(self, name: str, legs: Sequence[str]) -> bool:
        return any((name, StepLeg(leg)) in self.slots for leg in legs)

    def _wires(self, step: Step, reads: Sequence[Joint]) -> list[StepLeg]:
        """The wires of the result and of some uses that are this leg."""
        wires = [StepLeg(leg) for leg in step.legs] + [wire for joint in reads for wire in joint.wires]
        return [wire for wire in dict.fromkeys(wires) if (step.name, wire) in self.slots]

    def _term(self, step: Step, number: int, term: Term, kinds: dict[str, str]) -> str:
        """The kind of a product."""
        wires = self._wires(step, [joint for joint in joints(step) if joint.term == number])
        if len(wires) > 1:
            raise Unsplit(f"'{step.name}' combines each entry of '{wires[0].leg}' with each entry of '{wires[1].leg}'")
        partial = [use for use in term.factors if kinds[use.name] == "partial"]
        if partial and (wires or len(partial) > 1):
            raise Unsplit(f"{self._summed(partial[0].name, kinds)}, and '{step.name}' needs the whole sum")
        if partial or (wires and wires[0].term != WHOLE):
            return "partial"
        return "split" if wires else "whole"

    def _box(self, step: Step, kinds: dict[str, str]) -> str:
        """The kind of the result of a box."""
        box = step.box
        assert box is not None
        op = OPS[box.kind]
        wires = self._wires(step, joints(step))
        along = next((leg for leg in box.acting if StepLeg(leg) in wires), None)
        if len(wires) > 1:
            raise Unsplit(f"{_describe(step)} combines each entry of '{wires[0].leg}' with each of '{wires[1].leg}'")
        if wires and not self._has(step.name, step.legs) and not (op.is_sum and along):
            raise Unsplit(f"{_describe(step)} runs over '{wires[0].leg}'")
        if along is not None and not op.is_sum:
            raise Unsplit(f"{_describe(step)} runs over '{along}'")
        partial = [use.name for use in box.uses if kinds[use.name] == "partial"]
        if partial and (wires or not op.linear):
            raise Unsplit(f"{self._summed(partial[0], kinds)}, and {_describe(step)} needs the whole sum")
        return "partial" if partial or along is not None else "split" if wires else "whole"

    def _summed(self, name: str, kinds: dict[str, str]) -> str:
        """The step in which the leg is summed, for a partial value."""
        step = self.graph.step[name]
        if any(wire.leg not in step.legs for wire in self._wires(step, joints(step))):
            return f"'{name}' sums over '{self.leg}'"
        return self._summed(next(use.name for use in step.uses if kinds[use.name] == "partial"), kinds)

    def check_work(self, kinds: dict[str, str]) -> None:
        """Raises Unsplit if every process would compute all scores, or all heads that are mixed into its own."""
        batched_names = batched(self.graph)
        for step in self.graph.steps:
            if step.contraction is not None and kinds[step.name] == "split":
                self._check_mixing(step, step.contraction, batched_names)
            elif kinds[step.name] == "whole" and step.name in batched_names and quadratic(self.graph, step.legs):
                raise Unsplit(f"'{step.name}' does not have '{self.leg}', so every process would compute all of it")

    def _check_mixing(self, step: Step, op: Contraction, batched_names: frozenset[str]) -> None:
        for term in op.terms:
            unsplit = [use for use in term.factors if use.name in batched_names and not self._split_use(step, use)]
            heads = {leg for use in unsplit for leg in use.legs if self._is_head(leg) and leg not in step.legs}
            if heads:
                mixed = [use.name for use in unsplit if heads & {*use.legs}]
                mixers = [use.name for use in term.factors if use.name not in batched_names] or [step.name]
                into = self._wires(step, joints(step))[0].leg
                raise Unsplit(
                    f"heads {named(sorted(heads))} of {named(mixed)} are mixed into '{into}' by {named(mixers)} in "
                    f"'{step.name}'"
                )

    def _split_use(self, step: Step, use: Use) -> bool:
        return any((step.name, StepLeg(leg)) in self.slots for leg in use.legs)

    def _is_head(self, leg: str) -> bool:
        return self.graph.leg[leg].kind == "head"


def _sum(terms: Sequence[str], split: bool) -> str:
    """The kind of a sum of terms."""
    return "split" if split else "partial" if "partial" in terms else "whole"


def _describe(step: Step) -> str:
    assert step.box is not None
    return f"{step.box.kind.replace('_', ' ')} '{step.name}'"


def named(names: Sequence[str]) -> str:
    """`'Q', 'K' and 'P'`."""
    quoted = [f"'{name}'" for name in dict.fromkeys(names)]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
