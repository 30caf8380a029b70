"""A graph as one picture: steps are drawn in place, boxes as frames around what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tensornet_attn.draw.apart import drawn_apart
from tensornet_attn.draw.core import core
from tensornet_attn.draw.scene import END, LAST, Bond, Frame, Node, Path, Scene, Wire
from tensornet_attn.draw.words import box_words, coefficient_words, is_one
from tensornet_attn.graph.model import Attention, Box, Contraction, Graph, Kernel, Loss, Step, Term, Use
from tensornet_attn.spec.arithmetic import ONE, Arith, to_text

Wires = dict[str, Wire]


def flatten(graph: Graph) -> Scene:
    """The picture of a whole design: its output, and each step that is drawn apart."""
    painter = _Painter(graph)
    shown = [step for step in graph.steps if step.name in painter.apart | graph.results]
    for index, step in enumerate(shown):
        painter.root(step, index, alone=len(shown) == 1)
    return painter.scene()


class _Painter:
    """Collects nodes, frames and wires while it walks down from the results."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.apart = drawn_apart(graph)
        self.core = core(graph)
        self.nodes: list[Node] = []
        self.frames: list[Frame] = []
        self.wires: list[Wire] = []
        self.bonds: list[Bond] = []
        self.scalars: list[list[Arith]] = []  # coefficients met so far, one list for each product around

    def scene(self) -> Scene:
        """The finished picture: a leg that ends nowhere else ends in a vector of ones."""
        homes = {node.id: node for node in self.nodes}
        for wire in [wire for wire in self.wires if len(wire.ends) == 1]:
            path = homes[wire.ends[0]].path
            wire.join(self.node("ones", "1", wire.frame, (*path[:-1], (0, 0)) if path[-1] >= LAST else (*path, (0, 0))))
        wires = tuple(wire for wire in self.wires if wire.ends)
        return Scene(self.graph.name, tuple(self.frames), tuple(self.nodes), wires, tuple(self.bonds))

    def node(self, look: str, label: str, frame: str | None, path: Path, border: bool = False) -> Node:
        node = Node(f"n{len(self.nodes)}", look, label, frame, path, border)
        self.nodes.append(node)
        return node

    def frame(self, look: str, words: Iterable[str], parent: str | None) -> str:
        frame = Frame(f"f{len(self.frames)}", parent, look, tuple(words))
        self.frames.append(frame)
        return frame.id

    def wire(self, leg: str, frame: str | None, named: bool = True) -> Wire:
        wire = Wire(self.graph.leg[leg], frame, named)
        self.wires.append(wire)
        return wire

    def root(self, step: Step, index: int, alone: bool) -> None:
        """A result with open ends."""
        states = [state for state, name in self.graph.updates if name == step.name]
        title = f"{step.name}[{' '.join(step.legs)}]" + (f", kept in {', '.join(states)}" if states else "")
        title += "".join(f", {_loss(loss)}" for loss in self.graph.losses if loss.step == step.name)
        frame = None if alone else self.frame("part", (title,), None)
        wires = {leg: self.wire(leg, frame) for leg in step.legs}
        path: Path = ((0, index),)
        self.scalars.append([])
        self.step(step, wires, frame, path)
        self.numbers(frame, path)
        for leg in step.legs:
            wires[leg].join(self.node("open", "", frame, (*path, END)))

    def use(self, use: Use, wires: Wires, frame: str | None, path: Path) -> None:
        """A tensor, or a step drawn in place; `wires` by the legs of the use."""
        step = self.graph.step.get(use.name)
        if step is not None and step.name not in self.apart:
            own = dict(zip(step.legs, (wires[leg] for leg in use.legs), strict=True))
            self.step(step, own, frame, path)
        else:
            node = self.node(self.look(use.name), use.name, frame, path)
            for leg in use.legs:
                wires[leg].join(node)

    def look(self, name: str) -> str:
        if name in self.graph.step:
            return "step"
        return "core" if name in self.core else self.graph.tensor[name].role

    def step(self, step: Step, wires: Wires, frame: str | None, path: Path) -> None:
        if isinstance(step.op, Attention):
            self.attention(step.op, wires, frame, path)
        elif isinstance(step.op, Kernel):
            raise TypeError(f"'{step.name}' is planned: unfold the graph before drawing it.")
        elif isinstance(step.op, Box):
            self.box(step, step.op, wires, frame, path)
        elif len(step.op.terms) == 1:
            self.product(step.op.terms[0], wires, frame, path)
        else:
            self.sum(step.op, wires, frame, path)

    def product(self, term: Term, wires: Wires, frame: str | None, path: Path) -> None:
        wires = wires | {leg: self.wire(leg, frame) for leg in _legs(term.factors) if leg not in wires}
        for index, (distance, use) in enumerate(_arranged(self.graph, term.factors)):
            self.use(use, wires, frame, (*path, (distance, index)))
        if not is_one(term.coefficient):
            self.scalars[-1].append(term.coefficient)

    def numbers(self, frame: str | None, path: Path) -> None:
        """Coefficients that no sign of a sum takes in: tensors without legs."""
        for value in self.scalars.pop():
            self.node("number", to_text(value), frame, (*path, (1, 0)))

    def sum(self, contraction: Contraction, wires: Wires, frame: str | None, path: Path) -> None:
        """Terms side by side, each with its sign, bonded to one `+` that carries the legs of the result."""
        plus = self.node("plus", "+", frame, (*path, LAST))
        for index, term in enumerate(contraction.terms):
            self.term(term, [leg for leg in wires if leg in _legs(term.factors)], plus, frame, (*path, (0, index)))
        for wire in wires.values():
            wire.join(plus)

    def term(self, term: Term, legs: list[str], plus: Node, frame: str | None, path: Path) -> None:
        self.scalars.append([] if is_one(term.coefficient) else [term.coefficient])
        tap = self.operand(Term(ONE, term.factors), legs, frame, path)
        label = coefficient_words(self.scalars.pop(), bare=not term.factors)
        self.nodes[int(tap.id[1:])] = replace(tap, label=label)
        self.bonds.append(Bond(tap.id, plus.id))

    def operand(self, term: Term, legs: list[str], frame: str | None, path: Path) -> Node:
        """A product whose free legs are gathered in a tap."""
        framed = len(term.factors) > 1 or any(use.name in self.graph.step for use in term.factors)
        frame = self.frame("term", (), frame) if framed else frame
        tap = self.node("tap", "", frame, (*path, LAST), border=framed)
        wires = {leg: self.wire(leg, frame) for leg in legs}
        for wire in wires.values():
            wire.join(tap)
        self.product(term, wires, frame, path)
        return tap

    def role(self, role: str, use: Use, into: Node, frame: str, path: Path) -> None:
        """An operand that its role names, such as the key of a delta rule."""
        self.scalars.append([])
        tap = self.operand(_alone(use), list(use.legs), frame, path)
        self.nodes[int(tap.id[1:])] = replace(tap, label=role)
        self.numbers(tap.frame, path)
        self.bonds.append(Bond(tap.id, into.id))

    def box(self, step: Step, box: Box, wires: Wires, frame: str | None, path: Path) -> None:
        look = "softmax" if box.kind == "softmax" else "box"
        inside = self.frame(look, box_words(self.graph, step), frame)
        operands = dict(box.operands)
        if "of" in operands:
            self.boxed(box, operands["of"], operands.get("by"), wires, inside, path)
        else:
            self.rule(box, wires, inside, path)

    def boxed(self, box: Box, of: Use, by: Use | None, wires: Wires, frame: str, path: Path) -> None:
        """A box's operand inside its frame; where another tensor decides (`by`), it is bonded to the border's dot."""
        inner = {leg: self.wire(leg, frame, named=leg not in wires) for leg in of.legs}
        self.scalars.append([])
        self.use(of, inner, frame, (*path, (0, 0)))
        self.numbers(frame, path)
        port = self.border(box.leg, wires, inner, frame, path)
        if port is not None and by not in (None, of):
            self.role("by", by or of, port, frame, (*path, (0, 1)))

    def border(self, acts: str | None, outer: Wires, inner: Wires, frame: str, path: Path) -> Node | None:
        """Legs leave a box at its border; a dot marks the one it acts along, which may end there or become another."""
        for leg in sorted((leg for leg in outer if leg in inner), key=lambda leg: _middle(inner[leg])):
            if leg != acts:
                self.passage("pass", (inner[leg], outer[leg]), frame, path)
        if acts is None:
            return None
        new = [wire for leg, wire in outer.items() if leg not in inner or leg == acts]
        return self.passage("port", (*([inner[acts]] if acts in inner else []), *new), frame, path)

    def passage(self, look: str, wires: Iterable[Wire], frame: str, path: Path) -> Node:
        node = self.node(look, "", frame, (*path, LAST), border=True)
        for wire in wires:
            wire.join(node)
        return node

    def rule(self, box: Box, wires: Wires, frame: str, path: Path) -> None:
        """A box with operands by role, such as the delta rule."""
        rule = self.node("rule", box.kind, frame, (*path, (1, 0)))
        for index, (role, use) in enumerate(box.operands):
            self.role(role, use, rule, frame, (*path, (0, index)))
        inner = {leg: self.wire(leg, frame, named=False) for leg in wires}
        for wire in inner.values():
            wire.join(rule)
        self.border(None, wires, inner, frame, path)

    def attention(self, op: Attention, wires: Wires, frame: str | None, path: Path) -> None:
        """A fused softmax attention, drawn as what it computes."""
        scores = Contraction((Term(ONE, (op.query, op.key)),))
        numbers = (("scale", op.scale), ("dropout", op.dropout))
        box = Box("softmax", op.leg, (("of", Use("scores", op.scores)),), numbers, op.masks)
        wires = wires | {leg: self.wire(leg, frame) for leg in (*op.scores, *op.value.legs) if leg not in wires}
        inside = self.frame("softmax", box_words(self.graph, Step("scores", box, op.scores)), frame)
        inner = {leg: self.wire(leg, inside, named=False) for leg in op.scores}
        self.product(scores.terms[0], inner, inside, (*path, (0, 0), (0, 0)))
        self.border(op.leg, {leg: wires[leg] for leg in op.scores}, inner, inside, (*path, (0, 0)))
        self.use(op.value, wires, frame, (*path, (0, 1)))


