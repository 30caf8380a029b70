"""Pairs of a query and a key as bounds: on where either stands, and on how far before the query the key is.

# Area(distance=(0, inf), key=(0, 3)): keys 0 to 3 that are not later than the query

What several areas cover together stands for a condition on pairs: no pair outside of them meets it. Bounds are whole
numbers or infinite; keys stand at 0 or later. Each bound follows from others (query - key is the distance), so that
an area without any pair is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from tensornet_attn.limits import AREAS

Span = tuple[float, float]  # the least and the greatest number
ANY: Span = (-inf, inf)


@dataclass(frozen=True, order=True)
class Area:
    """Pairs of a query and a key. `distance`: position of the query minus that of the key."""

    distance: Span = ANY
    query: Span = ANY
    key: Span = ANY

    def intersection(self, other: Area) -> Area:
        """The pairs in both, of which there may be none."""
        return Area(*map(_met, self.spans, other.spans))

    @property
    def spans(self) -> tuple[Span, Span, Span]:
        return self.distance, self.query, self.key

    @property
    def by_distance(self) -> bool:
        """Whether the distance alone says which pairs these are."""
        return self.query == ANY and self.key == ANY

    def closed(self) -> Area | None:
        """The same pairs with bounds that follow from the others; None where there are none.

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
        """Whether every pair of another area is in this one."""
        return all(map(_holds, self.spans, other.spans))

    def complement(self) -> Iterator[Area]:
        """The pairs that are not in it, as areas that overlap."""
        for name, (least, most) in zip(("distance", "query", "key"), self.spans, strict=True):
            for span in [(-inf, least - 1)] * (least > -inf) + [(most + 1, inf)] * (most < inf):
                yield replace(Area(), **{name: span})


Areas = tuple[Area, ...]
EVERYWHERE: Areas = (Area(),)


def simplify(areas: Iterable[Area]) -> Areas:
    """Areas that cover the same, none without pairs, none that another one holds; one for all where they are many."""
    found = sorted(area for area in {*areas} if area.closed() is not None)
    found = [area for area in found if not any(other.contains(area) for other in found if other != area)]
    if len(found) <= AREAS:
        return tuple(found)
    whole = found[0]
    for area in found[1:]:
        whole = Area(*map(_hull, whole.spans, area.spans))
    return (whole,)


def intersect(one: Areas, other: Areas) -> Areas:
    """Where two conditions both hold."""
    if EVERYWHERE in (one, other):
        return other if one == EVERYWHERE else one
    return simplify(a.intersection(b) for a in one for b in other)


def union(one: Areas, other: Areas) -> Areas:
    """Where one of two conditions holds."""
    return simplify((*one, *other))


def complement(areas: Areas) -> Areas:
    """Where none of these areas is."""
    found = EVERYWHERE
    for area in areas:
        found = intersect(found, simplify(area.complement()))
    return found


def distances(areas: Areas) -> Span | None:
    """The least and the greatest distance of any pair; None where there is no pair."""
    spans = [area.distance for area in map(Area.closed, areas) if area is not None]
    return (min(least for least, _ in spans), max(most for _, most in spans)) if spans else None


def reach_and_prefix(areas: Areas) -> tuple[Span, int]:
    """The distances of all pairs, but for those of so many of the first keys, which are seen however far away."""
    first = [area for area in areas if area.key[1] < inf and (distances((area,)) or ANY)[1] == inf]
    nearby = distances(tuple(area for area in areas if area not in first)) or (0, -1)
    return nearby, int(max((area.key[1] for area in first), default=-1)) + 1


def _met(one: Span, other: Span) -> Span:
    return max(one[0], other[0]), min(one[1], other[1])


def _holds(one: Span, other: Span) -> bool:
    return one[0] <= other[0] and one[1] >= other[1]


def _hull(one: Span, other: Span) -> Span:
    return min(one[0], other[0]), max(one[1], other[1])
