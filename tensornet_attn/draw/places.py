"""Places: of nodes, frames, titles and labels as rectangles, of wires as curves. In points; y grows downwards."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tensornet_attn.draw.layers import Edge

Point = tuple[float, float]


@dataclass(frozen=True)
class Spot:
    """A rectangle by its middle; y grows downwards."""

    x: float
    y: float
    width: float
    height: float

    def moved(self, x: float, y: float) -> Spot:
        return replace(self, x=self.x + x, y=self.y + y)

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2


@dataclass(frozen=True)
class Curve:
    """A piece of an edge as Bezier points, 3 n + 1 of them, from `tail` to `head` (nodes, or a label)."""

    edge: Edge
    tail: str
    head: str
    points: tuple[Point, ...]


@dataclass
class Layout:
    width: float = 0.0
    height: float = 0.0
    nodes: dict[str, Spot] = field(default_factory=dict)
    frames: dict[str, Spot] = field(default_factory=dict)
    titles: dict[str, Spot] = field(default_factory=dict)
    labels: dict[str, tuple[Spot, Edge]] = field(default_factory=dict)
    curves: list[Curve] = field(default_factory=list)

    def take(self, other: Layout, x: float, y: float) -> None:
        """Everything of another layout, moved."""
        self.nodes |= {name: spot.moved(x, y) for name, spot in other.nodes.items()}
        self.frames |= {name: spot.moved(x, y) for name, spot in other.frames.items()}
        self.titles |= {name: spot.moved(x, y) for name, spot in other.titles.items()}
        self.labels |= {name: (spot.moved(x, y), edge) for name, (spot, edge) in other.labels.items()}
        self.curves += [replace(curve, points=tuple((a + x, b + y) for a, b in curve.points)) for curve in other.curves]
