"""What stands above what: wires as directed edges, so that a layered layout flows from data to result."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

from tensornet_attn.draw.scene import Node, Path, Scene, Wire
from tensornet_attn.draw.words import leg_words


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
