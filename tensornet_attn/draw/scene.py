"""A picture before layout: nodes, nested frames, wires between nodes, bonds (bundles of legs); what is drawn apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tensornet_attn.graph.model import Graph, Leg, Step

COPY = 2  # nodes that may be drawn again at each use
PICTURE = 64  # nodes of one connected picture
DEPTH = 16  # steps drawn inside one another
# Where a node stands in the diagram: at each product on the way, its distance from the data and its factor's place.
Path = tuple[tuple[int, int], ...]
LAST = (1 << 20, 0)  # after every factor: the lower border of a frame
END = (1 << 21, 0)  # after that: open ends


@dataclass(frozen=True)
class Frame:
    """A border around part of a picture; `look` is softmax, box, step (a named product or sum), term or part."""

    id: str
    parent: str | None
    look: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """`look` is a tensor's role or frozen; step, number, ones, plus, rule; or what wires need: port, pass, tap, open,
    leg, point.
    """

    id: str
    look: str
    label: str
    frame: str | None
    path: Path
    border: bool = False  # stands on the lower border of its frame
    core: bool = False  # a tensor that mixes scores


@dataclass
class Wire:
    """A leg in the picture and the nodes of one frame that it joins: two or more once the picture is finished."""

    leg: Leg
    frame: str | None
    named: bool = True  # False where the leg goes on outside its frame and has its name there
    ends: list[str] = field(default_factory=list)

    def join(self, node: Node) -> None:
        self.ends.append(node.id)


@dataclass(frozen=True)
class Bond:
    """All legs of an operand at once, into the node that combines operands."""

    tail: str
    head: str
    legs: tuple[str, ...]


@dataclass(frozen=True)
class Scene:
    name: str
    frames: tuple[Frame, ...]
    nodes: tuple[Node, ...]
    wires: tuple[Wire, ...]
    bonds: tuple[Bond, ...]
    order: tuple[str, ...]  # names of legs from left to right: query, then others as declared, then key
    sequences: tuple[str | None, str | None]  # the query leg, the key leg

    @cached_property
    def held(self) -> dict[str | None, list[Node]]:
        """The nodes of each frame itself, None for those in no frame."""
        held: dict[str | None, list[Node]] = {None: [], **{frame.id: [] for frame in self.frames}}
        for node in self.nodes:
            held[node.frame].append(node)
        return held

    @cached_property
    def inner(self) -> dict[str | None, list[Frame]]:
        """The frames that stand in each frame itself."""
        inner: dict[str | None, list[Frame]] = {None: [], **{frame.id: [] for frame in self.frames}}
        for frame in self.frames:
            inner[frame.parent].append(frame)
        return inner

    def below(self, frame: str) -> Iterator[Node]:
        """Every node inside a frame, at any depth."""
        yield from self.held[frame]
        for inner in self.inner[frame]:
            yield from self.below(inner.id)


def drawn_apart(graph: Graph) -> frozenset[str]:
    """Names of the steps that get a picture of their own; so every step is drawn once, or is small."""
    uses = Counter(use.name for _, use in graph.uses())
    roots = graph.results
    nodes: dict[str, int] = {}
    depth: dict[str, int] = {}
    for step in graph.steps:
        nodes[step.name], depth[step.name] = _nodes(step, nodes), _depth(step, depth)
        times = uses[step.name] + (step.name in roots)
        many = times > 1 and nodes[step.name] > COPY
        if many or nodes[step.name] > PICTURE or depth[step.name] >= DEPTH:
            nodes[step.name], depth[step.name] = 1, 0
    return frozenset(name for name, count in nodes.items() if depth[name] == 0)


def _nodes(step: Step, known: dict[str, int]) -> int:
    return max(1, sum(known.get(use.name, 1) for use in step.op.uses))


def _depth(step: Step, known: dict[str, int]) -> int:
    return 1 + max((known.get(use.name, 0) for use in step.op.uses), default=0)
