"""The canonical form of a graph and its hash: equal for designs that differ in names and orders only.

Not counted: names of legs, settings, tensors and steps; the order of factors, terms, declarations and independent
steps; whether a box is nested or a step of its own; the order of the legs of weights, constants, states and steps;
`head`, which is a permission; how a number is written, and defaults written out.

Counted: everything else, so also the order of inputs and of the legs of inputs, noise and the output, initialisers,
frozen weights, and whether one weight is used twice or two weights once.
"""

from __future__ import annotations

from hashlib import sha256

from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.graph.incidence import Incidence, Key, incidence
from tensornet_attn.graph.labelling import canonical_order
from tensornet_attn.graph.wires import WHOLE, Joint, Wire, joints, wires
from tensornet_attn.ir.steps import Step, Tensor

HEADER = "canonical form 1"  # changes whenever the text of any design does: hashes are kept in caches and results


def graph_hash(graph: Diagram) -> str:
    """The SHA-256 of the canonical form, in hexadecimal: equal hashes, equal diagrams."""
    return sha256(canonical(graph).encode()).hexdigest()


def canonical(graph: Diagram) -> str:
    """The graph written down under canonical names, one tensor or step a line; two graphs are equal where this is.

    Tensors and steps are called t0, t1, ...; each lists its legs in canonical order, and a use gives the wires that
    its tensor's legs hang on in that order. See `labelling` for the bound on graphs that look alike everywhere.
    """
    made = incidence(graph)
    order = canonical_order(made.colours, made.edges)
    return _Writer(made, {vertex: place for place, vertex in enumerate(order)}).text()


class _Writer:
    """Writes vertices in the order of their ranks."""

    def __init__(self, made: Incidence, rank: dict[int, int]):
        self.made, self.graph, self.rank = made, made.graph, rank
        nodes: list[Tensor | Step] = [*made.graph.tensors, *made.graph.steps]
        self.nodes = sorted(nodes, key=lambda node: self.of((node.name,)))
        self.names = {node.name: f"t{place}" for place, node in enumerate(self.nodes)}

    def of(self, key: Key) -> int:
        return self.rank[self.made.vertices[key]]

    def colour(self, key: Key) -> str:
        return self.made.colours[self.made.vertices[key]]

    def text(self) -> str:
        lines = [self.tensor(node) if isinstance(node, Tensor) else self.step(node) for node in self.nodes]
        return "\n".join([HEADER, *lines, ""])

    def tensor(self, tensor: Tensor) -> str:
        slots = sorted(self.made.slots(tensor.name), key=self.rank.__getitem__)
        legs = ", ".join(self.made.colours[slot].removeprefix("slot ") for slot in slots)
        line = f"{self.names[tensor.name]} = {self.colour((tensor.name,))} [{legs}]"
        return line if tensor.update is None else f"{line} stores {self.stored(tensor, tensor.update)}"

    def stored(self, state: Tensor, step: str) -> str:
        legs = sorted(state.legs, key=lambda leg: self.of((state.name, "slot", leg)))
        places = sorted(self.made.slots(step), key=self.rank.__getitem__)
        return f"{self.names[step]} {[places.index(self.made.vertices[step, 'slot', leg]) for leg in legs]}"

    def step(self, step: Step) -> str:
        """`t9 = sum [w0 64, w1 8 result] (term 1: factor t3[w0 w1] ...)`: operation, wires, and what hangs on them."""
        ordered = sorted(wires(step), key=lambda wire: self.of((step.name, "wire", wire)))
        called = {wire: f"w{place}" for place, wire in enumerate(ordered)}
        colours = [(called[wire], self.colour((step.name, "wire", wire)).removeprefix("wire ")) for wire in ordered]
        uses = self.uses(step, called)
        texts = [" ".join(uses.get(WHOLE, []))]
        if step.contraction is not None:
            keys = sorted(((step.name, "term", part) for part, _ in enumerate(step.contraction.terms, 1)), key=self.of)
            texts = [f"({' '.join([self.colour(key), *uses.get(key[2], [])])})" for key in keys]
        legs = ", ".join(f"{name} {colour}" for name, colour in colours)
        return f"{self.names[step.name]} = {self.colour((step.name,))} [{legs}] {' '.join(texts)}"

    def uses(self, step: Step, called: dict[Wire, str]) -> dict[int, list[str]]:
        """The uses in each part of a step."""
        found: dict[int, list[str]] = {}
        for _, joint in sorted(enumerate(joints(step)), key=lambda pair: self.of((step.name, "use", pair[0]))):
            found.setdefault(joint.part, []).append(self.use(joint, called))
        return found

    def use(self, joint: Joint, called: dict[Wire, str]) -> str:
        slots = self.made.slots(joint.use.name)
        hung = sorted(zip(slots, joint.wires, strict=True), key=lambda pair: self.rank[pair[0]])
        return f"{joint.role} {self.names[joint.use.name]}[{' '.join(called[wire] for _, wire in hung)}]"
