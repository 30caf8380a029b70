"""The order of each row from left to right: few crossings, queries on the left, keys on the right."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from math import fsum

from tensornet_attn.draw.levels import Arrow

SWEEPS = 6
Rows = list[list[str]]


def ordered(
    rows: Sequence[Sequence[str]],
    arrows: Sequence[Arrow],
    ports: Mapping[str, float],
    sides: Mapping[str, float],
    fixed: bool,
) -> Rows:
    """Rows given in an order to start from, put in another with fewer crossings.

    `ports`: where on its block, from 0 to 1, an arrow leaves it. `sides`: how far to the right a thing belongs; what
    no arrow comes into keeps to it. `fixed`: the last row stays as it is.
    """
    return _Rows(rows, arrows, ports, sides, fixed).best()


class _Rows:
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
        self.free = len(rows) - fixed  # rows that may change
        self.up: dict[str, list[Arrow]] = defaultdict(list)
        self.down: dict[str, list[Arrow]] = defaultdict(list)
        for arrow in arrows:
            self.up[arrow.head].append(arrow)
            self.down[arrow.tail].append(arrow)
        self.place = {thing: place for row in rows for place, thing in enumerate(row)}

    def best(self) -> Rows:
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
        """Neighbours that stand the other way round than their sides say."""
        return sum(self.sides[one] > self.sides[other] for one, other in pairwise(row))

    def crossings(self, row: list[str]) -> int:
        """Crossings between a row and the next: pairs of arrows that end the other way round than they begin."""
        ends = sorted((self.above(arrow), self.place[arrow.head]) for thing in row for arrow in self.down[thing])
        found, seen = 0, list[int]()
        for _, group in groupby(ends, key=lambda end: end[0]):
            heads = [head for _, head in group]
            found += sum(len(seen) - bisect_right(seen, head) for head in heads)
            for head in heads:
                insort(seen, head)
        return found

    def above(self, arrow: Arrow) -> float:
        """Where an arrow leaves its row."""
        return self.place[arrow.tail] + (self.ports.get(arrow.port, 0.5) if arrow.port else 0.5)

    def sweep(self, down: bool) -> None:
        """Each thing to the mean place of what it is joined to in the row before."""
        for index in range(1, self.free) if down else range(min(self.free, len(self.rows) - 1) - 1, -1, -1):
            row, other = self.rows[index], self.rows[index - 1 if down else index + 1]
            wanted = {thing: self.wanted(thing, spot / len(row) * len(other), down) for spot, thing in enumerate(row)}
            self.rows[index] = self.kept(sorted(row, key=wanted.__getitem__))
            self.place.update((thing, place) for place, thing in enumerate(self.rows[index]))

    def wanted(self, thing: str, place: float, down: bool) -> float:
        spots = (
            [self.above(a) for a in self.up[thing]] if down else [self.place[a.head] + 0.5 for a in self.down[thing]]
        )
        return fsum(spots) / len(spots) if spots else place

    def kept(self, row: list[str]) -> list[str]:
        """A row in which what nothing comes into stands in the order of its sides, in the same places."""
        sources = iter(sorted((thing for thing in row if not self.up[thing]), key=self.sides.__getitem__))
        return [thing if self.up[thing] else next(sources) for thing in row]

    def swap(self) -> None:
        """Neighbours change places as long as that helps."""
        for _ in range(SWEEPS):
            helped = [self.swapped(row) for row in self.rows[: self.free]]
            if not any(helped):
                return

    def swapped(self, row: list[str]) -> bool:
        helped = False
        for place in range(len(row) - 1):
            one, other = row[place : place + 2]
            turned = self.sides[other] - self.sides[one]
            if turned > 0 and not self.up[one] and not self.up[other]:
                continue
            if (self.crossed(other, one), turned) < (self.crossed(one, other), 0):
                row[place : place + 2] = [other, one]
                self.place[one], self.place[other] = place + 1, place
                helped = True
        return helped

    def crossed(self, left: str, right: str) -> int:
        """Crossings of the arrows of two neighbours, if they stand like this."""
        above = sum(self.above(a) > self.above(b) for a in self.up[left] for b in self.up[right])
        below = [(self.place[a.head], self.place[b.head]) for a in self.down[left] for b in self.down[right]]
        return above + sum(a > b for a, b in below)
