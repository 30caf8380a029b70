"""Structured constants: splits the joined legs of a kron constant throughout the diagram.

# C[r s] = kron(eye(h), ones(d, e)), Q[n s] = x Wq[f s]     ->     eye[h g] ones[d e], Q[n g e] = x Wq[f g e]

Weights with such a leg keep the shape in which they are stored. These rules change the legs of boxes, so that a call
can no longer give a mask for each entry of such a leg; for this reason, `SPLITS` is separate from the other rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tensornet_attn.graph.graph import Box, Contraction, Function, Graph, Leg, Step, Tensor, Use
from tensornet_attn.graph.labelling import Classes
from tensornet_attn.graph.wires import WHOLE, StepLeg, joints
from tensornet_attn.ir.arithmetic import Arith, Name, evaluate
from tensornet_attn.rewrite.change import fresh, kept, leg_like, with_legs
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.rewrite.simplify import ONE_MAP

Slot = tuple[str, object]  # (tensor, its leg) or (step, wire)
Part = tuple[str, int]  # the preferred name of a part of a leg, its size
UNIFORM = frozenset({"ones", "full", "zeros"})


def split_kron(graph: Graph, step_name: str) -> Graph | None:
    """kron(eye(h), ones(d, e))[r s] X[n s] -> n r   ->   eye[h g] ones[d e] X[n g e] -> n h d"""
    for use in graph.step[step_name].uses:
        tensor = graph.tensor.get(use.name)
        if tensor is not None and _kron(tensor):
            after = _split(graph, tensor)
            if after is not None:
                return after
    return None


def _glued(graph: Graph) -> Classes[Slot]:
    """The equivalence classes of connected slots: the legs of tensors and the wires of their uses."""
    classes = Classes[Slot]()
    for step in graph.steps:
        for joint in joints(step):
            name = joint.use.name
            pairs = zip(graph.legs_of(name), joint.wires, strict=True)
            classes.join(
                ((name, leg if name in graph.tensor else StepLeg(leg)), (step.name, wire)) for leg, wire in pairs
            )
    return classes


def _kron(tensor: Tensor) -> bool:
    return tensor.role == "constant" and tensor.init is not None and tensor.init.name == "kron"


def _leaves(function: Function) -> Iterator[Function]:
    """The factors of a Kronecker product."""
    for argument in function.arguments if function.name == "kron" else ():
        assert isinstance(argument, Function)
        yield from _leaves(argument) if argument.name == "kron" else (argument,)


def _parts(graph: Graph, tensor: Tensor, side: int) -> tuple[Part, ...]:
    """The parts of the rows or the columns of a kron constant."""
    assert tensor.init is not None
    parts = list[Part]()
    for factor in _leaves(tensor.init):
        size: Arith = (*factor.arguments[side:], factor.arguments[-1])[0]  # type: ignore[assignment]  # eye(a) is a x a
        name = size.name if isinstance(size, Name) and size.name in graph.leg else f"{tensor.legs[side]}{len(parts)}"
        parts.append((name, int(evaluate(size, graph.values))))
    return tuple(parts)


def _split(graph: Graph, constant: Tensor) -> Graph | None:
    """The graph with all connected legs of a kron constant split. Returns None if one of them cannot be split."""
    classes, wanted = _glued(graph), dict[Slot, tuple[Part, ...]]()
    for side, leg in enumerate(constant.legs):
        parts = _parts(graph, constant, side)
        first_parts = wanted.setdefault(classes.find((constant.name, leg)), parts)
        if [size for _, size in first_parts] != [size for _, size in parts]:
            return None
    splits = _Splits(graph, classes, wanted)
    return splits.graph() if splits.possible() else None


@dataclass
class _Splits:
    """The slots to split, and the graph after the split."""

    old: Graph
    classes: Classes[Slot]
    wanted: dict[Slot, tuple[Part, ...]]
    legs: dict[str, Leg] = field(default_factory=dict)

    def parts_of_slot(self, slot: Slot) -> tuple[Part, ...] | None:
        return self.wanted.get(self.classes.find(slot))

    def possible(self) -> bool:
        return all(map(self._tensor_fits, self.old.tensors)) and all(map(self._step_fits, self.old.steps))

    def _tensor_fits(self, tensor: Tensor) -> bool:
        sides = [self.parts_of_slot((tensor.name, leg)) for leg in tensor.legs]
        if not any(sides) or tensor.init is None:
            return not any(sides)
        if tensor.role == "weight":
            return not any(self.old.leg[leg].sequence for leg in tensor.legs)
        if _kron(tensor):
            factor_sizes = [[size for _, size in _parts(self.old, tensor, side)] for side in (0, 1)]
            return factor_sizes == [[size for _, size in side or ()] for side in sides]
        return tensor.role == "constant" and tensor.init.name in UNIFORM

    def _step_fits(self, step: Step) -> bool:
        wires = [wire for joint in joints(step) for wire in joint.wires] + [StepLeg(leg) for leg in step.legs]
        split = {wire.leg for wire in wires if self.parts_of_slot((step.name, wire))}
        if not split or step.contraction is not None:
            return not split or not (kept(self.old, step.name) and split & {*step.legs})
        box = step.box
        if box is None or box.joins:
            return False
        alone = not any(use.name in self.old.tensor for use in box.uses)  # a constant may become two tensors
        return alone and not (split & {*box.acting}) and not kept(self.old, step.name)

    def graph(self) -> Graph:
        tensors = [piece for tensor in self.old.tensors for piece in self._tensor(tensor)]
        with_tensors = replace(self.old, tensors=tuple(tensors))
        steps = tuple(self._step(step) for step in self.old.steps)
        return with_legs(replace(with_tensors, steps=steps), self.legs.values())

    def _named(self, parts: tuple[Part, ...], leg: str, taken: set[str]) -> tuple[str, ...]:
        """Names for the parts of a leg that are unique in this step or tensor."""
        names = []
        for name, size in parts:
            graph = with_legs(self.old, self.legs.values())
            new_leg = leg_like(graph, name, size, self.old.leg[leg].kind, taken)
            self.legs[new_leg.name] = new_leg
            taken.add(new_leg.name)
            names.append(new_leg.name)
        return tuple(names)

    def _tensor(self, tensor: Tensor) -> list[Tensor]:
        sides = [self.parts_of_slot((tensor.name, leg)) for leg in tensor.legs]
        if not any(sides):
            return [tensor]
        taken = {leg for leg, parts in zip(tensor.legs, sides, strict=True) if not parts}
        groups = [
            self._named(parts, leg, taken) if parts else (leg,) for leg, parts in zip(tensor.legs, sides, strict=True)
        ]
        if _kron(tensor):
            pieces = zip(self._pieces(tensor), _leaves(tensor.init), *groups, strict=True)  # type: ignore[arg-type]
            return [Tensor(name, "constant", tuple(legs), Function(factor.name)) for name, factor, *legs in pieces]
        before = tensor.stored or tuple((leg,) for leg in tensor.legs)
        group_of = dict(zip(tensor.legs, groups, strict=True))
        stored = tuple(tuple(leg for joined_leg in group for leg in group_of[joined_leg]) for group in before)
        init = tensor.init
        if tensor.role == "constant" and init is not None and init.name == "ones":
            init = Function("ones")  # its legs define its sizes
        weight_groups = stored if tensor.role == "weight" else ()
        return [replace(tensor, legs=sum(groups, ()), init=init, stored=weight_groups)]

    def _pieces(self, tensor: Tensor) -> list[str]:
        assert tensor.init is not None
        return [fresh(self.old, f"{tensor.name}_{factor.name}{i}") for i, factor in enumerate(_leaves(tensor.init))]

    def _step(self, step: Step) -> Step:
        wires = dict.fromkeys(
            [StepLeg(leg) for leg in step.legs] + [wire for joint in joints(step) for wire in joint.wires]
        )
        split = {wire: parts for wire in wires if (parts := self.parts_of_slot((step.name, wire)))}
        taken = {wire.leg for wire in wires if wire not in split} | ({wire.leg for wire in wires if not split})
        names = {wire: self._named(parts, wire.leg, taken) for wire, parts in split.items()}

        def uses(use: Use, number: int) -> list[Use]:
            use_wires = [StepLeg(leg, WHOLE if leg in step.legs else number) for leg in use.legs]
            groups = [names.get(wire, (wire.leg,)) for wire in use_wires]
            tensor = self.old.tensor.get(use.name)
            if tensor is not None and _kron(tensor) and use_wires[0] in names:
                return [Use(name, tuple(legs)) for name, *legs in zip(self._pieces(tensor), *groups, strict=True)]
            return [Use(use.name, sum(groups, ()))]

        return replace(step, legs=sum((names.get(StepLeg(leg), (leg,)) for leg in step.legs), ()), op=_with(step, uses))


def _with(step: Step, uses: Callable[[Use, int], list[Use]]) -> Contraction | Box:
    """The operation with each use replaced by its parts."""
    if step.box is not None:
        return replace(step.box, operands=tuple((role, uses(use, WHOLE)[0]) for role, use in step.box.operands))
    terms = (
        replace(term, factors=tuple(piece for use in term.factors for piece in uses(use, number)))
        for number, term in enumerate(step.terms, 1)
    )
    return Contraction(tuple(terms))


SPLITS = (
    Rule(
        "split",
        "kron(eye, ones)[r s] X[n s] -> eye[h g] ones[d e] X[n g e]",
        split_kron,
        "structural: legs all over the diagram",
    ),
    ONE_MAP,
)
