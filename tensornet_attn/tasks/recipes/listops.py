"""ListOps: the value of nested MIN, MAX, MED and SM (sum modulo 10) of digits.

listops and listops_mini are generated as in the Long Range Arena; lra_listops reads the arena's files.

Many random trees are generated at once, level by level. A node is an operator with probability 1/4, above the last
level, and otherwise a digit; an operator has 2 to `most` arguments. The random bits of a node are derived from its
parent's and its index among its siblings, so a tree depends only on the bits of its root.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.chance import GOLDEN, Draws, Integers, Rows, Words, mix
from tensornet_attn.tasks.reading import Cache, read_table, the_file
from tensornet_attn.tasks.recipe import Generated, Recipe, Source, drawn
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipes.labelled import TABLES, Text, labelled

OPERATORS = ("MIN", "MAX", "MED", "SM")
DIGITS = tuple("0123456789")
WORDS = Alphabet(("padding", *DIGITS, *(f"[{name}" for name in OPERATORS), "]"))
CLOSE = len(WORDS) - 1
_WITHOUT_PARENTHESES = str.maketrans("()", "  ")


@dataclass(frozen=True)
class TreeLevel:
    """The nodes of one depth of all trees, ordered by tree and parent."""

    bits: Words  # [nodes], random
    tree: Integers  # the tree of a node
    parent: Integers  # the index of its parent among the operators of the level above
    sibling: Integers  # its index among its siblings
    operator: npt.NDArray[np.bool_]

    @property
    def digit(self) -> Integers:
        return (((self.bits >> np.uint64(4)) % np.uint64(1 << 28)) * np.uint64(10) >> np.uint64(28)).astype(np.int64)

    @property
    def name(self) -> Integers:
        """The name of an operator, an index into OPERATORS."""
        return ((self.bits >> np.uint64(2)) % np.uint64(4)).astype(np.int64)


def roots(bits: Words) -> TreeLevel:
    """The root of each tree, always an operator."""
    nodes = len(bits)
    zero = np.zeros(nodes, np.int64)
    return TreeLevel(bits, np.arange(nodes), zero, zero, np.ones(nodes, bool))


def below(level: TreeLevel, max_args: int, last: bool) -> TreeLevel:
    """The arguments of the operators of a level."""
    bits, tree = level.bits[level.operator], level.tree[level.operator]
    count = 2 + (((bits >> np.uint64(32)) * np.uint64(max_args - 1)) >> np.uint64(32)).astype(np.int64)
    parent = np.repeat(np.arange(len(bits)), count)
    sibling = np.arange(len(parent)) - np.repeat(np.cumsum(count) - count, count)
    child_bits = mix(bits[parent] + (sibling.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    operator = np.zeros(len(child_bits), bool) if last else child_bits % np.uint64(4) == 0
    return TreeLevel(child_bits, tree[parent], parent, sibling, operator)


def lengths(bits: Words, depth: int, max_args: int, room: int) -> Integers:
    """The number of tokens of each tree; trees with `room` or more tokens are not expanded further."""
    level = roots(bits)
    token_counts = np.full(len(bits), 2)
    for level_depth in range(2, depth + 1):
        level = below(level, max_args, level_depth == depth)
        token_counts += np.bincount(level.tree, 1 + level.operator, len(bits)).astype(np.int64)
        keep = level.operator & (token_counts < room)[level.tree]
        level = TreeLevel(level.bits, level.tree, level.parent, level.sibling, keep)
    return token_counts


def grown(bits: Words, depth: int, max_args: int) -> list[TreeLevel]:
    """The levels of the trees, starting with the roots."""
    levels = [roots(bits)]
    for level_depth in range(2, depth + 1):
        levels.append(below(levels[-1], max_args, level_depth == depth))
        if not len(levels[-1].bits):
            return levels[:-1]
    return levels


def values(levels: list[TreeLevel]) -> Integers:
    """The value of each tree, 0 to 9; the median of an even count is the mean of the middle two, rounded down."""
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


def _median(under: Integers, arguments: TreeLevel, starts: Integers) -> Integers:
    count = np.diff(starts, append=len(under))
    sorted_rows = np.full((len(starts), int(count.max())), 10)
    sorted_rows[arguments.parent, arguments.sibling] = under
    sorted_rows.sort(1)
    row = np.arange(len(starts))
    middle: Integers = sorted_rows[row, (count - 1) // 2] + sorted_rows[row, count // 2]
    return middle // 2


def written(levels: list[TreeLevel], width: int, first_digit: int, first_operator: int, close: int) -> Integers:
    """The tokens of each tree (operator, arguments, bracket), padded with 0: [trees, width]."""
    sizes = _sizes(levels)
    tokens = np.zeros((len(levels[0].bits), width), np.int64)
    start = np.zeros(len(levels[0].bits), np.int64)
    for depth, (level, size) in enumerate(zip(levels, sizes, strict=True)):
        if depth:
            ends = np.cumsum(size)
            family = (ends - size)[level.sibling == 0]  # tokens before each first sibling
            start = start[levels[depth - 1].operator][level.parent] + 1 + (ends - size) - family[level.parent]
        tokens[level.tree, start] = np.where(level.operator, first_operator + level.name, first_digit + level.digit)
        closed = level.operator
        tokens[level.tree[closed], (start + size - 1)[closed]] = close
    return tokens


def _sizes(levels: list[TreeLevel]) -> list[Integers]:
    """The number of tokens of the subtree of each node."""
    sizes = [np.ones(len(levels[-1].bits), np.int64)]
    for level, arguments in reversed(list(pairwise(levels))):
        level_sizes = np.ones(len(level.bits), np.int64)
        level_sizes[level.operator] = 2 + np.add.reduceat(sizes[0], np.flatnonzero(arguments.sibling == 0))
        sizes.insert(0, level_sizes)
    return sizes


class Options(Generated):
    """The arena's parameters. A digit has length 1; an operator with its bracket adds 2."""

    train: int | None = Field(96_000, ge=1, description="training samples per epoch; none for unlimited")
    max_depth: int = Field(10, ge=2, le=64, description="levels of the tree, including digits")
    max_args: int = Field(10, ge=2, le=100, description="maximum number of arguments of an operator")
    min_length: int = Field(500, ge=1, description="a sample has more tokens than this")
    max_length: int = Field(
        2000, ge=5, le=2**20, description="a sample has fewer tokens than this, and is padded to it"
    )


