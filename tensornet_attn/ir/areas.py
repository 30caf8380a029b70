"""Areas: sets of pairs of a query and a key, as bounds on both positions and on their distance.

# Area(distance=(0, inf), key=(0, 3)): keys 0 to 3 that are not later than the query

A union of areas bounds a condition on pairs: no pair outside of it meets the condition. Bounds are whole numbers or
infinite; positions of keys are at least 0. Because query - key is the distance, bounds imply further bounds, which
detect empty areas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from tensornet_attn.limits import AREAS

Span = tuple[float, float]  # (minimum, maximum)
ANY: Span = (-inf, inf)


@dataclass(frozen=True, order=True)
class Area:
    """Pairs of a query and a key. `distance` is the position of the query minus that of the key."""

    distance: Span = ANY
    query: Span = ANY
    key: Span = ANY

    def intersection(self, other: Area) -> Area:
        """The pairs in both areas, possibly none."""
        return Area(*map(_met, self.spans, other.spans))

    @property
    def spans(self) -> tuple[Span, Span, Span]:
        return self.distance, self.query, self.key

    @property
    def by_distance(self) -> bool:
        """Whether only the distance is bounded."""
        return self.query == ANY and self.key == ANY

    def closed(self) -> Area | None:
        """The same pairs with all implied bounds. Returns None if the area is empty.

        >>> Area(key=(0, 3), query=(10, inf)).closed().distance
        (7, inf)
        """
        (near, far), (first, last), (low, high) = self.distance, self.query, _met(self.key, (0, inf))
        distance = max(near, first - high), min(far, last - low)
        query = max(first, low + near), min(last, high + far)
        key = max(low, first - far), min(high, last - near)
        if any(least > most for least, most in (distance, query, key)):
            return None
        return Area(distance, query, key)

    def contains(self, other: Area) -> bool:
        """Whether all pairs of another area are in this area."""
        return all(map(_holds, self.spans, other.spans))

    def complement(self) -> Iterator[Area]:
        """The pairs outside of the area, as overlapping areas."""
        for name, (least, most) in zip(("distance", "query", "key"), self.spans, strict=True):
            for span in [(-inf, least - 1)] * (least > -inf) + [(most + 1, inf)] * (most < inf):
                yield replace(Area(), **{name: span})


Areas = tuple[Area, ...]
EVERYWHERE: Areas = (Area(),)


def simplify(areas: Iterable[Area]) -> Areas:
    """The areas without empty ones and those inside another; their bounding area if they exceed `limits.AREAS`."""
    kept = sorted(area for area in {*areas} if area.closed() is not None)
    kept = [area for area in kept if not any(larger.contains(area) for larger in kept if larger != area)]
    if len(kept) <= AREAS:
        return tuple(kept)
    bounding = kept[0]
    for area in kept[1:]:
        bounding = Area(*map(_hull, bounding.spans, area.spans))
    return (bounding,)


def intersect(first: Areas, second: Areas) -> Areas:
    """The pairs that are in both unions of areas."""
    if EVERYWHERE in (first, second):
        return second if first == EVERYWHERE else first
    return simplify(a.intersection(b) for a in first for b in second)


def union(first: Areas, second: Areas) -> Areas:
    """The pairs that are in at least one of two unions of areas."""
    return simplify((*first, *second))


def complement(areas: Areas) -> Areas:
    """The pairs that are in none of the areas."""
    remaining = EVERYWHERE
    for area in areas:
        remaining = intersect(remaining, simplify(area.complement()))
    return remaining


def distances(areas: Areas) -> Span | None:
    """The minimum and maximum distance of all pairs. Returns None if there are none."""
    spans = [area.distance for area in map(Area.closed, areas) if area is not None]
    return (min(least for least, _ in spans), max(most for _, most in spans)) if spans else None


def reach_and_prefix(areas: Areas) -> tuple[Span, int]:
    """(range of distances, number of first keys that are visible at any distance)."""
    prefixes = [area for area in areas if area.key[1] < inf and (distances((area,)) or ANY)[1] == inf]
    nearby = distances(tuple(area for area in areas if area not in prefixes)) or (0, -1)
    return nearby, int(max((area.key[1] for area in prefixes), default=-1)) + 1


def _met(first: Span, second: Span) -> Span:
    return max(first[0], second[0]), min(first[1], second[1])


def _holds(outer: Span, inner: Span) -> bool:
    return outer[0] <= inner[0] and outer[1] >= inner[1]


def _hull(first: Span, second: Span) -> Span:
    return min(first[0], second[0]), max(first[1], second[1])
