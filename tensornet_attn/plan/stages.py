"""Stages of a decoding step: parts that run in one call, as one diagram with several outputs.

# K of x;  V of x;  y of x, all of K and V   ->   K and V of x;  y of x, all of K and V
# k of x;  v of x;  read of x, k, v, S;  S of k, v, S;  y of read   ->   y and S of x and S
# A[n m] = Q[n d] K[m d];  r[n d] = A[n m] V[m d]   ->   A = Q[d] K[d];  r[d] = A V[d]

A part that reads cached results runs after the part that computes them for the chunk, because the cache is updated
between them. Steps that parts share are computed once. In a chunk of one position of a design with states, stages that
read no cached positions have neither query leg nor key leg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tensornet_attn.cost.target import TRAINING
from tensornet_attn.graph.graph import Contraction, Graph, Leg, Step, Tensor, Use
from tensornet_attn.graph.recurrence import ONES
from tensornet_attn.graph.visibility import lookahead
from tensornet_attn.ir.steps import with_terms, with_uses, without
from tensornet_attn.ops import OPS
from tensornet_attn.plan.decoding import decoding_of
from tensornet_attn.plan.make import plan_of
from tensornet_attn.plan.parts import Decoding, DecodingPart, PartInput
from tensornet_attn.plan.plan import Plan

AT_ONE = ("visible", "place")  # inputs that are 1 in a chunk of one visible position


@dataclass(frozen=True)
class Stage:
    """Values of a chunk that one diagram computes: its output, then those in the graph's `also`.

    `places`: if its graph has no sequence legs, the dimension of that which each value has lost, from the end, or 0.
    """

    values: tuple[str, ...]
    graph: Graph
    inputs: tuple[PartInput, ...]
    reach: int | None
    wide: bool
    places: tuple[int, ...] = ()


def single(decoding: Decoding) -> tuple[Stage, ...]:
    """Each part as a stage of its own."""
    return tuple(Stage((part.value_name,), part.graph, part.inputs, part.reach, part.wide) for part in decoding.parts)


def merged(decoding: Decoding, apart: bool) -> tuple[Stage, ...]:
    """The stages of a chunk of one position.

    `apart`: parts that are kept wide are separate stages, because they run in another dtype or a mask of the call
    hides positions from states. Otherwise no mask hides positions from states.
    """
    groups: list[_Group] = []
    stage_of: dict[str, int] = {}
    for part in decoding.parts:
        first = 0
        for source in part.inputs:
            if source.value_name in stage_of and source.how in ("chunk", "kept"):
                first = max(first, stage_of[source.value_name] + (source.how == "kept" or (apart and source.hides)))
        computed_once = decoding.memory and part.value_name in {cached.name for cached in decoding.kept}
        kind = (computed_once, apart and part.wide)
        index = next((index for index in range(first, len(groups)) if groups[index].takes(part, kind)), len(groups))
        if index == len(groups):
            groups.append(_Group(decoding, kind))
        groups[index].parts.append(part)
        stage_of[part.value_name] = index
    return tuple(group.stage(groups, apart) for group in groups)


@dataclass
class _Group:
    """Parts that become one stage."""

    decoding: Decoding
    kind: tuple[bool, bool]
    parts: list[DecodingPart] = field(default_factory=list)

    def takes(self, part: DecodingPart, kind: tuple[bool, bool]) -> bool:
        """Whether a part is of the same kind and its keys, if any, are those of the other parts."""
        reaches = {member.reach for member in self.parts if _has_keys(member)}
        return kind == self.kind and (not reaches or not _has_keys(part) or reaches == {part.reach})

    def stage(self, groups: list[_Group], apart: bool) -> Stage:
        """The parts as one diagram."""
        kept = {cached.name for cached in self.decoding.kept} | {self.decoding.graph.output}
        read_elsewhere = {
            source.value_name for group in groups if group is not self for part in group.parts for source in part.inputs
        }
        merge, stateful = _Merge(apart), any(cached.leg is None for cached in self.decoding.kept)
        outputs = {part.value_name: merge.add(part) for part in self.parts}
        exported = [value for value in outputs if value in kept | read_elsewhere]
        last = exported[-1]
        template = self.parts[-1].graph
        updates = {} if apart else {name: outputs.get(source.value_name) for name, source in merge.inputs.items()}
        states = {name for name, source in merge.inputs.items() if source.how in ("state", "level")}
        graph = replace(
            template,
            legs=tuple(merge.legs.values()),
            tensors=tuple(
                replace(tensor, update=updates.get(tensor.name)) if tensor.name in states else tensor
                for tensor in merge.tensors.values()
            ),
            steps=tuple(merge.steps.values()),
            output=outputs[last],
            also=tuple(outputs[value] for value in exported[:-1]),
            wide=tuple(dict.fromkeys(merge.wide)),
        )
        reach = next((part.reach for part in self.parts if _has_keys(part)), None)
        at_one = _at_one(graph) if stateful and not apart else None
        wide = any(part.wide for part in self.parts)
        values, inputs = (last, *exported[:-1]), tuple(merge.inputs.values())
        if at_one is None:
            return Stage(values, graph, inputs, reach, wide)
        places = tuple(_place(graph, outputs[value]) for value in values)
        return Stage(values, at_one, inputs, reach, wide, places)


def plans_in_cpp(graph: Graph) -> Iterator[Plan]:
    """The plans of steps of one position that overwrite states, with C++."""
    for stage in merged(decoding_of(graph, stepwise=True), False):
        if stage.places:
            yield plan_of(stage.graph, "cpp", replace(TRAINING, workload="decoding"))


def steps_in_cpp(graph: Graph) -> Iterator[str]:
    """What C++ computes in one call of a step of one position, in words; a line for each call."""
    for plan in plans_in_cpp(graph):
        if plan.position is not None:
            yield f"with a C++ library, a step computes {plan.position.words}"


def _place(graph: Graph, name: str) -> int:
    """The dimension of the sequence leg of a step, from the end; 0 if it has none."""
    legs = graph.legs_of(name)
    return next((index - len(legs) for index, leg in enumerate(legs) if leg in (graph.query, graph.key)), 0)


def _has_keys(part: DecodingPart) -> bool:
    """Whether a part uses the key leg."""
    graph = part.graph
    legs = {leg for tensor in graph.tensors for leg in tensor.legs} | {leg for step in graph.steps for leg in step.legs}
    return graph.key in legs | {leg for _, use in graph.uses() for leg in use.legs}


def _at_one(graph: Graph) -> Graph | None:
    """The diagram for one position, without query leg and key leg. Returns None if a box or a tensor needs them."""
    sequence = (graph.query, str(graph.key))
    ones = {tensor.name for tensor in graph.of_role("constant") if tensor.init == ONES}
    for tensor in graph.tensors:
        needed = graph.key in tensor.legs or (graph.query in tensor.legs and tensor.role != "input")
        if needed and tensor.name not in ones:
            return None
    steps: list[Step] = []
    for step in graph.steps:
        box = step.box
        if box is not None and {box.leg, box.other} & {*sequence}:
            if not OPS[box.kind].same_of_one or box.numbers or (graph.masks(step) and lookahead(graph, step) < 0):
                return None
            step = replace(step, op=Contraction.of(step.uses[0]))
        step = with_uses(step, lambda use: Use(use.name, without(use.legs, *sequence)))
        terms = (
            replace(term, factors=tuple(use for use in term.factors if use.name not in ones or use.legs))
            for term in step.terms
        )
        step = step if step.box is not None else with_terms(step, terms)
        steps.append(replace(step, legs=without(step.legs, *sequence)))
    tensors = tuple(replace(tensor, legs=without(tensor.legs, *sequence)) for tensor in graph.tensors)
    return replace(graph, steps=tuple(steps), tensors=tensors)


class _Merge:
    """One diagram of several; equal steps are merged."""

    def __init__(self, apart: bool):
        self.apart = apart
        self.legs, self.tensors = dict[str, Leg](), dict[str, Tensor]()
        self.steps, self.inputs = dict[str, Step](), dict[str, PartInput]()
        self.step_of_value = dict[str, str]()  # the step that computes a value
        self.wide: list[str] = []

    def add(self, part: DecodingPart) -> str:
        """Adds a part and returns the name of its output in the merged diagram."""
        names: dict[str, str] = {}
        graph = part.graph
        self.legs |= {leg.name: leg for leg in graph.legs}
        sources = {source.name: source for source in part.inputs}
        for tensor in graph.tensors:
            names[tensor.name] = self._tensor(tensor, sources.get(tensor.name))

        def change(use: Use) -> Use:
            return Use(names[use.name], use.legs)

        for step in graph.steps:
            names[step.name] = self._step(with_uses(step, change))
        self.wide += [names[name] for name in graph.wide]
        self.step_of_value[part.value_name] = names[graph.output]
        return names[graph.output]

    def _tensor(self, tensor: Tensor, source: PartInput | None) -> str:
        if source is None:
            free = self._free(tensor.name, lambda name: self.tensors.get(name) == replace(tensor, name=name))
            self.tensors[free] = replace(tensor, name=free)
            return free
        if source.how == "chunk" and source.value_name in self.step_of_value and not (self.apart and source.hides):
            return self.step_of_value[source.value_name]
        if source.how in AT_ONE and not self.apart:
            return self._tensor(Tensor(tensor.name, "constant", tensor.legs, ONES), None)
        if not self.apart:
            source = replace(source, hides=False)
            for name, known in self.inputs.items():
                if known == replace(source, name=name) and self.tensors[name].legs == tensor.legs:
                    return name
        free = self._free(
            tensor.name,
            lambda name: self.inputs.get(name) == replace(source, name=name) and self.tensors[name].legs == tensor.legs,
        )
        self.inputs[free], self.tensors[free] = replace(source, name=free), replace(tensor, name=free)
        return free

    def _step(self, step: Step) -> str:
        free = self._free(step.name, lambda name: self.steps.get(name) == replace(step, name=name))
        self.steps[free] = replace(step, name=free)
        return free

    def _free(self, name: str, same: Callable[[str], bool]) -> str:
        """The name, or a variant of it, that is unused or names an equal entry."""
        return next(
            candidate
            for candidate in _like(name)
            if same(candidate) or not (candidate in self.tensors or candidate in self.steps)
        )


def _like(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}{number}" for number in range(2, 1000))