class Mini(Options):
    """Operators nested at most two deep, and an unlimited training split; a small model learns it in a minute."""

    train: int | None = Field(None, ge=1, description="training samples per epoch; none for unlimited")
    max_depth: int = Field(3, ge=2, le=64, description="levels of the tree, including digits")
    max_args: int = Field(5, ge=2, le=100, description="maximum number of arguments of an operator")
    min_length: int = Field(1, ge=1, description="a sample has more tokens than this")
    max_length: int = Field(32, ge=5, le=2**20, description="a sample has fewer tokens than this, and is padded to it")


def _open(options: Options, cache: Cache) -> Source:
    if options.max_length - options.min_length < 2:
        raise InputError(
            f"task 'listops': no length lies between min_length {options.min_length} and max_length "
            f"{options.max_length}; raise max_length."
        )
    longest = 1
    for _ in range(options.max_depth - 1):
        longest = min(2 + options.max_args * longest, options.max_length)
    if longest <= options.min_length:
        raise InputError(
            f"task 'listops': a tree of depth {options.max_depth} with at most {options.max_args} arguments has at "
            f"most {longest} tokens; reduce min_length {options.min_length}."
        )
    return Source(
        "classification", WORDS, options.max_length, options.sizes, drawn(lambda draws: _make(options, draws)),
        classes=DIGITS, padding=0, groups=OPERATORS,
    )  # fmt: skip


def _make(options: Options, draws: Draws) -> tuple[Rows, Integers]:
    bits = draws.bits(0, 1)[:, 0]
    length = lengths(bits, options.max_depth, options.max_args, options.max_length)
    which = np.flatnonzero((length > options.min_length) & (length < options.max_length)).astype(np.int64)
    levels = grown(bits[which], options.max_depth, options.max_args)
    tokens = written(levels, options.max_length, 1, 1 + len(DIGITS), CLOSE)
    rows: Rows = {"tokens": tokens, "targets": values(levels), "group": levels[0].name}
    return rows, which


LISTOPS = Recipe(
    "listops", 1, "Nested list operations at the arena's length: ten classes.", Options, _open, costly=True
)
LISTOPS_MINI = Recipe("listops_mini", 1, "Nested list operations, two deep, below 32 tokens.", Mini, _open)


class Files(Base):
    path: str = Field(description="the folder of NAME_train.tsv, NAME_val.tsv and NAME_test.tsv")
    length: int = Field(2000, ge=1, le=2**20, description="tokens of a sample; longer samples are truncated")


def _open_files(options: Files, cache: Cache) -> Source:
    """lra_listops: NAME_train.tsv, NAME_val.tsv, NAME_test.tsv (Source, Target), without the redundant parentheses."""
    tables = {split: _read(the_file(Path(options.path), name), options.length) for split, name in TABLES.items()}
    return labelled("lra_listops", tables, WORDS, options.length, DIGITS)


def _read(path: Path, length: int) -> list[tuple[Text, int]]:
    """(tokens, answer) of each line."""
    samples = []
    for line, (source, target) in read_table(path, ["Source", "Target"], "\t"):
        try:
            tokens = WORDS.encode(source.translate(_WITHOUT_PARENTHESES))[:length]
        except InputError as error:
            raise InputError(f"'{path}', line {line}: {error}") from error
        if target not in DIGITS or not tokens:
            raise InputError(f"'{path}', line {line}: give a list of operations and a digit.")
        samples.append((np.array(tokens, np.uint16), int(target)))
    if not samples:
        raise InputError(f"'{path}' has no lines below its header.")
    return samples


LRA_LISTOPS = Recipe(
    "lra_listops",
    1,
    "Listops from the arena's files.",
    Files,
    _open_files,
    drawn=False,
    files="path is the folder of NAME_train.tsv, NAME_val.tsv and NAME_test.tsv: listops-1000 of the arena's "
    "lra_release.",
)
