"""A picture before layout: nodes, nested frames, wires between nodes, and bonds (bundles of legs).

Wires become directed edges, so that a layered layout flows from data to result. Steps that are used more than once are
drawn as separate parts; small steps are copied to each use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from tensornet_attn.draw.words import leg_words
from tensornet_attn.graph.graph import Graph, Leg

COPY = 2  # maximum number of nodes of a step that is copied to each use
PICTURE = 64  # maximum number of nodes of a part
DEPTH = 16  # maximum nesting depth of inline steps
# The position of a node in the diagram: at each enclosing product, the distance from the data and the factor's index.
Path = tuple[tuple[int, int], ...]
LAST = (1 << 20, 0)  # after every factor: the lower border of a frame
END = (1 << 21, 0)  # after that: open ends


@dataclass(frozen=True)
class Frame:
    """A border around part of a picture. `look`: softmax, box, step (a named product or sum), term or part."""

    id: str
    parent: str | None
    look: str
    words: tuple[str, ...]
    kept: bool = False  # by a decoding cache
    fill: str = ""  # of an overlay


@dataclass(frozen=True)
class SceneNode:
    """A node. `look` is a tensor's role or frozen; step, number, ones, plus or rule; or a helper of wires: port, pass,
    tap, open, leg or point; or kept, in legends.
    """

    id: str
    look: str
    label: str
    frame: str | None
    path: Path
    border: bool = False  # on the lower border of its frame
    core: bool = False  # a tensor that mixes scores


@dataclass
class Wire:
    """A leg and the nodes of one frame that it joins: two or more in a finished picture."""

    leg: Leg
    frame: str | None
    named: bool = True  # False if the leg continues outside its frame, and has its name there
    ends: list[str] = field(default_factory=list)

    def join(self, node: SceneNode) -> None:
        self.ends.append(node.id)


@dataclass(frozen=True)
class Bond:
    """The bundle of all legs of an operand to the node that combines operands."""

    tail: str
    head: str
    legs: tuple[str, ...]


@dataclass(frozen=True)
class Scene:
    name: str
    frames: tuple[Frame, ...]
    nodes: tuple[SceneNode, ...]
    wires: tuple[Wire, ...]
    bonds: tuple[Bond, ...]
    order: tuple[str, ...]  # names of legs from left to right: query, then others as declared, then key
    sequences: tuple[str | None, str | None]  # the query leg, the key leg

    @cached_property
    def held(self) -> dict[str | None, list[SceneNode]]:
        """The nodes directly in each frame; None is the key of nodes outside frames."""
        held: dict[str | None, list[SceneNode]] = {None: [], **{frame.id: [] for frame in self.frames}}
        for node in self.nodes:
            held[node.frame].append(node)
        return held

    @cached_property
    def inner(self) -> dict[str | None, list[Frame]]:
        """The frames directly in each frame."""
        inner: dict[str | None, list[Frame]] = {None: [], **{frame.id: [] for frame in self.frames}}
        for frame in self.frames:
            inner[frame.parent].append(frame)
        return inner

    def below(self, frame: str) -> Iterator[SceneNode]:
        """Every node inside a frame, at any depth."""
        yield from self.held[frame]
        for inner in self.inner[frame]:
            yield from self.below(inner.id)


def drawn_apart(graph: Graph) -> frozenset[str]:
    """Names of the steps that are drawn as separate parts. All other steps are used once, or are small."""
    uses = Counter(use.name for _, use in graph.uses())
    nodes: dict[str, int] = {}
    depth: dict[str, int] = {}
    for step in graph.steps:
        nodes[step.name] = max(1, sum(nodes.get(use.name, 1) for use in step.uses))
        depth[step.name] = 1 + max((depth.get(use.name, 0) for use in step.uses), default=0)
        times = uses[step.name] + (step.name in graph.results)
        separate = times > 1 and nodes[step.name] > COPY
        if separate or nodes[step.name] > PICTURE or depth[step.name] >= DEPTH:
            nodes[step.name], depth[step.name] = 1, 0
    return frozenset(name for name, count in nodes.items() if depth[name] == 0)


@dataclass(frozen=True)
class Edge:
    """A wire, or one arm of a wire that joins three or more nodes. The ends of a `level` edge are in the same row."""

    tail: str
    head: str
    label: str = ""
    look: str = "wire"  # wire, arm or bond
    level: bool = False
    frame: str | None = None  # the frame that contains it; it crosses only borders of inner frames, at nodes there
    wire: int = -1  # index in the wires of the scene, the same for all arms; -1 for a bond


def edges(scene: Scene) -> tuple[Scene, tuple[Edge, ...]]:
    """Adds a node for each wire that joins three or more nodes. Returns the scene and its edges from top to bottom."""
    ranks, homes = _ranks(scene), {node.id: node for node in scene.nodes}
    nodes = list(scene.nodes)
    all_edges = [Edge(b.tail, b.head, " ".join(b.legs), "bond", frame=homes[b.head].frame) for b in scene.bonds]
    bundles: dict[tuple[str, str], list[str]] = {}  # legs from a step directly to a tap
    for index, wire in enumerate(scene.wires):
        label = leg_words(wire.leg) if wire.named else ""
        ends = sorted((homes[end] for end in wire.ends), key=lambda end: (_place(end, wire), ranks[end.id]))
        if [end.look for end in ends] == ["step", "tap"]:
            bundles.setdefault((ends[0].id, ends[1].id), []).append(wire.leg.name)
        elif len(ends) == 2 and _place(ends[1], wire) > 0:
            tail, head = (end.id for end in ends)
            level = _place(ends[1], wire) == 1 and not _distance(ends[0].path, ends[1].path)
            all_edges.append(Edge(tail, head, label, level=level, frame=wire.frame, wire=index))
        else:
            point = SceneNode(f"n{len(nodes)}", "leg" if label else "point", label, wire.frame, ())
            nodes.append(point)
            cut = _cut(ends, wire, ranks)  # arms above and below the point
            arms = [(end.id, point.id) for end in ends[:cut]] + [(point.id, end.id) for end in ends[cut:]]
            all_edges += [Edge(*arm, look="arm", frame=point.frame, wire=index) for arm in arms]
    all_edges += [Edge(*pair, " ".join(legs), "bond", frame=homes[pair[1]].frame) for pair, legs in bundles.items()]
    return replace(scene, nodes=tuple(nodes)), tuple(all_edges)


def _place(end: SceneNode, wire: Wire) -> int:
    """0 if the end is the result of an inner part, 2 if the leg leaves its frame there, otherwise 1."""
    if end.look in ("open", "tap") or (end.border and end.frame == wire.frame):
        return 2
    return 0 if end.border or end.look in ("plus", "rule") else 1


def _cut(ends: list[SceneNode], wire: Wire, ranks: dict[str, int]) -> int:
    """The number of ends above the point: results of inner parts, and ends that are not below them."""
    incoming = [ranks[end.id] for end in ends if _place(end, wire) == 0]
    between = [ranks[end.id] for end in ends if _place(end, wire) == 1]
    if incoming:
        return len(incoming) + sum(rank <= max(incoming) for rank in between)
    gaps = [after - before for before, after in pairwise(between)]
    return gaps.index(max(gaps)) + 1 if gaps and max(gaps) > 0 else len(between)


def _ranks(scene: Scene) -> dict[str, int]:
    """The length of the longest path to each node along directed wires."""
    below: dict[str, list[tuple[str, int]]] = defaultdict(list)
    homes = {node.id: node for node in scene.nodes}
    for wire in scene.wires:
        step = 1 if len(wire.ends) == 2 else 2
        ends = [homes[end] for end in wire.ends]
        for upper in ends:
            below[upper.id] += [(lower.id, step) for lower in ends if _above(upper, lower, wire)]
    for tail, head in [(bond.tail, bond.head) for bond in scene.bonds] + _borders(scene):
        below[tail].append((head, 1))
    ranks = dict.fromkeys(homes, 0)
    for node in sorted(scene.nodes, key=lambda n: n.path):
        for successor, step in below[node.id]:
            ranks[successor] = max(ranks[successor], ranks[node.id] + step)
    return ranks


def _above(first: SceneNode, second: SceneNode, wire: Wire) -> bool:
    """Whether the first end of a wire is above the second. This is always consistent with the order of paths."""
    if first.path >= second.path:
        return False
    first_place, second_place = _place(first, wire), _place(second, wire)
    return (
        first_place < second_place
        if 2 in (first_place, second_place)
        else second_place == 1 and _distance(first.path, second.path)
    )


def _distance(first: Path, second: Path) -> bool:
    """Whether two paths first differ in the distance from the data."""
    parting = next((pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]), ((0, 0), (0, 0)))
    return parting[0][0] != parting[1][0]


def _borders(scene: Scene) -> list[tuple[str, str]]:
    """Pairs of each node inside a frame and each node on the frame's lower border; inner frames come first."""
    on = {frame.id: [node for node in scene.held[frame.id] if node.border] for frame in reversed(scene.frames)}
    bordered = [(frame, nodes, {node.id for node in nodes}) for frame, nodes in on.items() if nodes]
    return [
        (n.id, b.id) for frame, nodes, ids in bordered for n in scene.below(frame) if n.id not in ids for b in nodes
    ]
