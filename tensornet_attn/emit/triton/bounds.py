"""The blocks that a kernel's loop visits: keys visible to a block of queries, or queries that see a block of keys.

A block of the `fixed` side begins at `first`; query i is at position i + m - n. For several areas of pairs, the loop
runs from the least to the greatest index, but skips keys between a visible prefix and the nearby ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import inf

from tensornet_attn.ir.areas import Area, Areas, distances

EVERY = "0"  # begin of a loop that skips nothing before


@dataclass(frozen=True)
class LoopBounds:
    """`for start in range(begin, end)`; if keys are skipped, with lines before the loop and one inside it."""

    begin: str
    end: str
    before: tuple[str, ...] = ()
    inside: str = ""


def bounds(areas: Areas, fixed: str, pair: tuple[str, str]) -> LoopBounds:
    """The bounds of the loop over the other side of (query, key) that visit all pairs of these areas."""
    m, queries = pair[1], fixed == pair[0]
    straight, others = _by_distance(areas), [area for area in areas if not area.by_distance]
    ranges = [(area, *_ends(area, fixed, pair)) for area in (*straight, *others)]
    begin = reduce(_least, (begin for _, begin, _ in ranges)) if ranges else EVERY
    end = reduce(_greatest, (end for _, _, end in ranges)) if ranges else EVERY
    prefixes = [area for area in others if queries and area.key[1] < inf and area.query == (-inf, inf)]
    near_begins = [begin for area, begin, _ in ranges if area not in prefixes]
    if not prefixes or not near_begins or EVERY in near_begins:
        return LoopBounds(begin, end)
    count, nearby = int(max(area.key[1] for area in prefixes)) + 1, reduce(_least, near_begins)
    before = (
        f"prefix = tl.cdiv({count}, {m}_block) * {m}_block",
        f"last_key = {end}",
        f"nearby = tl.minimum({nearby} // {m}_block, tl.cdiv(last_key, {m}_block)) * {m}_block",
        "skipped = tl.maximum(nearby - prefix, 0)  # keys between prefix and nearby",
    )
    inside = "start = tl.where(visited < prefix, visited, visited + skipped)"
    return LoopBounds("0", "last_key - skipped", before, inside)


def edge(area: Area, first: dict[str, str], pair: tuple[str, str]) -> str:
    """Whether blocks of both sides that begin at `first` intersect an area."""
    (n, m), (near, far), (low, high) = pair, area.distance, area.key
    shift = f"{first[n]} + {m}_end - {n}_end"
    conditions = [f"({shift} - {first[m]} + {n}_block > {near})"] * (near > -inf)
    conditions += [f"({shift} - {first[m]} - {m}_block < {far})"] * (far < inf)
    conditions += [f"({shift} + {n}_block > {area.query[0]})"] * (area.query[0] > -inf)
    conditions += [f"({shift} <= {area.query[1]})"] * (area.query[1] < inf)
    conditions += [f"({first[m]} + {m}_block > {low})"] * (low > 0) + [f"({first[m]} <= {high})"] * (high < inf)
    return " & ".join(conditions) or "True"


def _by_distance(areas: Areas) -> Areas:
    """One area that covers all areas defined by distance only."""
    span = distances(tuple(area for area in areas if area.by_distance))
    return () if span is None else (Area(span),)


def _ends(area: Area, fixed: str, pair: tuple[str, str]) -> tuple[str, str]:
    """Begin and end of the loop for one area; an empty loop if the block does not intersect it."""
    (n, m), queries = pair, fixed == pair[0]
    other_side, apart = (m, n)[not queries], f"({m}_end - {n}_end)"
    near, far = distances((area,)) or (0, -1)
    shift = f"first {'+' if queries else '-'} {apart}"
    fixed_range, other_range = (area.query, area.key) if queries else (area.key, area.query)
    behind, ahead = (far, -near) if queries else (-near, far)
    lows = [f"{shift} - {behind}"] * (behind < inf)
    highs = [f"{shift} + {fixed}_block + {ahead}"] * (ahead < inf)
    offset = "" if queries else f" - {apart}"
    lows += [f"{other_range[0]}{offset}"] * (other_range[0] > (0 if queries else -inf))
    highs += [f"{other_range[1] + 1}{offset}"] * (other_range[1] < inf)
    begin = f"tl.maximum({reduce(_greatest, lows)}, 0)" if lows else EVERY
    end = f"tl.minimum({reduce(_least, highs)}, {other_side}_end)" if highs else f"{other_side}_end"
    position = shift if queries else "first"
    conditions = [f"({position} + {fixed}_block > {fixed_range[0]})"] * (fixed_range[0] > (-inf if queries else 0))
    conditions += [f"({position} <= {fixed_range[1]})"] * (fixed_range[1] < inf)
    if not conditions:
        return begin, end
    start = begin if begin == EVERY else f"tl.where({' & '.join(conditions)}, {begin}, {other_side}_end)"
    return start, f"tl.where({' & '.join(conditions)}, {end}, 0)"


def _least(first: str, second: str) -> str:
    return EVERY if EVERY in (first, second) else f"tl.minimum({first}, {second})"


def _greatest(first: str, second: str) -> str:
    return f"tl.maximum({first}, {second})"
