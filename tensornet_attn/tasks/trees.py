"""Random trees of list operations, as the Long Range Arena grows them, many at once and level by level.

A node is an operator with probability 1/4, above the last level, and else a digit; an operator has 2 to `most`
arguments. A node's random bits come from its parent's and from its place among its siblings, so a tree depends on its
root's bits alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tensornet_attn.tasks.chance import GOLDEN, Integers, Words, mix

OPERATORS = ("MIN", "MAX", "MED", "SM")
ONE = np.uint64(1)


@dataclass(frozen=True)
class Level:
    """The nodes of one depth, siblings side by side, those of one tree too."""

    bits: Words  # [nodes], random
    tree: Integers  # the tree of a node
    parent: Integers  # its parent's place among the operators of the level above
    sibling: Integers  # 0 for the first of the siblings
    operator: npt.NDArray[np.bool_]

    @property
    def digit(self) -> Integers:
        return (((self.bits >> np.uint64(4)) % np.uint64(1 << 28)) * np.uint64(10) >> np.uint64(28)).astype(np.int64)

    @property
    def name(self) -> Integers:
        """Of an operator: an index into OPERATORS."""
        return ((self.bits >> np.uint64(2)) % np.uint64(4)).astype(np.int64)


def roots(bits: Words) -> Level:
    """A root for each tree, an operator: what begins with a digit is a digit."""
    nodes = len(bits)
    zero = np.zeros(nodes, np.int64)
    return Level(bits, np.arange(nodes), zero, zero, np.ones(nodes, bool))


def below(level: Level, most: int, last: bool) -> Level:
    """The arguments of a level's operators."""
    bits, tree = level.bits[level.operator], level.tree[level.operator]
    count = 2 + (((bits >> np.uint64(32)) * np.uint64(most - 1)) >> np.uint64(32)).astype(np.int64)
    parent = np.repeat(np.arange(len(bits)), count)
    sibling = np.arange(len(parent)) - np.repeat(np.cumsum(count) - count, count)
    own = mix(bits[parent] + (sibling.astype(np.uint64) + ONE) * GOLDEN)
    operator = np.zeros(len(own), bool) if last else own % np.uint64(4) == 0
    return Level(own, tree[parent], parent, sibling, operator)


def lengths(bits: Words, depth: int, most: int, room: int) -> Integers:
    """Tokens of each tree, where they are fewer than `room`; `room` or more for the others, which stop growing."""
    level = roots(bits)
    found = np.full(len(bits), 2)
    for here in range(2, depth + 1):
        level = below(level, most, here == depth)
        found += np.bincount(level.tree, 1 + level.operator, len(bits)).astype(np.int64)
        keep = level.operator & (found < room)[level.tree]
        level = Level(level.bits, level.tree, level.parent, level.sibling, keep)
    return found


def grown(bits: Words, depth: int, most: int) -> list[Level]:
    """The levels of the trees, from the roots on."""
    levels = [roots(bits)]
    for here in range(2, depth + 1):
        levels.append(below(levels[-1], most, here == depth))
        if not len(levels[-1].bits):
            return levels[:-1]
    return levels


def values(levels: list[Level]) -> Integers:
    """What each tree comes to, 0 to 9; the median of evenly many digits is the mean of the middle two, rounded down."""
    under = levels[-1].digit
    for level, arguments in reversed(list(pairwise(levels))):
        starts = np.flatnonzero(arguments.sibling == 0)
        table = np.stack(
            [
                np.minimum.reduceat(under, starts),
                np.maximum.reduceat(under, starts),
                _median(under, arguments, starts),
                np.add.reduceat(under, starts) % 10,
            ]
        )
        above = level.digit
        above[level.operator] = table[level.name[level.operator], np.arange(len(starts))]
        under = above
    return under


def _median(under: Integers, arguments: Level, starts: Integers) -> Integers:
    count = np.diff(starts, append=len(under))
    sorted_rows = np.full((len(starts), int(count.max())), 10)
    sorted_rows[arguments.parent, arguments.sibling] = under
    sorted_rows.sort(1)
    row = np.arange(len(starts))
    middle: Integers = sorted_rows[row, (count - 1) // 2] + sorted_rows[row, count // 2]
    return middle // 2


def written(levels: list[Level], width: int, first_digit: int, first_operator: int, close: int) -> Integers:
    """The tokens of each tree, operator, arguments, bracket: [trees width], 0 behind them."""
    sizes = _sizes(levels)
    tokens = np.zeros((len(levels[0].bits), width), np.int64)
    start = np.zeros(len(levels[0].bits), np.int64)
    for depth, (level, size) in enumerate(zip(levels, sizes, strict=True)):
        if depth:
            ends = np.cumsum(size)
            family = (ends - size)[level.sibling == 0]  # of all before the first sibling
            start = start[levels[depth - 1].operator][level.parent] + 1 + (ends - size) - family[level.parent]
        tokens[level.tree, start] = np.where(level.operator, first_operator + level.name, first_digit + level.digit)
        closed = level.operator
        tokens[level.tree[closed], (start + size - 1)[closed]] = close
    return tokens


def _sizes(levels: list[Level]) -> list[Integers]:
    """Tokens of the subtree under each node."""
    sizes = [np.ones(len(levels[-1].bits), np.int64)]
    for level, arguments in reversed(list(pairwise(levels))):
        here = np.ones(len(level.bits), np.int64)
        here[level.operator] = 2 + np.add.reduceat(sizes[0], np.flatnonzero(arguments.sibling == 0))
        sizes.insert(0, here)
    return sizes
