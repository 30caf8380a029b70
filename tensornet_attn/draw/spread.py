"""Where things stand in their rows: wires as straight as the order and the room that each thing takes allow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum  # whose result is the same on every Python, and so are the pictures

from tensornet_attn.draw.levels import Level

SWEEPS = 80
GAP = 10.0  # points between neighbours
LOOSE, STIFF = 0.1, 3.0
STILL = 0.02  # points that count as no move


def spread(
    rows: Sequence[Sequence[str]], level: Level, widths: Mapping[str, float], offsets: Mapping[str, float]
) -> dict[str, float]:
    """The middle of each thing; the leftmost edge of all is 0. `offsets`: of ports from the middles of their blocks."""
    joined: dict[str, list[tuple[str, float, float]]] = defaultdict(list)

    def join(one: str, other: str, offset: float, weight: float) -> None:
        joined[other].append((one, offset, weight))
        joined[one].append((other, -offset, weight))

    bundled = {a.tail for a in level.arrows if a.edge.look == "bond"} & level.lines.keys()
    for arrow in level.arrows:
        straight = 1.0 + 2 * (arrow.tail in level.corners) + 2 * (arrow.head in level.corners)
        offset = offsets.get(arrow.port, 0.0) if arrow.port else 0.0
        join(arrow.tail, arrow.head, offset, LOOSE if arrow.tail in bundled else straight)
    first = [next(thing for thing in row if thing in bundled) for row in rows if bundled & set(row)]
    for one, other in pairwise(first):  # lines of terms begin below each other
        join(one, other, (widths[other] - widths[one]) / 2, STIFF)
    at: dict[str, float] = {}
    gaps = [[(widths[a] + widths[b]) / 2 + GAP for a, b in pairwise(row)] for row in rows]
    for row, gap in zip(rows, gaps, strict=True):
        left = -fsum(gap) / 2
        for thing, step in zip(row, [*gap, 0.0], strict=True):
            at[thing], left = left, left + step
    pairs = list(zip(rows, gaps, strict=True))
    for sweep in range(SWEEPS):
        before = at.copy()
        for row, gap in pairs if sweep % 2 else pairs[::-1]:
            wanted = [_wanted(thing, joined[thing], at) for thing in row]
            at.update(zip(row, _apart(wanted, gap), strict=True))
        if all(abs(at[thing] - x) < STILL for thing, x in before.items()):
            break
    left = min((at[thing] - widths[thing] / 2 for thing in at), default=0.0)
    return {thing: x - left for thing, x in at.items()}


def _wanted(thing: str, joined: list[tuple[str, float, float]], at: dict[str, float]) -> tuple[float, float]:
    """The place that would make a thing's wires straight, and how much that counts."""
    total = fsum(weight for *_, weight in joined)
    if not total:
        return at[thing], 0.01
    return fsum((at[other] + offset) * weight for other, offset, weight in joined) / total, total


def _apart(wanted: list[tuple[float, float]], gaps: list[float]) -> list[float]:
    """The places nearest to those wanted, by weighted squares, with at least the gaps between neighbours."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, count; pools that would overlap are merged
    shift, shifts = 0.0, []
    for (place, weight), gap in zip(wanted, [*gaps, 0.0], strict=True):
        shifts.append(shift)
        pools.append((place - shift, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (m1, w1, c1), (m2, w2, c2) = pools[-2:]
            pools[-2:] = [((m1 * w1 + m2 * w2) / (w1 + w2), w1 + w2, c1 + c2)]
        shift += gap
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + shift for mean, shift in zip(means, shifts, strict=True)]
