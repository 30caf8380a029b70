"""Derives the statements of a kernel from what its ends read: one per node, or one per loop that reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, permutations

from tensornet_attn.emit.triton.kernel import INSIDE, KernelText
from tensornet_attn.emit.triton.nodes import WORDS, arguments, inlined
from tensornet_attn.emit.triton.online import highest, online_map
from tensornet_attn.tiles.loops import Key, Loop, Loops, Statement, placed
from tensornet_attn.tiles.model import ROWS, Node, along_width, below

MADE = 9  # integer tiles that are live while random numbers are generated
MOST_ORDERS = 24  # maximum orders of variables to try
MOST_TILES = 20  # maximum live tiles of queries x keys; more spill registers, as measured
HEAVY = ("dot", "entry", "shift", "unshift")
MASKS = ("visible", "both", "either")
RANGED = 3  # smallest size of a variable whose loop may stay rolled
# Nodes that are nested in their readers, or computed by the statement of another node.
ELSEWHERE = ("number", "sum_over_blocks", "alpha")
Values = dict[str, int]  # of index variables


def arrange(text: KernelText) -> None:
    """Arranges all statements in loops and names them.

    If too many tiles would be live, values of one variable are recomputed in each loop over it, except expensive ones.
    Its loop stays rolled if it is the only one, because nothing is then computed twice, and if there is no scalar sum
    for each of its values.
    """
    reads = [node for _, one in text.ends for node in one.reads]
    lean(text, reads)
    for _, one in text.ends:
        one.reads = tuple(text.scope.instead.get(node, node) for node in one.reads)
    needed = below(reads, (), text.scope.instead)
    text.scope.inline = inlined(text.scope, reads, needed)
    nest_results(text, needed)
    lay_out(text)
    variable = without_unrolling(text, needed)
    if variable and (text.lean or text.live > MOST_TILES):
        text.ranged, text.again = variable, text.live > MOST_TILES
        lay_out(text)
        inside = [one for one in text.made.get(INSIDE, ()) if variable in one.heads]
        alone = len({one.levels.get(variable, 0) for one in inside}) == 1
        if text.again and alone and not any(one.parts for one in inside):
            text.rolled, text.again = variable, False
            if draws(text) and text.program.nodes.sizes[variable] % WORDS == 0:
                text.scope.fours = variable
            lay_out(text)
    text.name_all()


def nest_results(text: KernelText, needed: list[Node]) -> None:
    """Nests results in the statement that adds them to an accumulator, or stores them, if nothing else reads them."""
    readers = Counter(text.scope.instead.get(arg, arg) for node in needed for arg in arguments(node))
    readers.update(node for _, one in text.ends for node in one.reads)
    for section, one in text.ends:
        ops = ("dot", "sum") if section == INSIDE else ("mul",)
        nested = {
            node
            for node in one.reads
            if node.op in ops and node.axes != text.program.pair and readers[node] == 1 and node.heads == one.heads
        }
        text.scope.inline |= nested
        one.reads = tuple(read for node in one.reads for read in (text.read(node) if node in nested else [node]))


def lay_out(text: KernelText) -> None:
    """Arranges the statements of a kernel in loops."""
    text.resident, text.streamed, text.temporaries, text.loops = [], [], [], {}
    text.made = Demand(text).all()
    put_in_order(text)


def put_in_order(text: KernelText) -> None:
    """Chooses the nesting order of variables: sums one after another if possible, which saves registers as measured,
    and then the fewest live tiles."""
    used = {variable for statements in text.made.values() for one in statements for variable in one.heads}
    own = [variable for variable in text.program.nodes.sizes if variable in used and variable != text.ranged]
    least = (0, 0, 0)
    for order in islice(permutations(own), MOST_ORDERS):
        loops = Loops([text.ranged, *order] if text.ranged else order, text.key)
        found = {section: loops.of(statements) for section, statements in text.made.items()}
        beside = sum(one.over != text.ranged and text.program.tiles(one.inner) > 1 for one in text.made.get(INSIDE, ()))
        price = (beside, *most_live(text, found.get(INSIDE, [])))
        if not text.loops or price < least:
            text.loops, least = found, price
    text.live = least[1]
    for items in text.loops.values():
        placed(items, ())


def without_unrolling(text: KernelText, needed: list[Node]) -> str:
    """The variable whose loop can stay rolled: no loaded, multiplied or accumulated tile depends on it."""
    pair, found = text.program.pair, dict[str, int]()
    for variable, size in text.program.nodes.sizes.items():
        own = [node for node in needed if variable in node.heads]
        heavy = any(node.op in HEAVY or (len(node.axes) == 2 and node.axes != pair) for node in own)
        kept = any(one.carried and variable in one.heads and not one.parts for _, one in text.ends)
        online = text.online and any(node.op in ROWS for node in own)
        if size >= RANGED and not (heavy or kept or online) and any(node.axes == pair for node in own):
            found[variable] = size
    return max(found, key=found.__getitem__, default="")


def lean(text: KernelText, ends: Iterable[Node]) -> None:
    """Moves a factor along the summed width from the operand loaded per block to the other operand, which is loaded
    once per program."""
    nodes = text.program.nodes
    for node in below(ends, (), text.scope.instead):
        if node.op != "dot" or node in text.scope.instead:
            continue
        for moved, held in (node.args, node.args[::-1]):
            row, rest = along_width(moved)
            if row is not None and row.axes == node.data and loaded(text, rest) and not loaded(text, held):
                text.scope.instead[node] = nodes.product(rest, nodes.mul(row, held, moved.name), node.axes, node.name)


def loaded(text: KernelText, node: Node) -> bool:
    """Whether a tile differs for each block of the loop."""
    return bool(text.moving & {*node.axes})


def most_live(text: KernelText, items: list[Loop | Statement]) -> tuple[int, int]:
    """The maximum number of live tiles of queries x keys, temporaries included, and the sum over all lines."""
    first, last, counts = dict[object, int](), dict[object, int](), dict[object, int]()
    time, held = 0, held_masks(text)
    for one, at in steps(text, items, {}):
        for node in one.reads:
            key = (*text.key(one, node), *(at.get(variable) for variable in node.heads))
            last |= {key: time} if key in first else {}
        for node in one.makes:
            key = (*text.key(one, node), *(at.get(variable) for variable in node.heads))
            first.setdefault(key, time)
            last[key], counts[key] = time, 1 if node in held else text.tiles_of(node)
        time += 1
    changes = [0] * (time + 1)
    for made, count in counts.items():
        changes[first[made]] += count
        changes[last[made] + 1] -= count
    now = [*accumulate(changes)]
    return (MADE if draws(text) else 1 + text.scattered) + max(now), sum(now)


def held_masks(text: KernelText) -> set[Node]:
    """Masks that more than two statements of a block read: they take registers, as measured."""
    readers = Counter(node for one in text.made.get(INSIDE, ()) for node in {*one.reads} if node.op in MASKS)
    return {node for node, count in readers.items() if count > 2}


def draws(text: KernelText) -> bool:
    """Whether a kernel generates random numbers."""
    return any(node.op in ("noise", "drop") for one in text.made.get(INSIDE, ()) for node in one.makes)


def steps(text: KernelText, items: Iterable[Loop | Statement], at: Values) -> Iterator[tuple[Statement, Values]]:
    """The statements in order with loops unrolled; a rolled loop counts two rounds, because its inputs stay live."""
    for item in items:
        if isinstance(item, Statement):
            yield item, at
            continue
        rounds = 2 if item.variable == text.rolled else text.program.nodes.sizes[item.variable]
        for value in range(rounds):
            yield from steps(text, item.items, {**at, item.variable: value})


def make(text: KernelText, node: Node, section: int) -> Statement:
    """The statement that computes a node."""
    reads = tuple(text.read(node))
    if node.op == "over":
        (arg,) = (text.scope.instead.get(arg, arg) for arg in node.args)
        reads = tuple(text.read(arg)) if arg in text.scope.inline else (arg,)
        return Statement(arg.heads, reads, list, (node,), over=node.data[0], how=node.data[1])
    found = Statement(node.heads, reads, list, (node,))
    if node.op == "highest":
        return highest(text, node, found)
    if node.op in ROWS:
        return online_map(text, node, found)
    found.lines = lambda: text.let(node, section, text.text(node))
    return found


class Demand:
    """The statements of a kernel: each node once, or once per section or loop that reads it."""

    def __init__(self, text: KernelText):
        self.text = text
        self.made: dict[int, list[Statement]] = {}
        self.levels: dict[Node, dict[str, int]] = {}
        self.done: set[tuple[int, Key]] = set()

    def all(self) -> dict[int, list[Statement]]:
        """The statements by section."""
        for section, one in self.text.ends:
            one.levels = self.most(one.reads)
            for node in one.reads:
                self.need(node, section, one)
            self.made.setdefault(section, []).append(one)
        for section, statements in self.made.items():
            self.later(section, statements)
        return self.made

    def need(self, node: Node, section: int, reader: Statement) -> None:
        """Adds the statements for a node that a statement reads, and for its arguments."""
        text = self.text
        if node in text.scope.inline:
            for arg in text.read(node):
                self.need(arg, section, reader)
            return
        section, key = text.section(node, section), text.key(reader, node)
        if node.op in ELSEWHERE or (section, key) in self.done:
            return
        self.done.add((section, key))
        one = make(text, node, section)
        one.levels = self.most(one.reads)
        if text.anew(node):
            one.levels[text.ranged] = key[1]
        for arg in one.reads:
            self.need(arg, section, one)
        text.count(node, section)
        self.made.setdefault(section, []).append(one)

    def most(self, nodes: Iterable[Node]) -> dict[str, int]:
        found: dict[str, int] = {}
        for node in nodes:
            for variable, level in self.level(node).items():
                found[variable] = max(level, found.get(variable, 0))
        return found

    def level(self, node: Node) -> dict[str, int]:
        """The number of sums over each variable below a node, itself included."""
        if node not in self.levels:
            found = self.most(self.text.read(node))
            if node.op == "over":
                found[node.data[0]] = 1 + found.get(node.data[0], 0)
            self.levels[node] = found
        return self.levels[node]

    def later(self, section: int, statements: list[Statement]) -> None:
        """Moves statements into the loops that read them first, so that their values do not stay live."""
        text = self.text
        readers: dict[Key, list[dict[str, int]]] = {}
        for one in reversed(statements):
            found = [levels for node in one.makes for levels in readers.get(text.key(one, node), ())]
            for variable in text.program.nodes.sizes if found else ():
                least = min(levels.get(variable, 0) for levels in found) - (variable == one.over)
                if variable != text.ranged or not text.anew(one.makes[0]):
                    one.levels[variable] = max(least, one.levels.get(variable, 0))
            for node in one.reads:
                if text.section(node, section) == section:
                    readers.setdefault(text.key(one, node), []).append(one.levels)
