"""A picture before layout: nodes, nested frames, wires between nodes, bonds (bundles of legs); and what is above what.

Wires become directed edges, so that a layered layout flows from data to result. Steps that are used more than once are
drawn apart, unless so small that each use gets a copy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from tensornet_attn.draw.words import leg_words
from tensornet_attn.graph.model import Graph, Leg

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
    kept: bool = False  # by a decoding cache
    fill: str = ""  # of an overlay


@dataclass(frozen=True)
class Node:
    """`look` is a tensor's role or frozen; step, number, ones, plus, rule; or what wires need: port, pass, tap, open,
    leg, point; of a legend, kept.
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
    nodes: dict[str, int] = {}
    depth: dict[str, int] = {}
    for step in graph.steps:
        nodes[step.name] = max(1, sum(nodes.get(use.name, 1) for use in step.op.uses))
        depth[step.name] = 1 + max((depth.get(use.name, 0) for use in step.op.uses), default=0)
        times = uses[step.name] + (step.name in graph.results)
        many = times > 1 and nodes[step.name] > COPY
        if many or nodes[step.name] > PICTURE or depth[step.name] >= DEPTH:
            nodes[step.name], depth[step.name] = 1, 0
    return frozenset(name for name, count in nodes.items() if depth[name] == 0)


@dataclass(frozen=True)
class Edge:
    """A wire, or one arm of a wire that joins three or more. `level` edges have both ends side by side."""

    tail: str
    head: str
    label: str = ""
    look: str = "wire"  # wire, arm or bond
    level: bool = False
    frame: str | None = None  # where it stands; it crosses no more than the borders of inner frames, at a node there
    wire: int = -1  # its place among the wires of the scene, the same for all arms; -1 for a bond


def edges(scene: Scene) -> tuple[Scene, tuple[Edge, ...]]:
    """The scene with a node for each leg that joins three or more, and its edges from above to below."""
    ranks, homes = _ranks(scene), {node.id: node for node in scene.nodes}
    nodes = list(scene.nodes)
    found = [Edge(b.tail, b.head, " ".join(b.legs), "bond", frame=homes[b.head].frame) for b in scene.bonds]
    bundles: dict[tuple[str, str], list[str]] = {}  # all legs of a step that go straight to a tap
    for index, wire in enumerate(scene.wires):
        label = leg_words(wire.leg) if wire.named else ""
        ends = sorted((homes[end] for end in wire.ends), key=lambda end: (_place(end, wire), ranks[end.id]))
        if [end.look for end in ends] == ["step", "tap"]:
            bundles.setdefault((ends[0].id, ends[1].id), []).append(wire.leg.name)
        elif len(ends) == 2 and _place(ends[1], wire) > 0:
            tail, head = (end.id for end in ends)
            level = _place(ends[1], wire) == 1 and not _distance(ends[0].path, ends[1].path)
            found.append(Edge(tail, head, label, level=level, frame=wire.frame, wire=index))
        else:
            point = Node(f"n{len(nodes)}", "leg" if label else "point", label, wire.frame, ())
            nodes.append(point)
            cut = _cut(ends, wire, ranks)  # wires come into the point from above, and go out of it
            arms = [(end.id, point.id) for end in ends[:cut]] + [(point.id, end.id) for end in ends[cut:]]
            found += [Edge(*arm, look="arm", frame=point.frame, wire=index) for arm in arms]
    found += [Edge(*pair, " ".join(legs), "bond", frame=homes[pair[1]].frame) for pair, legs in bundles.items()]
    return replace(scene, nodes=tuple(nodes)), tuple(found)


def _place(end: Node, wire: Wire) -> int:
    """0 where the result of an inner part comes in, 2 where the leg leaves its frame, 1 between."""
    if end.look in ("open", "tap") or (end.border and end.frame == wire.frame):
        return 2
    return 0 if end.border or end.look in ("plus", "rule") else 1


def _cut(ends: list[Node], wire: Wire, ranks: dict[str, int]) -> int:
    """How many ends stand above the point: results that come in, and what is not below those."""
    incoming = [ranks[end.id] for end in ends if _place(end, wire) == 0]
    between = [ranks[end.id] for end in ends if _place(end, wire) == 1]
    if incoming:
        return len(incoming) + sum(rank <= max(incoming) for rank in between)
    gaps = [after - before for before, after in pairwise(between)]
    return gaps.index(max(gaps)) + 1 if gaps and max(gaps) > 0 else len(between)


def _ranks(scene: Scene) -> dict[str, int]:
    """The longest way down to each node along the wires that have a direction."""
    below: dict[str, list[tuple[str, int]]] = defaultdict(list)
    homes = {node.id: node for node in scene.nodes}
    for wire in scene.wires:
        step = 1 if len(wire.ends) == 2 else 2
        ends = [homes[end] for end in wire.ends]
        for one in ends:
            below[one.id] += [(other.id, step) for other in ends if _above(one, other, wire)]
    for tail, head in [(bond.tail, bond.head) for bond in scene.bonds] + _borders(scene):
        below[tail].append((head, 1))
    ranks = dict.fromkeys(homes, 0)
    for node in sorted(scene.nodes, key=lambda n: n.path):
        for other, step in below[node.id]:
            ranks[other] = max(ranks[other], ranks[node.id] + step)
    return ranks


def _above(one: Node, other: Node, wire: Wire) -> bool:
    """Whether the first stands above the second where a wire joins them; only ever along the order of paths."""
    if one.path >= other.path:
        return False
    mine, yours = _place(one, wire), _place(other, wire)
    return mine < yours if 2 in (mine, yours) else yours == 1 and _distance(one.path, other.path)


def _distance(one: Path, other: Path) -> bool:
    """Whether two paths part at different distances from the data."""
    parting = next((pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]), ((0, 0), (0, 0)))
    return parting[0][0] != parting[1][0]


def _borders(scene: Scene) -> list[tuple[str, str]]:
    """What stands inside a frame, with each node on the frame's lower border; inner frames come first."""
    on = {frame.id: [node for node in scene.held[frame.id] if node.border] for frame in reversed(scene.frames)}
    bordered = [(frame, nodes, {node.id for node in nodes}) for frame, nodes in on.items() if nodes]
    return [
        (n.id, b.id) for frame, nodes, ids in bordered for n in scene.below(frame) if n.id not in ids for b in nodes
    ]
