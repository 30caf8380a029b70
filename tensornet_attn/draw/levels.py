"""Assigns the content of a frame to rows from data to result, orders the rows, and places vertices along them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import groupby, pairwise
from math import fsum

from tensornet_attn.draw.scene import Edge

LINES = 8  # maximum number of lines that a row is wrapped to


@dataclass(frozen=True)
class Arrow:
    """A segment of an edge between consecutive rows. `port`: the node in the block that it starts at."""

    tail: str
    head: str
    edge: Edge
    port: str | None = None


@dataclass(frozen=True)
class Level:
    """Rows of vertices: nodes, blocks (inner frames), labels, and corners at which a long edge passes a row.

    `chains`: the arrows of each edge from top to bottom. An edge with a label has two chains.
    """

    rows: tuple[tuple[str, ...], ...]
    chains: tuple[tuple[Arrow, ...], ...]
    labels: Mapping[str, Edge]
    corners: Mapping[str, Edge]
    lines: Mapping[str, int]  # of vertices in a wrapped row

    @property
    def arrows(self) -> list[Arrow]:
        return [arrow for chain in self.chains for arrow in chain]


def level_of(
    widths: Mapping[str, float], last: Iterable[str], ends: Iterable[tuple[Edge, str, str]], room: float
) -> Level:
    """Assigns vertices to rows. `ends` has edges with the vertices at their ends; `last` is the row below all others.

    `widths` maps vertices to widths. Vertices without incoming edges are wrapped to lines of width `room`.
    """
    labels: dict[str, Edge] = {}
    arrows: list[Arrow] = []
    for edge, tail, head in ends:
        port = edge.tail if tail != edge.tail else None
        if not edge.label and not edge.level:
            arrows.append(Arrow(tail, head, edge, port))
            continue
        label = f"l{edge.tail}{edge.head}{edge.wire}"
        labels[label] = edge
        below = [Arrow(head, label, edge)] if edge.level else [Arrow(label, head, edge)]
        arrows += [Arrow(tail, label, edge, port), *below]
    joined = {end for arrow in arrows for end in (arrow.tail, arrow.head)}
    placed, last = [*(vertex for vertex in widths if vertex in joined), *labels], tuple(last)
    into = {arrow.head for arrow in arrows}
    floors = _floors({vertex: width for vertex, width in widths.items() if vertex in joined - into}, room)
    ranks = _ranks(placed, last, arrows, floors)
    rank = {vertex: ranks[vertex] for vertex in (*placed, *last)}
    for vertex in (vertex for vertex in widths if vertex not in joined):  # in the row with the most room
        candidates = set(rank.values()) - {ranks[last[0]] if last else None} or {0}
        taken = {row: fsum(widths.get(ranked, 0.0) for ranked, r in rank.items() if r == row) for row in candidates}
        rank[vertex] = min(sorted(candidates), key=taken.__getitem__)
    corners: dict[str, Edge] = {}
    chains = [tuple(_chain(arrow, rank, corners)) for arrow in arrows]
    rows: dict[int, list[str]] = defaultdict(list)
    for vertex, row in rank.items():
        rows[row].append(vertex)
    return Level(tuple(tuple(rows[row]) for row in sorted(rows)), tuple(chains), labels, corners, floors)


def _chain(arrow: Arrow, rank: dict[str, int], corners: dict[str, Edge]) -> Iterable[Arrow]:
    """Splits an arrow at every row that it passes."""
    tail, port = arrow.tail, arrow.port
    for row in range(rank[arrow.tail] + 1, rank[arrow.head]):
        corner = f"c{len(corners)}"
        corners[corner], rank[corner] = arrow.edge, row
        yield Arrow(tail, corner, arrow.edge, port)
        tail, port = corner, None
    yield Arrow(tail, arrow.head, arrow.edge, port)


def _floors(widths: Mapping[str, float], room: float) -> dict[str, int]:
    """Wraps vertices to at most LINES lines. Returns the line of each, or nothing if one line is enough."""
    room = max(room, fsum(widths.values()) / LINES)
    lines: dict[str, int] = {}
    line, taken = 0, 0.0
    for vertex, width in widths.items():
        if taken and taken + width > room:
            line, taken = line + 1, 0.0
        lines[vertex] = line
        taken += width
    return lines if line else {}


def _ranks(
    vertices: list[str], last: tuple[str, ...], arrows: list[Arrow], floors: Mapping[str, int]
) -> dict[str, int]:
    """Ranks vertices as high as arrows allow, then moves sources down to their successors. `last` is below all."""
    heads, tails = defaultdict(list), defaultdict(list)
    for arrow in arrows:
        heads[arrow.tail].append(arrow.head)
        tails[arrow.head].append(arrow.tail)
    order = list(TopologicalSorter({vertex: tails[vertex] for vertex in (*vertices, *last)}).static_order())
    rank: dict[str, int] = {}
    for vertex in order:
        rank[vertex] = max([floors.get(vertex, 0), *(rank[tail] + 1 for tail in tails[vertex])])
    low = max((rank[vertex] for vertex in vertices), default=-1) + 1
    rank |= dict.fromkeys(last, low)
    for vertex in reversed(order):
        if heads[vertex] and vertex not in floors and len(heads[vertex]) > len(tails[vertex]):
            rank[vertex] = min(rank[head] for head in heads[vertex]) - 1
    first = min(rank.values(), default=0)
    return {vertex: row - first for vertex, row in rank.items()}


SWEEPS = 6
Rows = list[list[str]]


class LevelOrder:
    """Reorders rows to reduce crossings, starting from the given order.

    `ports`: horizontal positions from 0 to 1 at which arrows leave their blocks. `sides`: preferred order from left to
    right, which is strict for vertices without incoming arrows. `fixed`: the last row does not change.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[str]],
        arrows: Sequence[Arrow],
        ports: Mapping[str, float],
        sides: Mapping[str, float],
        fixed: bool,
    ):
        self.rows = [list(row) for row in rows]
        self.ports, self.sides = ports, sides
        self.free = len(rows) - fixed  # number of rows that can change
        self.up: dict[str, list[Arrow]] = defaultdict(list)
        self.down: dict[str, list[Arrow]] = defaultdict(list)
        for arrow in arrows:
            self.up[arrow.head].append(arrow)
            self.down[arrow.tail].append(arrow)
        self.position = {vertex: position for row in rows for position, vertex in enumerate(row)}

    def best(self) -> Rows:
        """The order with the fewest crossings found, with queries on the left and keys on the right."""
        best, least = [row[:] for row in self.rows], self.cost()
        for sweep in range(SWEEPS):
            self.sweep(down=sweep % 2 == 0)
            self.swap()
            cost = self.cost()
            if cost < least:
                best, least = [row[:] for row in self.rows], cost
        return best

    def cost(self) -> tuple[int, int]:
        return sum(map(self.crossings, self.rows)), sum(map(self.turned, self.rows))

    def turned(self, row: list[str]) -> int:
        """The number of neighbours against the order of their sides."""
        return sum(self.sides[left] > self.sides[right] for left, right in pairwise(row))

    def crossings(self, row: list[str]) -> int:
        """The number of crossings between a row and the next."""
        ends = sorted((self.above(arrow), self.position[arrow.head]) for vertex in row for arrow in self.down[vertex])
        count, previous = 0, list[int]()
        for _, group in groupby(ends, key=lambda end: end[0]):
            heads = [head for _, head in group]
            count += sum(len(previous) - bisect_right(previous, head) for head in heads)
            for head in heads:
                insort(previous, head)
        return count

    def above(self, arrow: Arrow) -> float:
        """The horizontal position at which an arrow leaves its row."""
        return self.position[arrow.tail] + (self.ports.get(arrow.port, 0.5) if arrow.port else 0.5)

    def sweep(self, down: bool) -> None:
        """Sorts each row by the mean position of neighbours in the previous row."""
        for index in range(1, self.free) if down else range(min(self.free, len(self.rows) - 1) - 1, -1, -1):
            row, previous = self.rows[index], self.rows[index - 1 if down else index + 1]
            wanted = {
                vertex: self.wanted(vertex, spot / len(row) * len(previous), down) for spot, vertex in enumerate(row)
            }
            self.rows[index] = self.kept(sorted(row, key=wanted.__getitem__))
            self.position.update((vertex, position) for position, vertex in enumerate(self.rows[index]))

    def wanted(self, vertex: str, default: float, down: bool) -> float:
        spots = (
            [self.above(a) for a in self.up[vertex]]
            if down
            else [self.position[a.head] + 0.5 for a in self.down[vertex]]
        )
        return fsum(spots) / len(spots) if spots else default

    def kept(self, row: list[str]) -> list[str]:
        """Sorts the vertices without incoming arrows by side, within their positions."""
        sources = iter(sorted((vertex for vertex in row if not self.up[vertex]), key=self.sides.__getitem__))
        return [vertex if self.up[vertex] else next(sources) for vertex in row]

    def swap(self) -> None:
        """Swaps neighbours while this reduces crossings."""
        for _ in range(SWEEPS):
            helped = [self.swapped(row) for row in self.rows[: self.free]]
            if not any(helped):
                return

    def swapped(self, row: list[str]) -> bool:
        helped = False
        for position in range(len(row) - 1):
            left, right = row[position : position + 2]
            turned = self.sides[right] - self.sides[left]
            if turned > 0 and not self.up[left] and not self.up[right]:
                continue
            if (self.crossed(right, left), turned) < (self.crossed(left, right), 0):
                row[position : position + 2] = [right, left]
                self.position[left], self.position[right] = position + 1, position
                helped = True
        return helped

    def crossed(self, left: str, right: str) -> int:
        """The crossings of the arrows of two neighbours in this order."""
        above = sum(self.above(a) > self.above(b) for a in self.up[left] for b in self.up[right])
        below = [(self.position[a.head], self.position[b.head]) for a in self.down[left] for b in self.down[right]]
        return above + sum(a > b for a, b in below)


