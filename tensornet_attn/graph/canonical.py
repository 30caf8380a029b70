"""The canonical form of a graph and its hash, equal for designs that differ only in names and orders.

The form ignores names of legs, settings, tensors and steps; the order of factors, terms, declarations and independent
steps; whether a box is nested or a separate step; the order of the legs of weights, constants, states and steps;
`head`, which is a permission; the notation of numbers, and explicit defaults.

The form includes everything else: also the order of inputs and of the legs of inputs, noise and the output,
initialisers, frozen weights, and whether one weight is used twice or two weights once.

The graph becomes coloured vertices and labelled edges, without names and without orders that a diagram does not have.
Colours contain fixed properties: roles, sizes, kinds of legs, boxes with their parameters, coefficients; and the order
of inputs, and of the legs of inputs, noise and the output, which is the interface of `forward`.

tensor - slots, one for each leg           step - wires; those of its result are its slots
    step - terms - uses - legs of the use      use -> the tensor or step used; leg of a use -> its slot, -> its wire
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.graph.labelling import canonical_order
from tensornet_attn.graph.normal import arithmetic_text, function_text, masks_text, values_texts
from tensornet_attn.graph.wires import WHOLE, Joint, StepLeg, joints, marks, wires
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ir.steps import Step, Tensor
from tensornet_attn.spec.sizes import Leg

HEADER = "canonical form 1"  # change it if the text of any design changes: caches and results store hashes

Key = tuple[object, ...]  # (name of a tensor or step, part of it, ...)

# Labels of edges; the two directions of an edge have different labels if its ends can be of one kind.
PART, USES, USED, SLOT, SLOT_OF, WIRE, WIRE_OF, STORES, STORED = range(9)


def graph_hash(graph: Diagram) -> str:
    """The SHA-256 of the canonical form, in hexadecimal. Equal hashes mean equal diagrams."""
    return sha256(canonical(graph).encode()).hexdigest()


def canonical(graph: Diagram) -> str:
    """The graph as text with canonical names, one tensor or step a line. Graphs with equal texts are equal.

    Tensors and steps are called t0, t1, ...; each lists its legs in canonical order, and a use lists the wires of its
    tensor's legs in that order. See `labelling` for the limit on highly symmetric graphs.
    """
    coloured = incidence(graph)
    order = canonical_order(coloured.colours, coloured.edges)
    return _VertexWriter(coloured, {vertex: rank for rank, vertex in enumerate(order)}).text()


@dataclass
class Incidence:
    """The coloured graph: `vertices` by key, their colours, and their edges as (label, other vertex)."""

    graph: Diagram
    vertices: dict[Key, int] = field(default_factory=dict)
    colours: list[str] = field(default_factory=list)
    edges: list[list[tuple[int, int]]] = field(default_factory=list)

    def vertex(self, key: Key, colour: str) -> int:
        self.vertices[key] = len(self.colours)
        self.colours.append(colour)
        self.edges.append([])
        return self.vertices[key]

    def edge(self, vertex: int, neighbour: int, label: int = PART, label_back: int = PART) -> None:
        self.edges[vertex].append((label, neighbour))
        self.edges[neighbour].append((label_back, vertex))

    def slots(self, name: str) -> list[int]:
        """The vertices of a tensor's legs, or of the legs of a step's result."""
        return [self.vertices[name, "slot", leg] for leg in self.graph.legs_of(name)]


def incidence(graph: Diagram) -> Incidence:
    coloured = Incidence(graph)
    inputs = {tensor.name: index for index, tensor in enumerate(graph.of_role("input"))}
    for tensor in graph.tensors:
        _tensor(coloured, tensor, inputs)
    for step in graph.steps:
        _step(coloured, step)
    for state, step_name in graph.updates:
        coloured.edge(coloured.vertices[state,], coloured.vertices[step_name,], STORES, STORED)
        for leg in graph.tensor[state].legs:
            coloured.edge(
                coloured.vertices[state, "slot", leg], coloured.vertices[step_name, "slot", leg], STORES, STORED
            )
    return coloured


def _tensor(coloured: Incidence, tensor: Tensor, inputs: dict[str, int]) -> None:
    graph = coloured.graph
    init, sides = values_texts(tensor.init, len(tensor.legs), graph) if tensor.init else ("", [""] * len(tensor.legs))
    words = [tensor.role, *([init] if init else [])]
    words += [str(inputs[tensor.name])] if tensor.role == "input" else []
    words += [f"default {inputs[tensor.default]}"] if tensor.default is not None else []
    words += [f"std {arithmetic_text(tensor.std, graph)}"] if tensor.role == "noise" else []
    words += ["frozen"] * tensor.frozen + ["always"] * tensor.always
    vertex = coloured.vertex((tensor.name,), " ".join(words))
    for axis, (leg, side) in enumerate(zip(tensor.legs, sides, strict=True)):
        order = [f"#{axis}"] if tensor.role in ("input", "noise") else []
        colour = " ".join(["slot", leg_text(graph.leg[leg]), *([side] if side else []), *order])
        coloured.edge(vertex, coloured.vertex((tensor.name, "slot", leg), colour))


def leg_text(leg: Leg) -> str:
    """A leg without its name: its size, or its kind if it is sized at run time."""
    if leg.kind == "relative":
        return "relative" if leg.reach is None else f"relative {leg.reach}"
    if leg.sequence:
        return leg.kind if leg.maximum is None else f"{leg.kind} {leg.maximum}"
    return str(leg.size)


def _step(coloured: Incidence, step: Step) -> None:
    output = step.name == coloured.graph.output
    weights = sorted(
        arithmetic_text(loss.weight, coloured.graph) for loss in coloured.graph.losses if loss.step == step.name
    )
    words = [
        _operation(coloured.graph, step),
        *(["output"] if output else []),
        *(f"loss {weight}" for weight in weights),
    ]
    vertices = {WHOLE: coloured.vertex((step.name,), " ".join(words))}
    if step.contraction is not None:
        for number, term in enumerate(step.terms, 1):
            vertices[number] = coloured.vertex(
                (step.name, "term", number), f"term {arithmetic_text(term.coefficient, coloured.graph)}"
            )
            coloured.edge(vertices[WHOLE], vertices[number])
    roles = marks(step)
    for wire in wires(step):
        words = ["wire", leg_text(coloured.graph.leg[wire.leg]), *(["result"] if _kept(step, wire) else [])]
        words += [f"#{step.legs.index(wire.leg)}"] if output and _kept(step, wire) else []
        words += [roles[wire.leg]] if wire.term == WHOLE and wire.leg in roles else []
        vertex = coloured.vertex((step.name, "wire", wire), " ".join(words))
        coloured.edge(vertices.get(wire.term, vertices[WHOLE]), vertex)
        if _kept(step, wire):
            coloured.vertices[step.name, "slot", wire.leg] = vertex
    for index, joint in enumerate(joints(step)):
        _use(coloured, step, index, joint, vertices[joint.term])


def _kept(step: Step, wire: StepLeg) -> bool:
    return wire.term == WHOLE and wire.leg in step.legs


def _use(coloured: Incidence, step: Step, index: int, joint: Joint, owner: int) -> None:
    use = coloured.vertex((step.name, "use", index), f"use {joint.role}")
    coloured.edge(owner, use)
    coloured.edge(use, coloured.vertices[joint.use.name,], USES, USED)
    for slot, wire in zip(coloured.slots(joint.use.name), joint.wires, strict=True):
        leg = coloured.vertex((step.name, "leg", index, slot), "leg")
        coloured.edge(use, leg)
        coloured.edge(leg, slot, SLOT, SLOT_OF)
        coloured.edge(leg, coloured.vertices[step.name, "wire", wire], WIRE, WIRE_OF)


def _operation(graph: Diagram, step: Step) -> str:
    """A step's operation with its parameters and all masks that apply, including the design's `causal`."""
    box, kernel = step.box, step.kernel
    if box is not None:
        words = [box.kind, *_numbers(graph, box.numbers), masks_text(graph.masks(step), graph), box.mode or ""]
        return " ".join(word for word in (*words, function_text(box.function, graph) if box.function else "") if word)
    if kernel is not None:
        return f"{kernel.kind} {' '.join(kernel.steps)}"  # plans are not compared by canonical form
    return "sum"


def _numbers(graph: Diagram, numbers: tuple[tuple[str, Arith], ...]) -> list[str]:
    return [f"{name} {arithmetic_text(number, graph)}" for name, number in sorted(numbers)]


class _VertexWriter:
    """Writes the vertices in the order of their ranks."""

    def __init__(self, coloured: Incidence, rank: dict[int, int]):
        self.coloured, self.graph, self.rank = coloured, coloured.graph, rank
        nodes: list[Tensor | Step] = [*coloured.graph.tensors, *coloured.graph.steps]
        self.nodes = sorted(nodes, key=lambda node: self.of((node.name,)))
        self.names = {node.name: f"t{number}" for number, node in enumerate(self.nodes)}

    def of(self, key: Key) -> int:
        return self.rank[self.coloured.vertices[key]]

    def colour(self, key: Key) -> str:
        return self.coloured.colours[self.coloured.vertices[key]]

    def text(self) -> str:
        lines = [self.tensor(node) if isinstance(node, Tensor) else self.step(node) for node in self.nodes]
        return "\n".join([HEADER, *lines, ""])

    def tensor(self, tensor: Tensor) -> str:
        slots = sorted(self.coloured.slots(tensor.name), key=self.rank.__getitem__)
        legs = ", ".join(self.coloured.colours[slot].removeprefix("slot ") for slot in slots)
        line = f"{self.names[tensor.name]} = {self.colour((tensor.name,))} [{legs}]"
        return line if tensor.update is None else f"{line} stores {self.stored(tensor, tensor.update)}"

    def stored(self, state: Tensor, step: str) -> str:
        legs = sorted(state.legs, key=lambda leg: self.of((state.name, "slot", leg)))
        slots = sorted(self.coloured.slots(step), key=self.rank.__getitem__)
        return f"{self.names[step]} {[slots.index(self.coloured.vertices[step, 'slot', leg]) for leg in legs]}"

    def step(self, step: Step) -> str:
        """`t9 = sum [w0 64, w1 8 result] (term 1: factor t3[w0 w1] ...)`: operation, wires, uses."""
        ordered = sorted(wires(step), key=lambda wire: self.of((step.name, "wire", wire)))
        wire_names = {wire: f"w{number}" for number, wire in enumerate(ordered)}
        colours = [(wire_names[wire], self.colour((step.name, "wire", wire)).removeprefix("wire ")) for wire in ordered]
        uses = self.uses(step, wire_names)
        texts = [" ".join(uses.get(WHOLE, []))]
        if step.contraction is not None:
            keys = sorted(((step.name, "term", number) for number, _ in enumerate(step.terms, 1)), key=self.of)
            texts = [f"({' '.join([self.colour(key), *uses.get(key[2], [])])})" for key in keys]
        legs = ", ".join(f"{name} {colour}" for name, colour in colours)
        return f"{self.names[step.name]} = {self.colour((step.name,))} [{legs}] {' '.join(texts)}"

    def uses(self, step: Step, wire_names: dict[StepLeg, str]) -> dict[int, list[str]]:
        uses: dict[int, list[str]] = {}
        for _, joint in sorted(enumerate(joints(step)), key=lambda pair: self.of((step.name, "use", pair[0]))):
            uses.setdefault(joint.term, []).append(self.use(joint, wire_names))
        return uses

    def use(self, joint: Joint, wire_names: dict[StepLeg, str]) -> str:
        slots = self.coloured.slots(joint.use.name)
        pairs = sorted(zip(slots, joint.wires, strict=True), key=lambda pair: self.rank[pair[0]])
        return f"{joint.role} {self.names[joint.use.name]}[{' '.join(wire_names[wire] for _, wire in pairs)}]"
