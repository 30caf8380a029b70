"""Decoding: the results that a cache stores for past positions, and the diagrams that compute the next chunk from them.

# K = x Wk;  V = x Wv;  A = softmax over m of Q K;  y = A V Wo
#     ->     stored: K and V;  computed: K and V of the chunk, y of the chunk from all of K and V

Wherever queries meet keys, results of all visible keys are needed. A minimum cut of the diagram finds the cheapest
results to store from which these can be computed. Each part is a diagram on the design's own legs: `n` has the
positions of the chunk, `m` the stored ones and the chunk's. The last query is at the position of the last key, so that
masks and distances stay valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from tensornet_attn.cost.blocks import reach_of
from tensornet_attn.cost.decoding import cheapest
from tensornet_attn.cost.report import Report, cost_of
from tensornet_attn.cost.target import TRAINING
from tensornet_attn.errors import InputError
from tensornet_attn.graph.attention import ahead, behind
from tensornet_attn.graph.causal import causal_leaks, looks_back
from tensornet_attn.graph.diagram import on_pairs, operation_of, size_of
from tensornet_attn.graph.graph import Graph, Leg, Step, Tensor, Use
from tensornet_attn.graph.hidden import zero_at_pairs
from tensornet_attn.graph.precision import kept_wide
from tensornet_attn.graph.visibility import by_distance, lookahead
from tensornet_attn.ir.arithmetic import names
from tensornet_attn.ir.steps import Contraction
from tensornet_attn.kernels.blocks import exits, groups
from tensornet_attn.kernels.implementation import Context
from tensornet_attn.ops import OPS
from tensornet_attn.ops.conv import convolves, left_of
from tensornet_attn.plan.carried import PLACE, VISIBLE, CarriedGraph, carried, of_last
from tensornet_attn.plan.distribute import DISTRIBUTION
from tensornet_attn.plan.duplicate import DUPLICATES
from tensornet_attn.plan.hoist import HOISTS
from tensornet_attn.plan.implementations import TORCH
from tensornet_attn.plan.normalized import NORMALIZED
from tensornet_attn.plan.parts import Decoding, DecodingPart, Kept, PartInput
from tensornet_attn.rewrite.change import fresh, leg_like, with_uses
from tensornet_attn.tiles.legs import quadratic

OF_CHUNK = {VISIBLE: "visible", PLACE: "place"}
PLACES = ("position", "sinusoid")  # constants that depend on absolute positions


def decoding_of(graph: Graph, droppable: bool = False, stepwise: bool = False) -> Decoding:
    """The decoding cache of a graph: of its own past or, if its keys are a separate input, of that memory.

    `droppable`: the results stored for all positions do not depend on absolute positions, if these can be added later.
    `stepwise`: every chunk has one position, which is visible.

    Raises InputError if no cache is possible, with the step and the reason.
    """
    memory = any(graph.key in tensor.legs and tensor.default is None for tensor in graph.of_role("input"))
    wanted = behind(graph, [graph.output])
    plain = replace(graph, steps=tuple(step for step in graph.steps if step.name in wanted), losses=())  # nor states
    reasons = [_varies(plain, step, memory) for step in plain.steps]
    one_length = "its queries and keys have one length, so that a chunk would be as long as the memory"
    first = (one_length if graph.tied else None) if memory else _looks_ahead(plain)
    reason = next(filter(None, [first, *reasons]), None)
    if reason:
        raise InputError(f"{graph.name}: no cache can be kept: {reason}.")
    distributed = plain if memory else _apart(plain)
    recurrent = CarriedGraph(plain) if memory else of_last(carried(distributed, stepwise))
    try:
        decoding = _Derivation(recurrent, memory, droppable=droppable).decoding()
    except _PositionsUnknown as unknown:
        maps, reason = recurrent.boxes | recurrent.reasons.keys(), f"'{unknown}' depends on absolute positions"
        stateless = of_last(CarriedGraph(distributed, reasons=dict.fromkeys(maps, reason)))
        decoding = _Derivation(stateless, memory, everything=True, droppable=droppable).decoding()
    always = [tensor.name for tensor in plain.of_role("noise") if tensor.always and tensor.name in decoding.drawn]
    if always:
        raise InputError(
            f"{graph.name}: no cache can be kept: the noise '{always[0]}' is drawn in evaluation, in two parts."
        )
    return decoding


def as_decoder(graph: Graph) -> Decoding:
    """The decoding cache of a graph, with causality unless its keys are a separate input. Raises InputError."""
    memory = any(graph.key in tensor.legs and tensor.default is None for tensor in graph.of_role("input"))
    return decoding_of(graph if memory else replace(graph, causal=True))


def priced(graph: Graph, planned: Graph | None, n: int | None, m: int | None, batch: int, dtype: object) -> Report:
    """The report of `cost_of`, including the size of the decoding cache. Raises InputError."""
    report = cost_of(graph, planned, n, m, batch, dtype)
    length = dict(report.lengths).get(str(graph.key or graph.query), 0)
    try:
        return replace(report, decoding_state=decoding_of(graph).floats(length))
    except InputError:
        return replace(report, decoding_state=decoding_state(graph, length), decodes=False)


def decoding_state(graph: Graph, n: int) -> int | None:
    """Elements in the decoding cache after n positions, for one sequence; None if no cache is possible.

    >>> from tensornet_attn import build, load
    >>> decoding_state(build(load("mhsa")), 64)  # keys and values: 2 * 64 * 512
    65536
    """
    try:
        return as_decoder(graph).floats(n)
    except InputError:
        return None


class _PositionsUnknown(Exception):
    """A step depends on positions that a ring buffer or a state does not store."""


def _apart(graph: Graph) -> Graph:
    """The graph in which the maps of a blend are applied to values separately, if all then have implementations."""
    context = Context(TRAINING.sizes(graph), TRAINING, "torch", TORCH.rows)
    for rewriting in (NORMALIZED, HOISTS, DUPLICATES, DISTRIBUTION) if graph.key else ():
        graph = rewriting.apply(graph, context).graph
    return graph


def _looks_ahead(graph: Graph) -> str | None:
    """Why a design is not causal; None if it is."""
    for step in graph.steps:
        if graph.masked(step) and graph.query in step.uses[0].legs and lookahead(graph, step) > 0:
            return f"in '{step.name}' a query sees later keys; compile it with causal=True"
        if convolves(step.box) and not on_pairs(graph, step.legs) and not graph.causal:
            return f"'{step.name}' reads later positions; compile it with causal=True"
    reads_keys = any(graph.key in use.legs for step in graph.steps for use in step.uses)
    if reads_keys and not (graph.tied or any(graph.key in tensor.legs for tensor in graph.of_role("input"))):
        return f"no input has the key leg '{graph.key}', so that the number of keys does not grow with the positions"
    for tensor in graph.tensors:
        if tensor.role == "weight" and on_pairs(graph, tensor.legs):
            return f"the weight '{tensor.name}' has an entry per query and key, independent of their positions"
    leak = next((reason.removesuffix(".") for _, reason in causal_leaks(graph)), None)
    sums_later_keys = leak is None and graph.key is not None and not looks_back(replace(graph, causal=True))
    return "values of all keys, including later keys, are summed" if sums_later_keys else leak


def _varies(graph: Graph, step: Step, memory: bool) -> str | None:
    """Why a step computes other values at another length, or, for a memory, with other queries; None if it does not."""
    lengths = {length for expression in step.arithmetic for variable in names(expression) for length in [variable.name]}
    if lengths := lengths & {graph.query, str(graph.key)}:
        return f"'{step.name}' depends on the length '{min(lengths)}'"
    box = step.box
    if box is not None and convolves(step.box) and box.leg == graph.query and quadratic(graph, step.legs):
        return f"'{step.name}' reads scores of earlier queries"
    if not memory:
        return None
    box, relative = step.box, {leg.name for leg in graph.legs if leg.kind == "relative"}
    along = box is not None and (box.leg == graph.query or OPS[box.kind].recurrent)
    tables = [use.name for use in step.uses if use.name in graph.tensor and graph.query in graph.legs_of(use.name)]
    tables = [name for name in tables if graph.tensor[name].role not in ("input", "noise")]
    if along or tables or relative & {*step.legs} or graph.masks(step):
        return f"'{step.name}' depends on the positions of queries, which a memory fixes to those of its last keys"
    return None


@dataclass(frozen=True)
class Meeting:
    """Steps in which queries meet keys, and their readers. `reach`: how far back they see; None: all keys.

    `chunk`: they see only the keys of the chunk, because states carry the others.
    """

    steps: frozenset[str]
    exits: tuple[str, ...]
    reach: int | None
    chunk: bool = False


class _Derivation:
    """Derives the parts and the cached results of one graph."""

    def __init__(self, recurrent: CarriedGraph, memory: bool, everything: bool = False, droppable: bool = False):
        """`everything`: store results of all keys, even if queries see only a few. `droppable`: see `decoding_of`."""
        self.droppable = droppable
        self.graph, self.states, self.boxes = recurrent.graph, recurrent.states, recurrent.boxes
        self.levels, self.reasons = recurrent.levels, recurrent.reasons
        self.memory, self.everything = memory, everything
        graph = recurrent.graph
        self.query, self.key = graph.query, graph.key
        self.many = _made_of_inputs(graph)
        self.meetings = list(self._meetings())
        self.meeting = {name: meeting for meeting in self.meetings for name in (*meeting.steps, *meeting.exits)}
        self.kept = self._kept()
        self.parts: dict[str, DecodingPart] = {}
        self.wide = kept_wide(graph)

    def decoding(self) -> Decoding:
        output = self.part(self.graph.output)
        for name in self.kept:
            self.part(name)
        parts = [part for part in self.parts.values() if part is not output]
        all_parts = tuple(_with_precision(self.wide, (*parts, output)))
        all_keys = {name for name, meeting in self.meeting.items() if meeting.reach is None}
        reasons = {box: reason for box, reason in self.reasons.items() if box in all_keys}
        return Decoding(self.graph, all_parts, tuple(self.kept.values()), self.memory, reasons)

    # Steps where queries meet keys

    def _meetings(self) -> Iterable[Meeting]:
        graph, taken = self.graph, set[str]()
        for group in groups(graph):
            members = frozenset(group)
            ends = tuple(step.name for step in exits(graph, members))
            taken |= {*members, *ends}
            steps = [graph.step[name] for name in (*members, *ends)]
            boxes = {step.name for step in steps if graph.masked(step)}
            chunk = bool(boxes) and boxes <= self.boxes
            reach = None if self.everything else self._reach(steps)
            yield Meeting(members, ends, 0 if chunk else reach, chunk)
        for step in graph.steps:  # steps that sum keys without values of queries x keys, such as a delta rule
            summed = self.key not in step.legs and any(self.key in use.legs for use in step.uses)
            if summed and step.name in self.many and step.name not in taken:
                chunk = step.name in self.boxes
                reach = None if self.everything else self._taps(step)
                yield Meeting(frozenset(), (step.name,), 0 if chunk else reach, chunk)

    def _reach(self, steps: Iterable[Step]) -> int | None:
        """How far back the masks let a query see; None if a step sees all keys."""
        graph, reaches, zeros = self.graph, list[int](), zero_at_pairs(self.graph)
        for step in steps:
            summed = self.key not in step.legs and any(self.key in use.legs for use in step.uses)
            for term in step.terms if summed else ():
                on_keys = [use for use in term.factors if self.key in use.legs]
                if on_keys and not any(quadratic(graph, use.legs) for use in on_keys):
                    return None
            if graph.masked(step):
                reach = reach_of(graph, step)
                if not by_distance(graph.masks(step)):  # a ring buffer does not know positions
                    return None
                if step.box is not None and operation_of(step).is_sum and step.box.of.name in zeros:
                    continue  # of a map, which sees no more
                if reach is None:
                    return None
                reaches.append(max(reach.left, 0))
        return max(reaches) if reaches else None

    def _taps(self, step: Step) -> int | None:
        """How far back a convolution reads; None for other steps."""
        if step.box is None or not convolves(step.box):
            return None
        return left_of(self.graph, step.box, int(size_of(self.graph, str(step.box.other)) or 1))

    def _seq(self, legs: Iterable[str]) -> list[str]:
        """The sequence legs in a list of legs."""
        return [leg for leg in legs if leg in (self.query, self.key)]

    # Cached results

    def _kept(self) -> dict[str, Kept]:
        """The cheapest results from which everything that queries meet can be computed."""
        reaches: dict[str, float] = {}
        for meeting in self.meetings:
            for name in () if meeting.chunk else (*meeting.steps, *meeting.exits):
                for use in self.graph.step[name].uses:
                    source = self.meeting.get(use.name)
                    inside = source is meeting and use.name in meeting.steps
                    if self._seq(use.legs) == [self.key] and not inside and self._differs(use.name):
                        reaches[use.name] = max(
                            reaches.get(use.name, 0), inf if meeting.reach is None else meeting.reach
                        )
        by_reach: dict[float, list[str]] = {}
        for name, reach in reaches.items():
            by_reach.setdefault(reach, []).append(name)
        by_name = dict[str, Kept]()
        for reach in sorted(by_reach, reverse=True):
            names = self._before_lengths(by_reach[reach])
            names = self._unplaced(names) if self.droppable and reach == inf else names
            for name in cheapest(self.graph, names, self._before):
                legs = self.graph.legs_of(name)
                (leg,) = self._seq(legs)
                by_name.setdefault(
                    name, Kept(name, legs, leg, None if reach == inf else int(reach), self._depends_on_position(name))
                )
        order = [*self.graph.tensor, *self.graph.step]
        kept = {name: by_name[name] for name in sorted(by_name, key=order.index)}
        states = self.states.values()
        return kept | {
            name: Kept(name, self.graph.legs_of(name), None, None, self._depends_on_position(name)) for name in states
        }

    def _depends_on_position(self, name: str) -> bool:
        """Whether a result depends on its absolute position."""
        graph, ancestors = self.graph, behind(self.graph, [name])
        tables = {
            tensor.name for role in ("weight", "state") for tensor in graph.of_role(role) if self._seq(tensor.legs)
        }
        return bool(tables & ancestors) or any(map(self.placed, ancestors))

    def _unplaced(self, names: Iterable[str]) -> list[str]:
        """Replaces results that depend on absolute positions by their operands that do not, if possible."""
        replaced = list[str]()
        for name in names:
            before = self._before(name) if self._depends_on_position(name) else []
            # inputs are not results and cannot be cached
            inputs = [operand for operand in before if operand in self.graph.tensor]
            replaced += self._unplaced(before) if before and not inputs else [name]
        return list(dict.fromkeys(replaced))

    def _before_lengths(self, names: Iterable[str]) -> list[str]:
        """Replaces results that change with the total length by their operands that do not."""
        replaced = list[str]()
        for name in names:
            before = self._before(name)
            changing = [ancestor for ancestor in behind(self.graph, [name]) if self._by_length(ancestor)]
            if changing and (not before or any(operand in self.graph.tensor for operand in before)):
                raise InputError(
                    f"{self.graph.name}: no cache can be kept: '{changing[0]}' rotates by angles that depend on "
                    "the length; compile it with another rope_type, or without positions of the call."
                )
            replaced += self._before_lengths(before) if changing else [name]
        return list(dict.fromkeys(replaced))

    def _by_length(self, name: str) -> bool:
        step = self.graph.step.get(name)
        return step is not None and step.box is not None and operation_of(step).by_length(step.box)

    def _differs(self, name: str) -> bool:
        """Whether a result differs between calls; weights, constants and results of these alone do not."""
        return name in self.many

    def _before(self, name: str) -> list[str]:
        """The operands from which a result can be recomputed position by position; empty if it cannot."""
        step = self.graph.step.get(name)
        if step is None or name in self.meeting:
            return []
        return [use.name for use in step.uses if self._differs(use.name)]

    # Parts

    def part(self, value: str) -> DecodingPart:
        """The part that computes a value of the chunk, added after the parts that it needs."""
        if value not in self.parts:
            part = _Build(self, value).part()
            self.parts[value] = part  # added after the parts that it asked for
        return self.parts[value]

    def placed(self, name: str) -> bool:
        """Whether a constant or the box of a step depends on absolute positions."""
        tensor, step = self.graph.tensor.get(name), self.graph.step.get(name)
        if tensor is not None:
            return tensor.init is not None and tensor.init.name in PLACES and bool(self._seq(tensor.legs))
        box = step.box if step else None
        return box is not None and box.leg in (self.query, self.key) and OPS[box.kind].counts_positions(box)


def _with_precision(wide: frozenset[str], parts: Sequence[DecodingPart]) -> Iterator[DecodingPart]:
    """The parts with their precision: those that are kept wide, and the inputs that they give to others."""
    wide |= {part.value_name for part in parts if part.reads_state}
    for part in parts:
        if part.value_name in wide:
            yield replace(part, wide=True)
            continue
        wide_inputs = {
            source.name for source in part.inputs if source.how in ("chunk", "kept") and source.value_name in wide
        }
        tensors = tuple(replace(tensor, wide=tensor.name in wide_inputs) for tensor in part.graph.tensors)
        yield replace(part, graph=replace(part.graph, tensors=tensors))


class _Build:
    """Builds one part: the tensors, steps and inputs that its value needs."""

    def __init__(self, derivation: _Derivation, value: str):
        self.whole, self.graph, self.value = derivation, derivation.graph, value
        self.query, self.key = derivation.query, derivation.key
        self.meeting = derivation.meeting.get(value)
        self.tensors, self.steps, self.inputs = dict[str, Tensor](), dict[str, Step](), dict[str, PartInput]()
        self.counts = False  # whether the value depends on absolute positions
        self.wide: list[str] = []  # copies of steps that the design keeps wide

    def part(self) -> DecodingPart:
        graph, legs = self.graph, self.graph.legs
        if self.key is None:
            fresh_key = leg_like(graph, "m", 1, "key", graph.leg).name
            self.key, legs = fresh_key, (*legs, Leg(fresh_key, "key", None))
        legs_of = self.graph.legs_of(self.value)
        once = self.whole.memory and self.value in self.whole.kept
        output = self.all(self.value, legs_of) if once else self.present(self.value, legs_of)
        on_keys = any(self.key in self.tensors[name].legs for name in self.inputs)
        nodes: list[Tensor | Step] = [*self.tensors.values(), *self.steps.values()]
        if not on_keys and (self.counts or any(self.key in node.legs for node in nodes)):
            self.give(fresh(graph, "seen"), self.value, "seen", (self.key,))
        on_queries = any(self.query in self.tensors[name].legs for name in self.inputs)
        if not on_queries and any(self.query in node.legs for node in nodes):
            self.give(fresh(graph, "chunk"), self.value, "empty", (self.query,))
        if output in self.tensors:  # an input that keys and values read as it is
            use = Use(output, self.tensors[output].legs)
            output = fresh(graph, f"{self.value}.kept")
            self.steps[output] = Step(output, Contraction.of(use), use.legs)
        diagram = replace(
            graph,
            legs=legs if self.counts or on_keys or graph.key else graph.legs,
            tensors=tuple(self.tensors.values()),
            steps=tuple(self.steps.values()),
            output=output,
            losses=(),
            wide=tuple(self.wide),
        )
        return DecodingPart(
            self.value, diagram, tuple(self.inputs.values()), self.meeting.reach if self.meeting else None
        )

    def refused(self, name: str, reason: str) -> InputError:
        return InputError(f"{self.graph.name}: a decoding cache cannot provide the operands of '{name}': it {reason}.")

    def on(self, legs: Iterable[str], leg: str) -> tuple[str, ...]:
        """The legs with their sequence leg replaced."""
        return tuple(leg if old in (self.query, self.key) else old for old in legs)

    def give(self, name: str, value: str, how: str, legs: tuple[str, ...]) -> str:
        """Adds an input to the part and returns its name."""
        axis = next((index - len(legs) for index, leg in enumerate(legs) if leg in (self.query, self.key)), 0)
        hides = how == "chunk" and self.query in legs and self.value in self.whole.states.values()
        self.inputs[name] = PartInput(name, value, how, axis, hides)
        self.tensors[name] = Tensor(name, "input", legs, finite=how != "chunk")
        return name

    def present(self, name: str, legs: tuple[str, ...]) -> str:
        """Adds a value of the chunk to the part and returns its name there."""
        tensor, chunk_legs = self.graph.tensor.get(name), self.on(legs, self.query)
        called = name if chunk_legs == legs else f"{name}.now"
        if called in self.tensors or called in self.steps:
            return called
        if tensor is not None:
            if tensor.role == "input":
                return self.give(called, tensor.default or name, OF_CHUNK.get(name, "chunk"), chunk_legs)
            return self.leaf(tensor, called, chunk_legs)
        ring = self.meeting is not None and self.meeting.reach is not None
        separate = (
            name in self.whole.parts
            or name in self.whole.kept
            or name in self.whole.meeting
            or (ring and self.whole.placed(name))
        )
        if separate and name != self.value:
            self.whole.part(name)
            return self.give(called, name, "chunk", chunk_legs)
        if self.whole.placed(name):
            self.counts = True
        self.copy(self.graph.step[name], called, None if name in self.whole.meeting else self.query)
        return called

    def all(self, name: str, legs: tuple[str, ...]) -> str:
        """Adds a value of all keys to the part and returns its name there."""
        key_legs = self.on(legs, str(self.key))
        called = name if key_legs == legs else f"{name}.all"
        if called in self.tensors or called in self.steps:
            return called
        tensor, chunk = self.graph.tensor.get(name), self.meeting is not None and self.meeting.chunk
        cached = self.whole.memory and name in self.whole.kept and name != self.value
        if tensor is not None and tensor.role == "input" and (chunk or (self.whole.memory and not cached)):
            return self.give(called, (tensor.default if chunk else None) or name, "chunk", key_legs)
        if chunk and tensor is None and name in self.whole.many:
            self.whole.part(name)
            return self.give(called, name, "chunk", key_legs)
        if name in self.whole.kept and (name != self.value or not self.whole.memory):
            self.whole.part(name)
            return self.give(called, name, "kept", key_legs)
        if name in self.graph.tensor:
            return self.leaf(self.graph.tensor[name], called, key_legs)
        if self.whole.placed(name) and self.meeting is not None and self.meeting.reach is not None:
            raise _PositionsUnknown(name)
        self.copy(self.graph.step[name], called, str(self.key))
        return called

    def leaf(self, tensor: Tensor, called: str, legs: tuple[str, ...]) -> str:
        """Adds a weight, state, constant or noise on one sequence leg."""
        if tensor.role in ("weight", "state"):
            return self.give(called, tensor.name, "rows", legs)
        if tensor.role == "noise" and self.key in legs:
            raise self.refused(tensor.name, "is noise on the key leg")
        if self.whole.placed(tensor.name):
            if self.meeting is not None and self.meeting.reach is not None:
                raise _PositionsUnknown(tensor.name)
            self.counts = True
        self.tensors[called] = replace(tensor, name=called, legs=legs)
        return called

    def other(self, name: str) -> str:
        """Adds a value on no sequence leg, or on both."""
        if name in self.whole.states:
            how = "level" if name in self.whole.levels else "state"
            self.give(name, self.whole.states[name], how, self.graph.legs_of(name))
        elif name in self.whole.kept and name != self.value:
            self.whole.part(name)
            self.give(name, name, "chunk", self.graph.legs_of(name))
        elif name in self.graph.tensor and self.graph.tensor[name].role == "input":
            self.give(name, self.graph.tensor[name].default or name, "chunk", self.graph.legs_of(name))
        elif name in self.graph.tensor:
            self.tensors.setdefault(name, replace(self.graph.tensor[name], update=None))
        elif name not in self.steps:
            self.copy(self.graph.step[name], name, None)
        return name

    def copy(self, step: Step, called: str, leg: str | None) -> None:
        """Adds a copy of a step on another sequence leg, under another name, after the values that it reads."""

        def change(use: Use) -> Use:
            legs = use.legs if leg is None else self.on(use.legs, leg)
            sequence = [name for name in legs if name in (self.query, self.key)]
            declared = self.graph.legs_of(use.name)
            if len(sequence) != 1 or quadratic(self.graph, declared):
                if sequence and legs != use.legs:
                    raise self.refused(step.name, f"reads '{use.name}' at two positions")
                return Use(self.other(use.name), legs)
            add = self.present if sequence == [self.query] else self.all
            return Use(add(use.name, declared), legs)

        changed = with_uses(step, change)
        if leg is not None and changed.box is not None and changed.box.leg in (self.query, self.key):
            along_memory = self.whole.memory and self.whole.graph.key == leg == changed.box.leg
            if changed.box.leg in operation_of(changed).legs_mixed(changed.box) and not along_memory:
                raise self.refused(step.name, f"runs along '{changed.box.leg}'")
            changed = replace(changed, op=replace(changed.box, leg=leg))
        legs = step.legs if leg is None else self.on(step.legs, leg)
        self.steps[called] = replace(changed, name=called, legs=legs)
        self.wide += [called] if step.name in self.whole.wide else []


def _made_of_inputs(graph: Graph) -> frozenset[str]:
    """Tensors and steps whose values differ between calls."""
    drawn_or_given = (tensor.name for tensor in graph.tensors if tensor.role in ("input", "noise"))
    return frozenset(ahead(graph.steps, drawn_or_given))
