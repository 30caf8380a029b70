"""Flattens a graph to one picture: steps are drawn inline, in frames with their names around their operands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tensornet_attn.draw.core import core
from tensornet_attn.draw.kept import NOTHING, Marks
from tensornet_attn.draw.overlay import NONE, Overlay
from tensornet_attn.draw.scene import END, LAST, Bond, Frame, Path, Scene, SceneNode, Wire, drawn_apart
from tensornet_attn.draw.words import box_words, coefficient_words, factor_words, is_one, look_of
from tensornet_attn.graph.diagram import producer_of
from tensornet_attn.graph.graph import Box, Contraction, Graph, Leg, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Arith, to_text
from tensornet_attn.ops import OPS

Wires = dict[str, Wire]


def flatten(graph: Graph, kept: Marks = NOTHING, overlay: Overlay = NONE) -> Scene:
    """The picture of a design: its output, and separate parts for steps that are not drawn inline.

    `kept` marks frames of steps, `overlay` fills them.
    """
    painter = _Painter(graph, kept, overlay)
    parts = [step for step in graph.steps if step.name in painter.apart | graph.results]
    for index, step in enumerate(parts):
        painter.root(step, index)
    return painter.scene()


class _Painter:
    """Collects nodes, frames and wires, starting from the results."""

    def __init__(self, graph: Graph, kept: Marks, overlay: Overlay):
        self.graph, self.kept, self.overlay = graph, kept, overlay
        self.apart = drawn_apart(graph)
        self.core = core(graph)
        self.nodes: list[SceneNode] = []
        self.frames: list[Frame] = []
        self.wires: list[Wire] = []
        self.bonds: list[Bond] = []
        self.scalars: list[list[Arith]] = []  # a stack of coefficients, one list per enclosing product

    def scene(self) -> Scene:
        """The finished picture. A leg with one end is joined to a vector of ones."""
        homes = {node.id: node for node in self.nodes}
        self.quiet(homes)
        for wire in [wire for wire in self.wires if len(wire.ends) == 1]:
            path = homes[wire.ends[0]].path
            wire.join(self.node("ones", "1", wire.frame, (*path[:-1], (0, 0)) if path[-1] >= LAST else (*path, (0, 0))))
        wires = tuple(wire for wire in self.wires if wire.ends)
        ends = (self.graph.query, self.graph.key)
        others = (leg.name for leg in self.graph.legs if leg.name not in ends)
        order = tuple(leg for leg in (ends[0], *others, ends[1]) if leg is not None)
        return Scene(self.graph.name, tuple(self.frames), tuple(self.nodes), wires, tuple(self.bonds), order, ends)

    def quiet(self, homes: dict[str, SceneNode]) -> None:
        """Removes the repeated name of a leg after a border, except at results."""
        labelled = {end for wire in self.wires if wire.named for end in wire.ends if homes[end].frame == wire.frame}
        for wire in self.wires:
            ends = [homes[end] for end in wire.ends]
            passed = [end for end in ends if end.look == "pass" and end.frame != wire.frame]
            if len(ends) == 2 and len(passed) == 1 and passed[0].id in labelled:
                wire.named = any(end.look == "open" for end in ends)

    def node(
        self, look: str, label: str, frame: str | None, path: Path, border: bool = False, core: bool = False
    ) -> SceneNode:
        node = SceneNode(f"n{len(self.nodes)}", look, label, frame, path, border, core)
        self.nodes.append(node)
        return node

    def frame(self, look: str, words: Iterable[str], parent: str | None, step: str = "") -> str:
        """Adds a frame, with the marks of `step` if given."""
        kept, notes = self.kept.get(step, ()), self.overlay.words.get(step, ())
        fill = self.overlay.fills.get(step, "")
        frame = Frame(f"f{len(self.frames)}", parent, look, (*words, *notes, *kept), bool(kept), fill)
        self.frames.append(frame)
        return frame.id

    def wire(self, leg: str, frame: str | None, outer: Wires | None = None) -> Wire:
        """Adds a wire inside a frame. If the leg continues outside, its name is there."""
        beyond = outer.get(leg) if outer else None
        wire = Wire(beyond.leg if beyond else self.graph.leg[leg], frame, named=beyond is None)
        self.wires.append(wire)
        return wire

    def root(self, step: Step, index: int) -> None:
        """Draws a part of the picture: a result with open ends."""
        states = [state for state, name in self.graph.updates if name == step.name]
        title = f"{step.name}[{' '.join(step.legs)}]" + (f", kept in {', '.join(states)}" if states else "")
        for loss in (loss for loss in self.graph.losses if loss.step == step.name):
            name = "" if loss.name == loss.step else f" {loss.name}"
            title += f", loss{name}, times {to_text(loss.weight)}"
        boxed = step.box is not None  # the frame of the box has the mark
        frame = self.frame("part", (title,), None, "" if boxed else step.name)
        wires = {leg: self.wire(leg, frame) for leg in step.legs}
        path: Path = ((0, index),)
        self.scalars.append([])
        self.step(step, wires, frame, path, named=False)
        self.numbers(frame, path)
        for leg in step.legs:
            wires[leg].join(self.node("open", "", frame, (*path, END), border=True))

    def use(self, use: Use, wires: Wires, frame: str | None, path: Path) -> None:
        """Draws a tensor, or a step inline; `wires` are by legs of the use."""
        step = producer_of(self.graph, use)
        if step is not None and step.name not in self.apart:
            step_wires = dict(zip(step.legs, (wires[leg] for leg in use.legs), strict=True))
            self.step(step, step_wires, frame, path)
        else:
            look = "step" if step is not None else look_of(self.graph.tensor[use.name])
            node = self.node(look, use.name, frame, path, core=use.name in self.core)
            for leg in use.legs:
                wires[leg].join(node)

    def step(self, step: Step, wires: Wires, frame: str | None, path: Path, named: bool = True) -> None:
        """Draws a step inline, with its name unless it is nested in a box or `named` is false."""
        named = named and (not step.nested or step.name in self.kept)
        if step.box is not None:
            self.box(step, step.box, wires, frame, path, named)
        elif step.contraction is None:
            raise TypeError(f"'{step.name}' is planned: unfold the graph before drawing it.")
        elif named:
            self.named(step, step.contraction, wires, frame, path)
        else:
            self.contraction(step.contraction, wires, frame, path)

    def named(self, step: Step, op: Contraction, wires: Wires, frame: str | None, path: Path) -> None:
        """Draws a product or sum in a frame with its name."""
        inside = self.frame("step", (step.name,), frame, step.name)
        inner = {leg: self.wire(leg, inside, wires) for leg in step.legs}
        self.scalars.append([])
        self.contraction(op, inner, inside, (*path, (0, 0)))
        self.numbers(inside, path)
        for leg in step.legs:
            self.passage("pass", (inner[leg], wires[leg]), inside, path)

    def contraction(self, op: Contraction, wires: Wires, frame: str | None, path: Path) -> None:
        if len(op.terms) == 1:
            self.product(op.terms[0], wires, frame, path)
        else:
            self.sum(op, wires, frame, path)

    def product(self, term: Term, wires: Wires, frame: str | None, path: Path) -> None:
        wires = wires | {leg: self.wire(leg, frame) for leg in _legs(term.factors) if leg not in wires}
        for index, (distance, use) in enumerate(_arranged(self.graph, term.factors, wires)):
            self.use(use, wires, frame, (*path, (distance, index)))
        if not is_one(term.coefficient):
            self.scalars[-1].append(term.coefficient)

    def numbers(self, frame: str | None, path: Path) -> None:
        """Draws coefficients outside sums, as tensors without legs."""
        for coefficient in self.scalars.pop():
            self.node("number", to_text(coefficient), frame, (*path, (1, 0)))

    def sum(self, contraction: Contraction, wires: Wires, frame: str | None, path: Path) -> None:
        """Draws terms with their signs side by side, bonded to a `+` node with the legs of the result."""
        plus = self.node("plus", "+", frame, (*path, LAST))
        for index, term in enumerate(contraction.terms):
            term_wires = {leg: wire for leg, wire in wires.items() if leg in _legs(term.factors)}
            self.term(term, term_wires, plus, frame, (*path, (0, index)))
        self.source(plus, wires)

    def source(self, node: SceneNode, wires: Wires) -> None:
        """Joins the result wires to a node that combines operands, and labels them there."""
        for wire in wires.values():
            wire.join(node)
            wire.named = True

    def term(self, term: Term, wires: Wires, plus: SceneNode, frame: str | None, path: Path) -> None:
        self.scalars.append([] if is_one(term.coefficient) and term.factors else [term.coefficient])
        legs = {leg: wire.leg for leg, wire in wires.items()}
        tap = self.operand(Term(ONE, term.factors), legs, frame, path)
        label = coefficient_words(self.scalars.pop(), bare=not term.factors)
        self.nodes[int(tap.id[1:])] = replace(tap, label=label)
        self.bonds.append(Bond(tap.id, plus.id, tuple(leg.name for leg in legs.values())))

    def operand(self, term: Term, legs: dict[str, Leg], frame: str | None, path: Path) -> SceneNode:
        """Draws a product and joins its free legs in a tap; `legs` maps them to the outer legs."""
        if len(term.factors) > 1 or (term.factors and not legs):  # otherwise, a wire joins the operand to the tap
            frame = self.frame("term", (), frame)
        tap = self.node("tap", "", frame, (*path, LAST))
        wires = {leg: self.wire(outer.name, frame) for leg, outer in legs.items()}
        for wire in wires.values():
            wire.join(tap)
        self.product(term, wires, frame, path)
        return tap

    def role(self, role: str, use: Use, into: SceneNode, frame: str, path: Path) -> None:
        """Draws an operand with its role, such as the key of a delta rule."""
        self.scalars.append([])
        tap = self.operand(Term(ONE, (use,)), {leg: self.graph.leg[leg] for leg in use.legs}, frame, path)
        numbers, step = [*map(factor_words, self.scalars.pop())], producer_of(self.graph, use)
        alone = step is not None and not step.uses
        label = f"{role} = {' * '.join(numbers)}" if alone else " * ".join([*numbers, role])
        self.nodes[int(tap.id[1:])] = replace(tap, label=label)
        self.bonds.append(Bond(tap.id, into.id, use.legs))

    def box(self, step: Step, box: Box, wires: Wires, frame: str | None, path: Path, named: bool) -> None:
        first, *words = box_words(self.graph, step)
        inside = self.frame(OPS[box.kind].look, (f"{step.name}: {first}" if named else first, *words), frame, step.name)
        operands = dict(box.operands)
        if "of" in operands:
            self.boxed(box, operands.pop("of"), operands, wires, inside, path)
        else:
            self.rule(box, wires, inside, path)

    def boxed(self, box: Box, of: Use, others: Mapping[str, Use], wires: Wires, frame: str, path: Path) -> None:
        """Draws a box's operand inside its frame. Its other operands are bonded to the dot on the border."""
        inner = {leg: self.wire(leg, frame, wires) for leg in of.legs}
        self.scalars.append([])
        self.use(of, inner, frame, (*path, (0, 0)))
        self.numbers(frame, path)
        port = self.border(box.leg, wires, inner, frame, path)
        bonded = [(role, use) for role, use in others.items() if port is not None and use != of]
        for index, (role, use) in enumerate(bonded, 1):
            self.role(role, use, port, frame, (*path, (0, index)))  # type: ignore[arg-type]

    def border(self, acts: str | None, outer: Wires, inner: Wires, frame: str, path: Path) -> SceneNode | None:
        """Draws legs through the border of a box. A dot marks the leg that it acts along, which can end or change."""
        for leg in outer:
            if leg in inner and leg != acts:
                self.passage("pass", (inner[leg], outer[leg]), frame, path)
        if acts is None:
            return None
        ended = [wire for leg, wire in inner.items() if leg not in outer or leg == acts]
        started = [wire for leg, wire in outer.items() if leg not in inner or leg == acts]
        return self.passage("port", (*ended, *started), frame, path)

    def passage(self, look: str, wires: Iterable[Wire], frame: str, path: Path) -> SceneNode:
        node = self.node(look, "", frame, (*path, LAST), border=True)
        for wire in wires:
            wire.join(node)
        return node

    def rule(self, box: Box, wires: Wires, frame: str, path: Path) -> None:
        """Draws a box without an `of` operand, such as the delta rule."""
        rule = self.node("rule", box.kind, frame, (*path, (1, 0)))
        for index, (role, use) in enumerate(box.operands):
            self.role(role, use, rule, frame, (*path, (0, index)))
        inner = {leg: self.wire(leg, frame, wires) for leg in wires}
        self.source(rule, inner)
        self.border(None, wires, inner, frame, path)


def _legs(uses: Iterable[Use]) -> list[str]:
    return list(dict.fromkeys(leg for use in uses for leg in use.legs))


def _arranged(graph: Graph, factors: tuple[Use, ...], wires: Wires) -> list[tuple[int, Use]]:
    """Factors with their distance from the data of the product: steps and inputs have 0, their neighbours 1, and so on.

    At equal distance, factors with the query leg come first and factors with the key leg last.
    """
    data = {*graph.step, *(tensor.name for tensor in graph.of_role("input"))}
    distance = [0 if use.name in data else None for use in factors]
    if factors and 0 not in distance:
        distance[0] = 0
    for step in range(len(factors)):
        near = {
            leg for use, d in zip(factors, distance, strict=True) if d is not None and d <= step for leg in use.legs
        }
        distance = [
            step + 1 if d is None and near & set(use.legs) else d for use, d in zip(factors, distance, strict=True)
        ]

    def side(use: Use) -> int:
        legs = {wires[leg].leg.name for leg in use.legs}
        return (graph.key in legs) - (graph.query in legs)  # -1: left, 1: right

    rows = [(len(factors) if d is None else d, use) for d, use in zip(distance, factors, strict=True)]
    return sorted(rows, key=lambda row: (row[0], side(row[1])))
