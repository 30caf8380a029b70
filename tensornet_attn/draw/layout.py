"""Places for everything in a picture: each frame is laid out by itself, then stands as one block in what is around it.

Wires keep to the rows and channels of their frame, so no wire runs through a text, a node or a border.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tensornet_attn.draw.bends import STUB, Curves
from tensornet_attn.draw.layers import Edge
from tensornet_attn.draw.levels import Level, level_of
from tensornet_attn.draw.order import ordered
from tensornet_attn.draw.places import Layout, Spot
from tensornet_attn.draw.scene import Scene
from tensornet_attn.draw.sizes import Size, label_size, node_size, title_size
from tensornet_attn.draw.spread import GAP, spread

MARGIN = 7.0  # between a frame and what it holds
CHANNEL = 9.0  # between two rows whose wires are straight
STEP = 6.0  # more for wires aslant, in steps, so that blocks alike have one height
TALL = 40.0  # rows with blocks, in which other things stand at the top


class Places:
    """Lays a scene out, inner frames first."""

    def __init__(self, scene: Scene, edges: Iterable[Edge]):
        self.scene = scene
        self.home = {node.id: node for node in scene.nodes}
        self.up = {frame.id: frame.parent for frame in scene.frames}
        self.frames = {frame.id: frame for frame in scene.frames}
        self.legs = self.leaving()
        self.edges: dict[str | None, list[Edge]] = defaultdict(list)
        for edge in edges:
            self.edges[edge.frame].append(edge)

    def part(self, frame: str, room: float) -> Layout:
        """A frame with all that it holds, no wider than the room if that can be; its upper left corner is at 0, 0."""
        room -= 2 * MARGIN
        blocks = {inner.id: self.part(inner.id, room) for inner in self.scene.inner[frame]}
        inside = self.inside(frame, blocks, room)
        own = self.frames[frame]
        wide, high = title_size(own)
        top = high + (6.0 if high else MARGIN)
        width = max(inside.width + 2 * MARGIN, wide + 2 * MARGIN)
        bordered = any(node.border for node in self.scene.held[frame])
        height = top + inside.height + (0.0 if bordered else MARGIN)
        made = Layout(width, height)
        made.frames[frame] = Spot(width / 2, height / 2, width, height)
        if high:
            x = wide / 2 + 6 if own.look in ("step", "part") else width / 2
            made.titles[frame] = Spot(x, 3 + high / 2, wide, high)
        made.take(inside, (width - inside.width) / 2, top)
        return made

    def inside(self, frame: str, blocks: dict[str, Layout], room: float) -> Layout:
        """What a frame holds, without its border."""
        nodes = self.scene.held[frame]
        border = sorted((n for n in nodes if n.border), key=lambda node: self.legs.get(node.id, 0))
        last = border or ([n for n in nodes if n.look == "tap"] if self.frames[frame].look == "term" else [])
        sizes = {name: (block.width, block.height) for name, block in blocks.items()}
        sizes |= {node.id: node_size(node) for node in nodes}
        found = [(edge, self.thing(edge.tail, frame), self.thing(edge.head, frame)) for edge in self.edges[frame]]
        things = {thing: size[0] + GAP for thing, size in sizes.items() if thing not in {n.id for n in last}}
        level = level_of(things, [n.id for n in last], found, room)
        sizes |= {name: label_size(edge.label) for name, edge in level.labels.items()}
        sizes |= dict.fromkeys(level.corners, (0.0, 0.0))
        return self.placed(level, sizes, blocks, bool(border))

    def thing(self, node: str, frame: str | None) -> str:
        """A node of a frame itself, or the inner frame that it stands in."""
        inside, here = node, self.home[node].frame
        while here is not None and here != frame:
            inside, here = here, self.up[here]
        return inside

    def leaving(self) -> dict[str, int]:
        """By node on a border, from left to right, the leg there; where it changes its name, the one outside."""
        found: dict[str, int] = {}
        for wire in self.scene.wires:
            for end in wire.ends:
                if end not in found or wire.frame != self.home[end].frame:
                    found[end] = self.scene.order.index(wire.leg.name)
        return found

    def side(self, legs: set[str]) -> int:
        """-1 for the left, with the query leg, 1 for the right, with the key leg."""
        query, key = self.scene.sequences
        return (key in legs) - (query in legs)

    def placed(self, level: Level, sizes: dict[str, Size], blocks: dict[str, Layout], bordered: bool) -> Layout:
        """Every thing of a level in its row, and the wires between the rows."""
        offsets = {n: spot.x - block.width / 2 for block in blocks.values() for n, spot in block.nodes.items()}
        ports = {n: spot.x / block.width for block in blocks.values() for n, spot in block.nodes.items()}
        legs: dict[str, set[str]] = defaultdict(set)
        for arrow in level.arrows:
            if arrow.edge.wire >= 0:
                for end in (arrow.tail, arrow.head):
                    legs[end].add(self.scene.wires[arrow.edge.wire].leg.name)
        sides = {thing: self.side(legs[thing]) for row in level.rows for thing in row}
        start = [sorted(row, key=lambda thing: sides[thing]) for row in level.rows]
        if bordered:
            start[-1] = list(level.rows[-1])  # the legs' own order
        rows = ordered(start, level.arrows, ports, sides, fixed=bordered)
        widths = {thing: sizes[thing][0] for row in rows for thing in row}
        x = spread(rows, level, widths, offsets)
        made = Layout(width=max((x[t] + widths[t] / 2 for t in x), default=0.0))
        bands = self.down(made, level, rows, sizes, blocks, x)
        curves = Curves(made, self.home, level, x, bands)
        made.curves += [curves.curve(chain) for chain in level.chains]
        return made

    def down(
        self,
        made: Layout,
        level: Level,
        rows: list[list[str]],
        sizes: dict[str, Size],
        blocks: dict[str, Layout],
        x: dict[str, float],
    ) -> dict[str, tuple[float, float]]:
        """Places from the first row to the last; the top and the bottom of the row of each thing."""
        into = {arrow.head for arrow in level.arrows}
        bands: dict[str, tuple[float, float]] = {}
        y = 0.0
        for index, row in enumerate(rows):
            if index:
                y += self.channel(level, rows[index - 1], x, made)
            on_border = any(thing in self.home and self.home[thing].border for thing in row)
            high = 0.0 if on_border else max(sizes[thing][1] for thing in row)
            for thing in row:
                bands[thing] = (y, y + high)
                wide, own = sizes[thing]
                middle = y + (high / 2 if on_border or high < TALL else own / 2)
                if thing not in into and not on_border:  # wires go down only
                    middle = y + high - own / 2
                spot = Spot(x[thing], middle, wide, own)
                if thing in blocks:
                    made.take(blocks[thing], x[thing] - wide / 2, middle - own / 2)
                elif thing in level.labels:
                    made.labels[thing] = (spot, level.labels[thing])
                elif thing not in level.corners:
                    made.nodes[thing] = spot
            y += high
        made.height = y
        return bands

    def channel(self, level: Level, row: list[str], x: dict[str, float], made: Layout) -> float:
        """Room below a row; more where wires run aslant."""
        below = [arrow for arrow in level.arrows if arrow.tail in row]
        slants = [abs((made.nodes[a.port].x if a.port else x[a.tail]) - x[a.head]) for a in below]
        return CHANNEL + STEP * min(4, round(max(slants, default=0.0) / 26))


def layout_of(scene: Scene, edges: Iterable[Edge], width: float) -> Layout:
    """The parts of a picture, in lines no longer than a width unless one part is."""
    places = Places(scene, edges)
    made, x, y, high = Layout(), 0.0, 0.0, 0.0
    for frame in scene.inner[None]:
        part = places.part(frame.id, width)
        if x and x + part.width > width:
            x, y = 0.0, y + high + STUB + GAP
            high = 0.0
        made.take(part, x, y)
        made.width, high = max(made.width, x + part.width), max(high, part.height)
        x += part.width + GAP
    made.height = y + high + STUB
    return made
