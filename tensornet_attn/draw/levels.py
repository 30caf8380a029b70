"""One frame's own content as rows from data to result: what stands in which row, before anything has a place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum

from tensornet_attn.draw.layers import Edge

LINES = 8  # one below the other, into which a row may be cut


@dataclass(frozen=True)
class Arrow:
    """A piece of an edge between two rows, one below the other. `port`: the node that it leaves a block by."""

    tail: str
    head: str
    edge: Edge
    port: str | None = None


@dataclass(frozen=True)
class Level:
    """`rows` hold nodes, blocks (inner frames), labels, and the corners by which a long edge passes a row.

    `chains`: the arrows of each edge from above to below; those of a labelled edge are two, cut at the label.
    """

    rows: tuple[tuple[str, ...], ...]
    chains: tuple[tuple[Arrow, ...], ...]
    labels: Mapping[str, Edge]
    corners: Mapping[str, Edge]
    lines: Mapping[str, int]  # of things that one row has no room for

    @property
    def arrows(self) -> list[Arrow]:
        return [arrow for chain in self.chains for arrow in chain]


def level_of(
    things: Mapping[str, float],
    last: Iterable[str],
    found: Iterable[tuple[Edge, str, str]],
    room: float,
) -> Level:
    """The rows of things joined by edges, each given with the things at its ends; `last` make a row below all others.

    `things` have their widths; of those that nothing comes into, no more stand in one row than have `room`.
    """
    labels: dict[str, Edge] = {}
    arrows: list[Arrow] = []
    for edge, tail, head in found:
        port = edge.tail if tail != edge.tail else None
        if not edge.label and not edge.level:
            arrows.append(Arrow(tail, head, edge, port))
            continue
        label = f"l{edge.tail}{edge.head}{edge.wire}"
        labels[label] = edge
        below = [Arrow(head, label, edge)] if edge.level else [Arrow(label, head, edge)]
        arrows += [Arrow(tail, label, edge, port), *below]
    joined = {end for arrow in arrows for end in (arrow.tail, arrow.head)}
    placed, last = [*(thing for thing in things if thing in joined), *labels], tuple(last)
    into = {arrow.head for arrow in arrows}
    floors = _floors({thing: wide for thing, wide in things.items() if thing in joined - into}, room)
    found_ranks = _ranks(placed, last, arrows, floors)
    rank = {thing: found_ranks[thing] for thing in (*placed, *last)}
    _fill(rank, things, [thing for thing in things if thing not in joined], found_ranks[last[0]] if last else None)
    corners: dict[str, Edge] = {}
    chains = [tuple(_chain(arrow, rank, corners)) for arrow in arrows]
    rows: dict[int, list[str]] = defaultdict(list)
    for thing, row in rank.items():
        rows[row].append(thing)
    return Level(tuple(tuple(rows[row]) for row in sorted(rows)), tuple(chains), labels, corners, floors)


def _chain(arrow: Arrow, rank: dict[str, int], corners: dict[str, Edge]) -> Iterable[Arrow]:
    """An arrow cut at every row that it passes."""
    tail, port = arrow.tail, arrow.port
    for row in range(rank[arrow.tail] + 1, rank[arrow.head]):
        corner = f"c{len(corners)}"
        corners[corner], rank[corner] = arrow.edge, row
        yield Arrow(tail, corner, arrow.edge, port)
        tail, port = corner, None
    yield Arrow(tail, arrow.head, arrow.edge, port)


def _floors(widths: Mapping[str, float], room: float) -> dict[str, int]:
    """The lines that things take one after the other, where one line has not the room for all; no more than LINES."""
    room = max(room, fsum(widths.values()) / LINES)
    lines: dict[str, int] = {}
    line, taken = 0, 0.0
    for thing, wide in widths.items():
        if taken and taken + wide > room:
            line, taken = line + 1, 0.0
        lines[thing] = line
        taken += wide
    return lines if line else {}


def _fill(rank: dict[str, int], widths: Mapping[str, float], alone: list[str], last: int | None) -> None:
    """What is joined to nothing goes where most room is left."""
    for thing in alone:
        rows = set(rank.values()) - {last} or {0}
        taken = {row: fsum(widths.get(other, 0.0) for other, r in rank.items() if r == row) for row in rows}
        rank[thing] = min(sorted(rows), key=lambda row: taken[row])


def _ranks(things: list[str], last: tuple[str, ...], arrows: list[Arrow], floors: Mapping[str, int]) -> dict[str, int]:
    """As high as the arrows allow, then what nothing comes into as low as they allow; the last ones below all."""
    heads, tails = defaultdict(list), defaultdict(list)
    for arrow in arrows:
        heads[arrow.tail].append(arrow.head)
        tails[arrow.head].append(arrow.tail)
    order = _sorted([*things, *last], heads)
    rank: dict[str, int] = {}
    for thing in order:
        rank[thing] = max([floors.get(thing, 0), *(rank[tail] + 1 for tail in tails[thing])])
    low = max((rank[thing] for thing in things), default=-1) + 1
    rank |= dict.fromkeys(last, low)
    for thing in reversed(order):
        if heads[thing] and thing not in floors and len(heads[thing]) > len(tails[thing]):
            rank[thing] = min(rank[head] for head in heads[thing]) - 1
    first = min(rank.values(), default=0)
    return {thing: row - first for thing, row in rank.items()}


def _sorted(things: list[str], heads: Mapping[str, list[str]]) -> list[str]:
    """Things with what is above before what is below, else as given."""
    done: dict[str, None] = {}
    for thing in reversed(things):
        stack = [(thing, iter(heads[thing]))]
        while stack:
            here, below = stack[-1]
            head = next((h for h in below if h not in done), None)
            if head is None:
                done.setdefault(here)
                stack.pop()
            else:
                stack.append((head, iter(heads[head])))
    return list(reversed(done))