def _middle(wire: Wire) -> float:
    """Where a leg's ends stand from left to right, roughly: their order of drawing."""
    return sum(int(end[1:]) for end in wire.ends) / max(1, len(wire.ends))


def _alone(use: Use) -> Term:
    return Term(ONE, (use,))


def _loss(loss: Loss) -> str:
    """`loss, times 0.01`; `loss z, times 0.01` where the step has another name."""
    name = "" if loss.name == loss.step else f" {loss.name}"
    return f"loss{name}, times {to_text(loss.weight)}"


def _legs(uses: Iterable[Use]) -> list[str]:
    return list(dict.fromkeys(leg for use in uses for leg in use.legs))


def _arranged(graph: Graph, factors: tuple[Use, ...]) -> list[tuple[int, Use]]:
    """Factors by their distance from the data of the product: steps and inputs 0, what they touch 1, and so on.

    What has a border comes first among the data, so that what leaves it flows on.
    """
    distance = [0 if _is_data(graph, use) else None for use in factors]
    if factors and 0 not in distance:
        distance[0] = 0
    for step in range(len(factors)):
        near = {
            leg for use, d in zip(factors, distance, strict=True) if d is not None and d <= step for leg in use.legs
        }
        distance = [
            step + 1 if d is None and near & set(use.legs) else d for use, d in zip(factors, distance, strict=True)
        ]
    rows = [(len(factors) if d is None else d, use) for d, use in zip(distance, factors, strict=True)]
    return sorted(rows, key=lambda row: (row[0], not _bordered(graph, row[1])))


def _is_data(graph: Graph, use: Use) -> bool:
    return use.name in graph.step or graph.tensor[use.name].role == "input"


def _bordered(graph: Graph, use: Use) -> bool:
    op = graph.step[use.name].op if use.name in graph.step else None
    return isinstance(op, Box | Attention) or (isinstance(op, Contraction) and len(op.terms) > 1)
