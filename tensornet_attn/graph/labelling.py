"""A canonical order of the vertices of a coloured graph: colour refinement, then individualisation.

Refinement (Weisfeiler-Leman) splits cells of vertices until all vertices of a cell have the same cells as neighbours.
A vertex alone in its cell has its place. The other vertices form independent components; each is ordered separately,
and equal components are interchangeable. In a component without a singleton, each vertex of the smallest cell is
individualised in turn, and the least certificate wins; vertices that a known automorphism maps to a tried vertex are
skipped.

After `limits.CANONICAL_LEAVES` unsuccessful trials in one component, the best order so far is used. Its certificate
still describes the whole graph, so that different graphs never have equal certificates; but equal graphs in different
orders may then have different certificates. Realistic diagrams stay far below this limit: it takes a large irregular
part that refinement cannot split, such as hundreds of tensors in an irregular graph of equal degrees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from tensornet_attn import limits

T = TypeVar("T")
Edges = Sequence[Sequence[tuple[int, int]]]  # of each vertex: (label, other vertex)
Certificate = tuple[tuple[int, ...], tuple[tuple[int, int, int], ...]]


def canonical_order(colours: Sequence[str], edges: Edges) -> list[int]:
    """The vertices in an order that depends only on the coloured graph, up to its automorphisms."""
    cells: dict[str, list[int]] = {}
    for vertex, colour in enumerate(colours):
        cells.setdefault(colour, []).append(vertex)
    partition = Partition({}, {})
    start = 0
    for _, members in sorted(cells.items()):
        partition.put(start, members)
        start += len(members)
    search = Search(edges)
    search.refine(partition, sorted(partition.members))
    return search.arrange(partition, quick=False, depth=0)


@dataclass
class Partition:
    """Vertices in ordered cells; the key of a cell is the place of its first vertex."""

    cell: dict[int, int]  # of each vertex
    members: dict[int, list[int]]  # of each cell; lists are replaced, never modified

    def put(self, start: int, members: list[int]) -> None:
        self.members[start] = members
        for vertex in members:
            self.cell[vertex] = start

    def among(self, vertices: Iterable[int]) -> Partition:
        part = Partition({}, {})
        for vertex in vertices:
            part.cell[vertex] = self.cell[vertex]
            part.members.setdefault(self.cell[vertex], []).append(vertex)
        return part

    def singled_out(self, vertex: int) -> Partition:
        start = self.cell[vertex]
        child = Partition(dict(self.cell), dict(self.members))
        child.put(start, [vertex])
        child.put(start + 1, [other for other in self.members[start] if other != vertex])
        return child


class Classes(Generic[T]):
    """Equivalence classes by union-find, such as vertices that automorphisms map onto each other."""

    def __init__(self) -> None:
        self.parent: dict[T, T] = {}

    def find(self, one: T) -> T:
        while (above := self.parent.get(one, one)) != one:
            self.parent[one] = self.parent.get(above, above)
            one = above
        return one

    def join(self, pairs: Iterable[tuple[T, T]]) -> None:
        for one, other in pairs:
            self.parent[self.find(one)] = self.find(other)


@dataclass
class Trial:
    """The result of individualising one vertex; the least (shape, certificate) is the canonical one."""

    shape: tuple[int, ...]
    certificate: Certificate
    order: list[int]


class Search:
    """One search; `alike` collects the pairs (vertex, image) of the automorphisms found."""

    def __init__(self, edges: Edges):
        self.edges = edges
        self.alike: list[tuple[int, int]] = []
        self.fruitless = 0

    def refine(self, partition: Partition, waiting: list[int]) -> None:
        """Splits cells by the edges of their vertices to each waiting cell, until no cell waits."""
        queue, queued = deque(waiting), set(waiting)
        while queue and len(partition.members) < len(partition.cell):
            splitter = queue.popleft()
            queued.discard(splitter)
            for start, seen in self._seen(partition, splitter):
                new = _split(partition, start, seen)
                largest = None if start in queued else _largest(partition, start, new)
                fresh = new if start in queued else [part for part in (start, *new) if part != largest]
                queue.extend(fresh)
                queued.update(fresh)

    def _seen(self, partition: Partition, splitter: int) -> list[tuple[int, dict[int, list[int]]]]:
        """(cell, labels of its vertices' edges to the splitter) pairs, in the order of cells."""
        found: dict[int, dict[int, list[int]]] = {}
        for vertex in partition.members[splitter]:
            for label, other in self.edges[vertex]:
                start = partition.cell.get(other)
                if start is not None and len(partition.members[start]) > 1:
                    found.setdefault(start, {}).setdefault(other, []).append(label)
        return sorted(found.items())

    def arrange(self, partition: Partition, quick: bool, depth: int) -> list[int]:
        """The vertices of a refined partition in canonical order; `quick` takes the first choice at each branch."""
        order = [members[0] for _, members in sorted(partition.members.items()) if len(members) == 1]
        parts = list(self._components(partition))
        if not order and len(parts) == 1:
            return self._choose(partition, quick, depth)
        arranged = []
        for part in parts:
            own = partition.among(part)
            arranged.append(self._certified(own, self.arrange(own, quick, depth)))
        arranged.sort(key=lambda pair: pair[0])
        for (certificate, one), (next_certificate, other) in pairwise(arranged):
            if certificate == next_certificate:
                self.alike += [*zip(one, other, strict=True), *zip(other, one, strict=True)]
        return [*order, *(vertex for _, part in arranged for vertex in part)]

    def _components(self, partition: Partition) -> Iterator[list[int]]:
        """The connected components without the singletons."""
        left = {v: None for v, start in partition.cell.items() if len(partition.members[start]) > 1}
        while left:
            part = [left.popitem()[0]]
            for vertex in part:
                for _, other in self.edges[vertex]:
                    if other in left:
                        del left[other]
                        part.append(other)
            yield part

    def _certified(self, partition: Partition, order: list[int]) -> tuple[Certificate, list[int]]:
        """(certificate of a component in an order, the order). Components with equal certificates are isomorphic."""
        place = {vertex: i for i, vertex in enumerate(order)}
        edges = [(place[v], label, place[other]) for v in order for label, other in self.edges[v] if other in place]
        return (tuple(partition.cell[vertex] for vertex in order), tuple(sorted(edges))), order

    def _choose(self, partition: Partition, quick: bool, depth: int) -> list[int]:
        """The order of a component without singletons; individualises the vertices of one cell in turn."""
        if depth == limits.CANONICAL_DEPTH:
            return [vertex for _, members in sorted(partition.members.items()) for vertex in sorted(members)]
        target = min(partition.members, key=lambda start: (len(partition.members[start]), start))
        first, *others = partition.members[target]
        if quick:
            return self._trial(partition, first, True, depth).order
        mark, self.fruitless = len(self.alike), self.fruitless if depth else 0
        best = self._trial(partition, first, False, depth)
        known = {(quickly := self._trial(partition, first, True, depth)).certificate: quickly.order}
        tried, orbits = [first], Classes[int]()
        for vertex in others:
            orbits.join(self.alike[mark:])
            mark = len(self.alike)
            if self.fruitless >= limits.CANONICAL_LEAVES:
                break
            if orbits.find(vertex) in {orbits.find(other) for other in tried}:
                continue
            quickly = self._trial(partition, vertex, True, depth)
            if quickly.certificate in known:
                self.alike += zip(quickly.order, known[quickly.certificate], strict=True)
                continue
            self.fruitless += 1
            tried.append(vertex)
            known[quickly.certificate] = quickly.order
            if quickly.shape <= best.shape:
                trial = self._trial(partition, vertex, False, depth)
                if (trial.shape, trial.certificate) == (best.shape, best.certificate):
                    self.alike += zip(trial.order, best.order, strict=True)
                best = min(best, trial, key=lambda one: (one.shape, one.certificate))
        return best.order

    def _trial(self, partition: Partition, vertex: int, quick: bool, depth: int) -> Trial:
        child = partition.singled_out(vertex)
        self.refine(child, [partition.cell[vertex]])
        order = self.arrange(child, quick, depth + 1)
        return Trial(tuple(sorted(child.members)), self._certified(partition, order)[0], order)


def _split(partition: Partition, start: int, seen: dict[int, list[int]]) -> list[int]:
    """Splits a cell by the labels of edges, vertices without edges first; returns the starts of the new cells."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for vertex in partition.members[start]:
        groups.setdefault(tuple(sorted(seen.get(vertex, ()))), []).append(vertex)
    if len(groups) == 1:
        return []
    starts, place = [], start
    for _, members in sorted(groups.items()):
        partition.put(place, members)
        starts.append(place)
        place += len(members)
    return starts[1:]


def _largest(partition: Partition, start: int, new: list[int]) -> int:
    """The largest part of a split cell; it need not wait, because the others cause the same splits."""
    return max((start, *new), key=lambda part: (len(partition.members[part]), -part))
