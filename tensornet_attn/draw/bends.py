"""The curves of wires: upright where they leave, arrive and pass a row, bent only between rows."""

from __future__ import annotations

from collections import defaultdict
from math import sqrt

from tensornet_attn.draw.levels import Arrow, Level
from tensornet_attn.draw.places import Curve, Layout, Point, Spot
from tensornet_attn.draw.scene import Node
from tensornet_attn.draw.sizes import FIXED, FLAT

STUB = 12.0  # of open ends below their frame


class Curves:
    """The wires of one level, once all that they join has its place."""

    def __init__(
        self,
        made: Layout,
        home: dict[str, Node],
        level: Level,
        x: dict[str, float],
        bands: dict[str, tuple[float, float]],
    ):
        self.made, self.home, self.x, self.bands = made, home, x, bands
        self.out: dict[str, list[Arrow]] = defaultdict(list)
        self.into: dict[str, list[Arrow]] = defaultdict(list)
        for arrow in level.arrows:
            self.out[arrow.port or arrow.tail].append(arrow)
            self.into[arrow.head].append(arrow)

    def curve(self, chain: tuple[Arrow, ...]) -> Curve:
        """The curve of a chain of arrows, from the node that it leaves to the one that it enters."""
        x, bands = self.x, self.bands
        tail, head = chain[0].port or chain[0].tail, chain[-1].head
        points = [self.start(chain[0], tail)]
        if bands[chain[0].tail][1] > points[0][1] + 1:
            points += _line(points[-1], (points[-1][0], bands[chain[0].tail][1]))
        for arrow in chain[:-1]:
            top, bottom = bands[arrow.head]
            points += _bend(points[-1], (x[arrow.head], top))
            points += _line(points[-1], (x[arrow.head], bottom))
        end = self.end(chain[-1], head)
        top = min(bands[head][0], end[1])
        points += _bend(points[-1], (end[0], top))
        if end[1] > top + 1:
            points += _line(points[-1], end)
        if head in self.home and self.home[head].look == "open":
            points += _line(points[-1], (end[0], end[1] + STUB))
        return Curve(chain[0].edge, tail, head, tuple(_joined(points)))

    def start(self, arrow: Arrow, node: str) -> Point:
        spot = self.spot(node)
        rank = sorted(self.out[node], key=lambda a: self.x[a.head])
        shift = self.shift(node, spot, rank.index(arrow), len(rank))
        return spot.x + shift, spot.y + self.reach(node, spot, shift)

    def end(self, arrow: Arrow, node: str) -> Point:
        spot = self.spot(node)
        rank = sorted(self.into[node], key=lambda a: self.made.nodes[a.port].x if a.port else self.x[a.tail])
        shift = self.shift(node, spot, rank.index(arrow), len(rank))
        return spot.x + shift, spot.y - self.reach(node, spot, shift)

    def spot(self, name: str) -> Spot:
        return self.made.nodes[name] if name in self.made.nodes else self.made.labels[name][0]

    def shift(self, name: str, spot: Spot, index: int, count: int) -> float:
        """Wires at one side of a node stand a little apart; those of a leg meet."""
        if count == 1 or name not in self.home or self.home[name].look in ("leg", "point", "port", "pass"):
            return 0.0
        step = min(8.0, spot.width * 0.62 / (count - 1))
        return step * (index - (count - 1) / 2)

    def reach(self, name: str, spot: Spot, shift: float) -> float:
        """From the middle of a node up or down to its outline."""
        look = self.home[name].look if name in self.home else "leg"
        if look in (*FLAT, *FIXED, "leg", "ones") or not spot.width:
            return spot.height / 2
        return spot.height / 2 * sqrt(1 - (2 * shift / spot.width) ** 2)


def _bend(one: Point, other: Point) -> list[Point]:
    """A curve that leaves and arrives upright."""
    middle = (one[1] + other[1]) / 2
    return [(one[0], middle), (other[0], middle), other]


def _joined(points: list[Point]) -> list[Point]:
    """The same curve with straight upright pieces that follow each other as one."""
    found = points[:1]
    for place in range(1, len(points), 3):
        piece = points[place : place + 3]
        if all(abs(x - points[place - 1][0]) < 0.05 for x, _ in [*found[-4:], *piece]) and len(found) > 1:
            found[-3:] = _line(found[-4], piece[-1])
        else:
            found += piece
    return found


def _line(one: Point, other: Point) -> list[Point]:
    third = ((other[0] - one[0]) / 3, (other[1] - one[1]) / 3)
    return [(one[0] + third[0], one[1] + third[1]), (one[0] + 2 * third[0], one[1] + 2 * third[1]), other]
