"""Layout of a picture. Each frame is laid out by itself, and is one block in the frame around it.

Wires are vertical at their ends and at rows that they pass, and bend only between rows, so that they cross no text,
node or border. Positions are in points, and y grows downwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import sqrt

from tensornet_attn.draw.levels import GAP, Arrow, Level, LevelOrder, level_of, spread
from tensornet_attn.draw.looks import FIXED, FLAT, Size, label_size, node_size, title_size
from tensornet_attn.draw.scene import Edge, Scene, SceneNode

Point = tuple[float, float]


@dataclass(frozen=True)
class Rectangle:
    """A rectangle with its centre at x, y; y grows downwards."""

    x: float
    y: float
    width: float
    height: float

    def moved(self, x: float, y: float) -> Rectangle:
        return replace(self, x=self.x + x, y=self.y + y)

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2


@dataclass(frozen=True)
class Spline:
    """A segment of an edge from `tail` to `head` (nodes or a label), as 3 n + 1 Bezier points."""

    edge: Edge
    tail: str
    head: str
    points: tuple[Point, ...]


@dataclass
class Layout:
    width: float = 0.0
    height: float = 0.0
    nodes: dict[str, Rectangle] = field(default_factory=dict)
    frames: dict[str, Rectangle] = field(default_factory=dict)
    titles: dict[str, Rectangle] = field(default_factory=dict)
    labels: dict[str, tuple[Rectangle, Edge]] = field(default_factory=dict)
    curves: list[Spline] = field(default_factory=list)

    def take(self, inner: Layout, x: float, y: float) -> None:
        """Adds the content of another layout, moved by x and y."""
        self.nodes |= {name: spot.moved(x, y) for name, spot in inner.nodes.items()}
        self.frames |= {name: spot.moved(x, y) for name, spot in inner.frames.items()}
        self.titles |= {name: spot.moved(x, y) for name, spot in inner.titles.items()}
        self.labels |= {name: (spot.moved(x, y), edge) for name, (spot, edge) in inner.labels.items()}
        self.curves += [replace(curve, points=tuple((a + x, b + y) for a, b in curve.points)) for curve in inner.curves]


STUB = 12.0  # length of open ends below their frame
CHANNEL = 9.0  # distance of rows with straight wires
STEP = 6.0  # additional distance for slanted wires, in steps, so that equal blocks have equal heights
TALL = 40.0  # minimum height of rows in which vertices are aligned at the top


@dataclass
class Placed:
    """A level with the order of its rows and the horizontal position of each vertex. Computes all other positions."""

    level: Level
    rows: list[list[str]]
    sizes: dict[str, Size]
    blocks: dict[str, Layout]
    home: dict[str, SceneNode]
    x: dict[str, float]

    def __post_init__(self) -> None:
        self.result_layout = Layout(
            width=max((self.x[vertex] + self.sizes[vertex][0] / 2 for vertex in self.x), default=0.0)
        )
        self.bands: dict[str, tuple[float, float]] = {}  # the top and the bottom of the row of each vertex
        self.out: dict[str, list[Arrow]] = defaultdict(list)
        self.into: dict[str, list[Arrow]] = defaultdict(list)
        for arrow in self.level.arrows:
            self.out[arrow.port or arrow.tail].append(arrow)
            self.into[arrow.head].append(arrow)

    def layout(self) -> Layout:
        """Places rows from top to bottom, then wires."""
        layout, level, sizes, blocks, x = self.result_layout, self.level, self.sizes, self.blocks, self.x
        y = 0.0
        for index, row in enumerate(self.rows):
            if index:  # distance to the previous row, larger for slanted wires
                above = [arrow for arrow in level.arrows if arrow.tail in self.rows[index - 1]]
                slants = [abs((layout.nodes[a.port].x if a.port else x[a.tail]) - x[a.head]) for a in above]
                y += CHANNEL + STEP * min(4, round(max(slants, default=0.0) / 26))
            on_border = any(vertex in self.home and self.home[vertex].border for vertex in row)
            row_height = 0.0 if on_border else max(sizes[vertex][1] for vertex in row)
            for vertex in row:
                self.bands[vertex] = (y, y + row_height)
                width, height = sizes[vertex]
                middle = y + (row_height / 2 if on_border or row_height < TALL else height / 2)
                if vertex not in self.into and not on_border:  # bottom-aligned, because all its wires go down
                    middle = y + row_height - height / 2
                spot = Rectangle(x[vertex], middle, width, height)
                if vertex in blocks:
                    layout.take(blocks[vertex], x[vertex] - width / 2, middle - height / 2)
                elif vertex in level.labels:
                    layout.labels[vertex] = (spot, level.labels[vertex])
                elif vertex not in level.corners:
                    layout.nodes[vertex] = spot
            y += row_height
        layout.height = y
        layout.curves += [self.curve(chain) for chain in level.chains]
        return layout

    def curve(self, chain: tuple[Arrow, ...]) -> Spline:
        """The curve of a chain of arrows, from its first to its last node."""
        x, bands = self.x, self.bands
        tail, head = chain[0].port or chain[0].tail, chain[-1].head
        beside = sorted(self.out[tail], key=lambda a: x[a.head])
        points = [self.at(tail, chain[0], beside, 1)]
        if bands[chain[0].tail][1] > points[0][1] + 1:
            points += _line(points[-1], (points[-1][0], bands[chain[0].tail][1]))
        for arrow in chain[:-1]:
            top, bottom = bands[arrow.head]
            points += _bend(points[-1], (x[arrow.head], top))
            points += _line(points[-1], (x[arrow.head], bottom))
        beside = sorted(self.into[head], key=lambda a: self.result_layout.nodes[a.port].x if a.port else x[a.tail])
        end = self.at(head, chain[-1], beside, -1)
        top = min(bands[head][0], end[1])
        points += _bend(points[-1], (end[0], top))
        if end[1] > top + 1:
            points += _line(points[-1], end)
        if head in self.home and self.home[head].look == "open":
            points += _line(points[-1], (end[0], end[1] + STUB))
        return Spline(chain[0].edge, tail, head, tuple(_joined(points)))

    def at(self, node: str, arrow: Arrow, beside: list[Arrow], direction: int) -> Point:
        """The point where an arrow meets the outline of a node, below (`direction` 1) or above (-1).

        `beside` lists all arrows there from left to right. They are spaced, except at nodes of a leg, where they meet.
        """
        spot = (
            self.result_layout.nodes[node] if node in self.result_layout.nodes else self.result_layout.labels[node][0]
        )
        look, count = self.home[node].look if node in self.home else "leg", len(beside)
        shift, reach = 0.0, spot.height / 2
        if count > 1 and look not in ("leg", "point", "port", "pass"):
            shift = min(8.0, spot.width * 0.62 / (count - 1)) * (beside.index(arrow) - (count - 1) / 2)
        if look not in (*FLAT, *FIXED, "leg", "ones") and spot.width:
            reach *= sqrt(1 - (2 * shift / spot.width) ** 2)
        return spot.x + shift, spot.y + direction * reach


def _bend(start: Point, end: Point) -> list[Point]:
    """A curve with vertical ends."""
    middle = (start[1] + end[1]) / 2
    return [(start[0], middle), (end[0], middle), end]


def _joined(points: list[Point]) -> list[Point]:
    """Merges consecutive vertical pieces of a curve."""
    merged = points[:1]
    for index in range(1, len(points), 3):
        piece = points[index : index + 3]
        if all(abs(x - points[index - 1][0]) < 0.05 for x, _ in [*merged[-4:], *piece]) and len(merged) > 1:
            merged[-3:] = _line(merged[-4], piece[-1])
        else:
            merged += piece
    return merged


def _line(start: Point, end: Point) -> list[Point]:
    third = ((end[0] - start[0]) / 3, (end[1] - start[1]) / 3)
    return [(start[0] + third[0], start[1] + third[1]), (start[0] + 2 * third[0], start[1] + 2 * third[1]), end]


MARGIN = 7.0  # between a frame and its content


class ScenePlacement:
    """Lays a scene out, inner frames first."""

    def __init__(self, scene: Scene, edges: Iterable[Edge]):
        self.scene = scene
        self.home = {node.id: node for node in scene.nodes}
        self.frames = {frame.id: frame for frame in scene.frames}
        self.legs = self.leaving()
        self.edges: dict[str | None, list[Edge]] = defaultdict(list)
        for edge in edges:
            self.edges[edge.frame].append(edge)

    def part(self, frame: str, room: float) -> Layout:
        """The layout of a frame and its content, with the upper left corner at 0, 0 and, if possible, within `room`."""
        room -= 2 * MARGIN
        blocks = {inner.id: self.part(inner.id, room) for inner in self.scene.inner[frame]}
        inside = self.inside(frame, blocks, room)
        outline = self.frames[frame]
        title_width, title_height = title_size(outline)
        top = title_height + (6.0 if title_height else MARGIN)
        width = max(inside.width + 2 * MARGIN, title_width + 2 * MARGIN)
        bordered = any(node.border for node in self.scene.held[frame])
        height = top + inside.height + (0.0 if bordered else MARGIN)
        layout = Layout(width, height)
        layout.frames[frame] = Rectangle(width / 2, height / 2, width, height)
        if title_height:
            x = title_width / 2 + 6 if outline.look in ("step", "part") else width / 2
            layout.titles[frame] = Rectangle(x, 3 + title_height / 2, title_width, title_height)
        layout.take(inside, (width - inside.width) / 2, top)
        return layout

    def inside(self, frame: str, blocks: dict[str, Layout], room: float) -> Layout:
        """The layout of a frame's content, without the border."""
        nodes = self.scene.held[frame]
        border = sorted((node for node in nodes if node.border), key=lambda node: self.legs.get(node.id, 0))
        last = border or ([node for node in nodes if node.look == "tap"] if self.frames[frame].look == "term" else [])
        sizes = {name: (block.width, block.height) for name, block in blocks.items()}
        sizes |= {node.id: node_size(node) for node in nodes}
        ends = [(edge, self.thing(edge.tail, frame), self.thing(edge.head, frame)) for edge in self.edges[frame]]
        widths = {vertex: size[0] + GAP for vertex, size in sizes.items() if vertex not in {node.id for node in last}}
        level = level_of(widths, [node.id for node in last], ends, room)
        sizes |= {name: label_size(edge.label) for name, edge in level.labels.items()}
        sizes |= dict.fromkeys(level.corners, (0.0, 0.0))
        return self.placed(level, sizes, blocks, bool(border))

    def thing(self, node: str, frame: str | None) -> str:
        """The node itself if it is directly in the frame, or else the inner frame that contains it."""
        inside, enclosing = node, self.home[node].frame
        while enclosing is not None and enclosing != frame:
            inside, enclosing = enclosing, self.frames[enclosing].parent
        return inside

    def leaving(self) -> dict[str, int]:
        """The order of legs from left to right, by node. At a border where a leg changes its name, the outer counts."""
        positions: dict[str, int] = {}
        for wire in self.scene.wires:
            for end in wire.ends:
                if end not in positions or wire.frame != self.home[end].frame:
                    positions[end] = self.scene.order.index(wire.leg.name)
        return positions

    def placed(self, level: Level, sizes: dict[str, Size], blocks: dict[str, Layout], bordered: bool) -> Layout:
        """Orders the rows of a level and places vertices and wires."""
        offsets = {name: spot.x - block.width / 2 for block in blocks.values() for name, spot in block.nodes.items()}
        ports = {name: spot.x / block.width for block in blocks.values() for name, spot in block.nodes.items()}
        legs: dict[str, set[str]] = defaultdict(set)
        for arrow in level.arrows:
            if arrow.edge.wire >= 0:
                for end in (arrow.tail, arrow.head):
                    legs[end].add(self.scene.wires[arrow.edge.wire].leg.name)
        query, key = self.scene.sequences  # left and right
        sides = {vertex: (key in legs[vertex]) - (query in legs[vertex]) for row in level.rows for vertex in row}
        start = [sorted(row, key=lambda vertex: sides[vertex]) for row in level.rows]
        if bordered:
            start[-1] = list(level.rows[-1])  # the legs' own order
        rows = LevelOrder(start, level.arrows, ports, sides, fixed=bordered).best()
        widths = {vertex: sizes[vertex][0] for row in rows for vertex in row}
        return Placed(level, rows, sizes, blocks, self.home, spread(rows, level, widths, offsets)).layout()


def layout_of(scene: Scene, edges: Iterable[Edge], width: float) -> Layout:
    """The layout of all parts of a picture, wrapped to the width."""
    places = ScenePlacement(scene, edges)
    layout, x, y, row_height = Layout(), 0.0, 0.0, 0.0
    for frame in scene.inner[None]:
        block = places.part(frame.id, width)
        if x and x + block.width > width:
            x, y = 0.0, y + row_height + STUB + GAP
            row_height = 0.0
        layout.take(block, x, y)
        layout.width, row_height = max(layout.width, x + block.width), max(row_height, block.height)
        x += block.width + GAP
    layout.height = y + row_height + STUB
    return layout
