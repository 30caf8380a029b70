"""What stands where in an SVG picture, read from the file itself, and what a reader would find at fault in it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise

from tensornet_attn.draw.looks import ROOM, text_width

SVG = "{http://www.w3.org/2000/svg}"
TOUCH = 0.5  # points that pen widths and rounding may take
FAR = 4.0  # where a label is no longer at a wire
STEPS = 12  # straight pieces of one curve
Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        return across > TOUCH and min(self.bottom, other.bottom) - max(self.top, other.top) > TOUCH

    def sides(self) -> list[tuple[Point, Point]]:
        corners = [(self.left, self.top), (self.right, self.top), (self.right, self.bottom), (self.left, self.bottom)]
        return list(pairwise([*corners, corners[0]]))

    def inner(self) -> Box:
        return Box(self.left + TOUCH, self.top + TOUCH, self.right - TOUCH, self.bottom - TOUCH)

    def holds(self, point: Point) -> bool:
        return self.left <= point[0] <= self.right and self.top <= point[1] <= self.bottom

    def distance(self, point: Point) -> float:
        across = max(self.left - point[0], point[0] - self.right, 0.0)
        return float((across**2 + max(self.top - point[1], point[1] - self.bottom, 0.0) ** 2) ** 0.5)

    def wider(self, room: float) -> Box:
        return Box(self.left - room, self.top - room, self.right + room, self.bottom + room)

    def meets(self, other: Box) -> bool:
        across = self.left <= other.right and other.left <= self.right
        return across and self.top <= other.bottom and other.top <= self.bottom


@dataclass(frozen=True)
class Thing:
    """A frame, node or label: its outline (None for text alone), its texts, and its classes in the SVG."""

    outline: Box | None
    texts: tuple[tuple[str, Box], ...]
    classes: frozenset[str]


@dataclass(frozen=True)
class Wire:
    """A piece of a wire: the class of all its pieces, and points along it."""

    name: str
    points: tuple[Point, ...]

    @cached_property
    def around(self) -> Box:
        return _around(self.points)

    def passes(self, box: Box) -> bool:
        return self.around.meets(box) and any(crosses(piece, box) for piece in pairwise(self.points))

    def distance(self, box: Box) -> float:
        """From a box to the nearest place on the wire."""
        if self.passes(box):
            return 0.0
        ends = [box.distance(point) for point in self.points]
        corners = [side[0] for side in box.sides()]
        return min([*ends, *(_from(piece, corner) for piece in pairwise(self.points) for corner in corners)])


@dataclass
class Picture:
    frames: list[Thing] = field(default_factory=list)
    nodes: list[Thing] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    title: list[tuple[str, Box]] = field(default_factory=list)

    @cached_property
    def texts(self) -> list[tuple[str, Box]]:
        return self.title + [text for thing in (*self.frames, *self.nodes) for text in thing.texts]

    def faults(self) -> list[str]:
        """Sentences, none for a clean picture."""
        return [*self.texts_that_overlap(), *self.texts_on_borders(), *self.wires_in_the_way(), *self.labels_astray()]

    def texts_that_overlap(self) -> Iterator[str]:
        for (one, box), (other, place) in combinations(self.texts, 2):
            if box.overlaps(place):
                yield f"'{one}' overlaps '{other}'"

    def texts_on_borders(self) -> Iterator[str]:
        """A text may touch no border of a frame, and no node but its own."""
        for words, box in self.texts:
            for frame in self.frames:
                assert frame.outline is not None
                if any(crosses(side, box.inner()) for side in frame.outline.sides()):
                    yield f"'{words}' stands on the border of {_name(frame)}"
            for node in self.nodes:
                if node.outline is not None and (words, box) not in node.texts and box.overlaps(node.outline):
                    yield f"'{words}' overlaps {_name(node)}"
        for node in self.nodes:
            for words, box in node.texts:
                if node.outline is not None and not _within(box, node.outline):
                    yield f"'{words}' is wider than its node"

    def wires_in_the_way(self) -> Iterator[str]:
        """No wire runs through a text, or through a node that it does not join."""
        for wire in self.wires:
            for words, box in self.texts:
                if wire.passes(box.inner()):
                    yield f"wire {wire.name} runs through '{words}'"
            for node in self.nodes:
                if node.outline is None or not wire.passes(node.outline.inner()):
                    continue
                if min(node.outline.distance(end) for end in (wire.points[0], wire.points[-1])) > 2 * TOUCH:
                    yield f"wire {wire.name} runs through {_name(node)}"

    def labels_astray(self) -> Iterator[str]:
        """A label of a leg stands nearer to a wire of its own than to any other."""
        for node in self.nodes:
            if "leg" in node.classes:
                ((words, box),) = node.texts
                own = min((wire.distance(box) for wire in self.wires if wire.name in node.classes), default=FAR)
                near = [wire for wire in self.wires if wire.around.meets(box.wider(own))]
                if own >= min((w.distance(box) for w in near if w.name not in node.classes), default=FAR):
                    yield f"'{words}' is no nearer to its own wire than to another"

    def middle(self, words: str) -> list[Point]:
        """The middles of all texts that say this, from left to right."""
        return sorted(((b.left + b.right) / 2, (b.top + b.bottom) / 2) for text, b in self.texts if text == words)


def picture_of(svg: str) -> Picture:
    root = ET.fromstring(svg)
    (graph,) = [group for group in root.iter(f"{SVG}g") if "graph" in group.get("class", "").split()]
    found = Picture(title=[_text(text) for text in graph.findall(f"{SVG}text")])
    for group in graph.iter(f"{SVG}g"):
        classes = frozenset(group.get("class", "").split())
        if "edge" in classes:
            (name,) = classes - {"edge"}
            found.wires += [Wire(name, tuple(_curve(path.get("d", "")))) for path in group.findall(f"{SVG}path")]
        elif classes & {"node", "cluster"} and len(group):
            thing = Thing(_outline(group), tuple(_text(text) for text in group.findall(f"{SVG}text")), classes)
            (found.frames if "cluster" in classes else found.nodes).append(thing)
    return found


def crosses(piece: tuple[Point, Point], box: Box) -> bool:
    """Whether a straight piece passes through a box."""
    (x, y), (dx, dy) = piece[0], (piece[1][0] - piece[0][0], piece[1][1] - piece[0][1])
    enters, leaves = 0.0, 1.0
    for start, step, low, high in ((x, dx, box.left, box.right), (y, dy, box.top, box.bottom)):
        if abs(step) < 1e-9:
            if not low <= start <= high:
                return False
            continue
        one, other = sorted(((low - start) / step, (high - start) / step))
        enters, leaves = max(enters, one), min(leaves, other)
    return enters <= leaves


def _text(element: ET.Element) -> tuple[str, Box]:
    words, size = element.text or "", float(element.get("font-size", "0"))
    x, y = float(element.get("x", "0")), float(element.get("y", "0"))
    wide = text_width(words.strip(), size) / ROOM
    left = {"middle": x - wide / 2, "start": x, "end": x - wide}[element.get("text-anchor", "start")]
    return words.strip(), Box(left, y - 0.72 * size, left + wide, y + 0.2 * size)  # from capitals to descenders


def _outline(group: ET.Element) -> Box | None:
    points: list[Point] = []
    for shape in group:
        if shape.tag == f"{SVG}ellipse":
            x, y, a, b = (float(shape.get(key, "0")) for key in ("cx", "cy", "rx", "ry"))
            points += [(x - a, y - b), (x + a, y + b)]
        elif shape.tag in (f"{SVG}polygon", f"{SVG}polyline", f"{SVG}path"):
            points += _numbers(shape.get("points") or shape.get("d", ""))
    return _around(points) if points else None


def _around(points: Sequence[Point]) -> Box:
    xs, ys = zip(*points, strict=True)
    return Box(min(xs), min(ys), max(xs), max(ys))


def _numbers(text: str) -> list[Point]:
    numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _curve(text: str) -> list[Point]:
    """Points along Bezier curves, whose control points a path lists after its start."""
    start, *rest = _numbers(text)
    points = [start]
    for one, two, end in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        begin = points[-1]
        for step in range(1, STEPS + 1):
            t = step / STEPS
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
            corners = (begin, one, two, end)
            points.append(
                (
                    sum(w * p[0] for w, p in zip(weights, corners, strict=True)),
                    sum(w * p[1] for w, p in zip(weights, corners, strict=True)),
                )
            )
    return points


def _from(piece: tuple[Point, Point], point: Point) -> float:
    (x, y), (dx, dy) = piece[0], (piece[1][0] - piece[0][0], piece[1][1] - piece[0][1])
    length = dx * dx + dy * dy
    along = 0.0 if not length else max(0.0, min(1.0, ((point[0] - x) * dx + (point[1] - y) * dy) / length))
    return ((x + along * dx - point[0]) ** 2 + (y + along * dy - point[1]) ** 2) ** 0.5


def _within(box: Box, outline: Box) -> bool:
    return outline.left <= box.left + TOUCH and box.right <= outline.right + TOUCH


def _name(thing: Thing) -> str:
    kinds = sorted(thing.classes - {"node", "cluster", "frame"})
    return " ".join([*kinds, *(f"'{words}'" for words, _ in thing.texts[:1])])