STRAIGHTENINGS = 80
GAP = 10.0  # points between neighbours
LOOSE, STIFF = 0.1, 3.0
STILL = 0.02  # convergence threshold in points


def spread(
    rows: Sequence[Sequence[str]], level: Level, widths: Mapping[str, float], offsets: Mapping[str, float]
) -> dict[str, float]:
    """The horizontal centre of each vertex, with the left edge at 0. `offsets`: of ports from their block's centre."""
    joined: dict[str, list[tuple[str, float, float]]] = defaultdict(list)

    def join(tail: str, head: str, offset: float, weight: float) -> None:
        joined[head].append((tail, offset, weight))
        joined[tail].append((head, -offset, weight))

    bundled = {a.tail for a in level.arrows if a.edge.look == "bond"} & level.lines.keys()
    for arrow in level.arrows:
        straight = 1.0 + 2 * (arrow.tail in level.corners) + 2 * (arrow.head in level.corners)
        offset = offsets.get(arrow.port, 0.0) if arrow.port else 0.0
        join(arrow.tail, arrow.head, offset, LOOSE if arrow.tail in bundled else straight)
    first = [next(vertex for vertex in row if vertex in bundled) for row in rows if bundled & set(row)]
    for upper, lower in pairwise(first):  # align wrapped lines of terms at the left
        join(upper, lower, (widths[lower] - widths[upper]) / 2, STIFF)
    at: dict[str, float] = {}
    gaps = [[(widths[a] + widths[b]) / 2 + GAP for a, b in pairwise(row)] for row in rows]
    for row, gap in zip(rows, gaps, strict=True):
        left = -fsum(gap) / 2
        for vertex, step in zip(row, [*gap, 0.0], strict=True):
            at[vertex], left = left, left + step
    pairs = list(zip(rows, gaps, strict=True))
    for sweep in range(STRAIGHTENINGS):
        before = at.copy()
        for row, gap in pairs if sweep % 2 else pairs[::-1]:
            wanted = [_wanted(vertex, joined[vertex], at) for vertex in row]
            at.update(zip(row, _apart(wanted, gap), strict=True))
        if all(abs(at[vertex] - x) < STILL for vertex, x in before.items()):
            break
    left = min((at[vertex] - widths[vertex] / 2 for vertex in at), default=0.0)
    return {vertex: x - left for vertex, x in at.items()}


def _wanted(vertex: str, joined: list[tuple[str, float, float]], at: dict[str, float]) -> tuple[float, float]:
    """The position that straightens a vertex's wires, and its weight."""
    total = fsum(weight for *_, weight in joined)
    if not total:
        return at[vertex], 0.01
    return fsum((at[neighbour] + offset) * weight for neighbour, offset, weight in joined) / total, total


def _apart(wanted: list[tuple[float, float]], gaps: list[float]) -> list[float]:
    """The weighted least-squares positions that keep the gaps between neighbours (isotonic regression)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, count; overlapping pools are merged
    shift, shifts = 0.0, []
    for (position, weight), gap in zip(wanted, [*gaps, 0.0], strict=True):
        shifts.append(shift)
        pools.append((position - shift, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (m1, w1, c1), (m2, w2, c2) = pools[-2:]
            pools[-2:] = [((m1 * w1 + m2 * w2) / (w1 + w2), w1 + w2, c1 + c2)]
        shift += gap
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + shift for mean, shift in zip(means, shifts, strict=True)]
