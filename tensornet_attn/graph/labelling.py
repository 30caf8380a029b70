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
        restricted = Partition({}, {})
        for vertex in vertices:
            restricted.cell[vertex] = self.cell[vertex]
            restricted.members.setdefault(self.cell[vertex], []).append(vertex)
        return restricted

    def singled_out(self, vertex: int) -> Partition:
        start = self.cell[vertex]
        child = Partition(dict(self.cell), dict(self.members))
        child.put(start, [vertex])
        child.put(start + 1, [member for member in self.members[start] if member != vertex])
        return child


class Classes(Generic[T]):
    """Equivalence classes by union-find, such as vertices that automorphisms map onto each other."""

    def __init__(self) -> None:
        self.parent: dict[T, T] = {}

    def find(self, member: T) -> T:
        while (parent := self.parent.get(member, member)) != member:
            self.parent[member] = self.parent.get(parent, parent)
            member = parent
        return member

    def join(self, pairs: Iterable[tuple[T, T]]) -> None:
        for left, right in pairs:
            self.parent[self.find(left)] = self.find(right)


@dataclass
class Individualisation:
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
                new_cells = _split(partition, start, seen)
                largest = None if start in queued else _largest(partition, start, new_cells)
                fresh = new_cells if start in queued else [cell for cell in (start, *new_cells) if cell != largest]
                queue.extend(fresh)
                queued.update(fresh)

    def _seen(self, partition: Partition, splitter: int) -> list[tuple[int, dict[int, list[int]]]]:
        """(cell, labels of its vertices' edges to the splitter) pairs, in the order of cells."""
        labels: dict[int, dict[int, list[int]]] = {}
        for vertex in partition.members[splitter]:
            for label, neighbour in self.edges[vertex]:
                start = partition.cell.get(neighbour)
                if start is not None and len(partition.members[start]) > 1:
                    labels.setdefault(start, {}).setdefault(neighbour, []).append(label)
        return sorted(labels.items())

    def arrange(self, partition: Partition, quick: bool, depth: int) -> list[int]:
        """The vertices of a refined partition in canonical order; `quick` takes the first choice at each branch."""
        order = [members[0] for _, members in sorted(partition.members.items()) if len(members) == 1]
        components = list(self._components(partition))
        if not order and len(components) == 1:
            return self._choose(partition, quick, depth)
        arranged = []
        for component in components:
            restricted = partition.among(component)
            arranged.append(self._certified(restricted, self.arrange(restricted, quick, depth)))
        arranged.sort(key=lambda pair: pair[0])
        for (certificate, vertices), (next_certificate, next_vertices) in pairwise(arranged):
            if certificate == next_certificate:
                self.alike += [*zip(vertices, next_vertices, strict=True), *zip(next_vertices, vertices, strict=True)]
        return [*order, *(vertex for _, component in arranged for vertex in component)]

    def _components(self, partition: Partition) -> Iterator[list[int]]:
        """The connected components without the singletons."""
        remaining = {vertex: None for vertex, start in partition.cell.items() if len(partition.members[start]) > 1}
        while remaining:
            component = [remaining.popitem()[0]]
            for vertex in component:
                for _, neighbour in self.edges[vertex]:
                    if neighbour in remaining:
                        del remaining[neighbour]
                        component.append(neighbour)
            yield component

    def _certified(self, partition: Partition, order: list[int]) -> tuple[Certificate, list[int]]:
        """(certificate of a component in an order, the order). Components with equal certificates are isomorphic."""
        rank = {vertex: index for index, vertex in enumerate(order)}
        edges = [
            (rank[vertex], label, rank[neighbour])
            for vertex in order
            for label, neighbour in self.edges[vertex]
            if neighbour in rank
        ]
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
        orders = {(quick_trial := self._trial(partition, first, True, depth)).certificate: quick_trial.order}
        tried, orbits = [first], Classes[int]()
        for vertex in others:
            orbits.join(self.alike[mark:])
            mark = len(self.alike)
            if self.fruitless >= limits.CANONICAL_LEAVES:
                break
            if orbits.find(vertex) in {orbits.find(earlier) for earlier in tried}:
                continue
            quick_trial = self._trial(partition, vertex, True, depth)
            if quick_trial.certificate in orders:
                self.alike += zip(quick_trial.order, orders[quick_trial.certificate], strict=True)
                continue
            self.fruitless += 1
            tried.append(vertex)
            orders[quick_trial.certificate] = quick_trial.order
            if quick_trial.shape <= best.shape:
                trial = self._trial(partition, vertex, False, depth)
                if (trial.shape, trial.certificate) == (best.shape, best.certificate):
                    self.alike += zip(trial.order, best.order, strict=True)
                best = min(best, trial, key=lambda candidate: (candidate.shape, candidate.certificate))
        return best.order

    def _trial(self, partition: Partition, vertex: int, quick: bool, depth: int) -> Individualisation:
        child = partition.singled_out(vertex)
        self.refine(child, [partition.cell[vertex]])
        order = self.arrange(child, quick, depth + 1)
        return Individualisation(tuple(sorted(child.members)), self._certified(partition, order)[0], order)


def _split(partition: Partition, start: int, seen: dict[int, list[int]]) -> list[int]:
    """Splits a cell by the labels of edges, vertices without edges first; returns the starts of the new cells."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for vertex in partition.members[start]:
        groups.setdefault(tuple(sorted(seen.get(vertex, ()))), []).append(vertex)
    if len(groups) == 1:
        return []
    starts, next_start = [], start
    for _, members in sorted(groups.items()):
        partition.put(next_start, members)
        starts.append(next_start)
        next_start += len(members)
    return starts[1:]


def _largest(partition: Partition, start: int, new_cells: list[int]) -> int:
    """The largest part of a split cell; it need not wait, because the others cause the same splits."""
    return max((start, *new_cells), key=lambda cell: (len(partition.members[cell]), -cell))
