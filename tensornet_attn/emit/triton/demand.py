"""Derives the statements of a kernel from what its ends read: one per node, or one per loop that reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, permutations

from tensornet_attn.emit.triton.kernel import INSIDE, KernelText
from tensornet_attn.emit.triton.nodes import WORDS, arguments, inlined
from tensornet_attn.emit.triton.online import highest, online_map
from tensornet_attn.tiles.loops import Key, Loop, Loops, Statement, placed
from tensornet_attn.tiles.program import ROWS, Node, along_width, below

MADE = 9  # integer tiles that are live while random numbers are generated
MOST_ORDERS = 24  # maximum orders of variables to try
MOST_TILES = 20  # maximum live tiles of queries x keys; more spill registers, as measured
HEAVY = ("dot", "entry", "shift", "unshift")
MASKS = ("visible", "both", "either")
RANGED = 3  # smallest size of a variable whose loop may stay rolled
# Nodes that are nested in their readers, or computed by the statement of another node.
ELSEWHERE = ("number", "sum_over_blocks", "alpha")
Values = dict[str, int]  # of index variables


def arrange(kernel: KernelText) -> None:
    """Arranges all statements in loops and names them.

    If too many tiles would be live, values of one variable are recomputed in each loop over it, except expensive ones.
    Its loop stays rolled if it is the only one, because nothing is then computed twice, and if there is no scalar sum
    for each of its values.
    """
    reads = [node for _, statement in kernel.ends for node in statement.reads]
    lean(kernel, reads)
    for _, statement in kernel.ends:
        statement.reads = tuple(kernel.scope.instead.get(node, node) for node in statement.reads)
    needed = below(reads, (), kernel.scope.instead)
    kernel.scope.inline = inlined(kernel.scope, reads, needed)
    nest_results(kernel, needed)
    lay_out(kernel)
    variable = without_unrolling(kernel, needed)
    if variable and (kernel.lean or kernel.live > MOST_TILES):
        kernel.ranged, kernel.again = variable, kernel.live > MOST_TILES
        lay_out(kernel)
        inside = [statement for statement in kernel.sections.get(INSIDE, ()) if variable in statement.heads]
        single_loop = len({statement.levels.get(variable, 0) for statement in inside}) == 1
        if kernel.again and single_loop and not any(statement.in_parts for statement in inside):
            kernel.rolled, kernel.again = variable, False
            if draws(kernel) and kernel.program.sizes[variable] % WORDS == 0:
                kernel.scope.fours = variable
            lay_out(kernel)
    kernel.name_all()


def nest_results(kernel: KernelText, needed: list[Node]) -> None:
    """Nests results in the statement that adds them to an accumulator, or stores them, if nothing else reads them."""
    readers = Counter(kernel.scope.instead.get(arg, arg) for node in needed for arg in arguments(node))
    readers.update(node for _, statement in kernel.ends for node in statement.reads)
    for section, statement in kernel.ends:
        ops = ("dot", "sum") if section == INSIDE else ("mul",)
        nested = {
            node
            for node in statement.reads
            if node.op in ops
            and node.axes != kernel.program.pair
            and readers[node] == 1
            and node.heads == statement.heads
        }
        kernel.scope.inline |= nested
        statement.reads = tuple(
            read for node in statement.reads for read in (kernel.read(node) if node in nested else [node])
        )


def lay_out(kernel: KernelText) -> None:
    """Arranges the statements of a kernel in loops."""
    kernel.resident, kernel.streamed, kernel.temporaries, kernel.loops = [], [], [], {}
    kernel.sections = Demand(kernel).all()
    put_in_order(kernel)


def put_in_order(kernel: KernelText) -> None:
    """Chooses the nesting order of variables: sums one after another if possible, which saves registers as measured,
    and then the fewest live tiles."""
    used = {
        variable for statements in kernel.sections.values() for statement in statements for variable in statement.heads
    }
    variables = [variable for variable in kernel.program.sizes if variable in used and variable != kernel.ranged]
    least_price = (0, 0, 0)
    for order in islice(permutations(variables), MOST_ORDERS):
        loops = Loops([kernel.ranged, *order] if kernel.ranged else order, kernel.key)
        loops_by_section = {section: loops.of(statements) for section, statements in kernel.sections.items()}
        parallel_sums = sum(
            statement.over != kernel.ranged and kernel.program.tiles(statement.inner) > 1
            for statement in kernel.sections.get(INSIDE, ())
        )
        price = (parallel_sums, *most_live(kernel, loops_by_section.get(INSIDE, [])))
        if not kernel.loops or price < least_price:
            kernel.loops, least_price = loops_by_section, price
    kernel.live = least_price[1]
    for children in kernel.loops.values():
        placed(children, ())


def without_unrolling(kernel: KernelText, needed: list[Node]) -> str:
    """The variable whose loop can stay rolled: no loaded, multiplied or accumulated tile depends on it."""
    pair, candidates = kernel.program.pair, dict[str, int]()
    for variable, size in kernel.program.sizes.items():
        dependent = [node for node in needed if variable in node.heads]
        heavy = any(node.op in HEAVY or (len(node.axes) == 2 and node.axes != pair) for node in dependent)
        accumulated = any(
            statement.carried and variable in statement.heads and not statement.in_parts for _, statement in kernel.ends
        )
        online = kernel.online and any(node.op in ROWS for node in dependent)
        if size >= RANGED and not (heavy or accumulated or online) and any(node.axes == pair for node in dependent):
            candidates[variable] = size
    return max(candidates, key=candidates.__getitem__, default="")


def lean(kernel: KernelText, ends: Iterable[Node]) -> None:
    """Moves a factor along the summed width from the operand loaded per block to the other operand, which is loaded
    once per program."""
    nodes = kernel.program.nodes
    for node in below(ends, (), kernel.scope.instead):
        if node.op != "dot" or node in kernel.scope.instead:
            continue
        for moved, held in (node.args, node.args[::-1]):
            row, rest = along_width(moved)
            if row is not None and row.axes == node.data and loaded(kernel, rest) and not loaded(kernel, held):
                kernel.scope.instead[node] = nodes.product(rest, nodes.mul(row, held, moved.name), node.axes, node.name)


def loaded(kernel: KernelText, node: Node) -> bool:
    """Whether a tile differs for each block of the loop."""
    return bool(kernel.moving & {*node.axes})


def most_live(kernel: KernelText, children: list[Loop | Statement]) -> tuple[int, int]:
    """The maximum number of live tiles of queries x keys, temporaries included, and the sum over all lines."""
    first, last, counts = dict[object, int](), dict[object, int](), dict[object, int]()
    time, masks = 0, held_masks(kernel)
    for statement, values in steps(kernel, children, {}):
        for node in statement.reads:
            key = (*kernel.key(statement, node), *(values.get(variable) for variable in node.heads))
            last |= {key: time} if key in first else {}
        for node in statement.makes:
            key = (*kernel.key(statement, node), *(values.get(variable) for variable in node.heads))
            first.setdefault(key, time)
            last[key], counts[key] = time, 1 if node in masks else kernel.tiles_of(node)
        time += 1
    changes = [0] * (time + 1)
    for tile, count in counts.items():
        changes[first[tile]] += count
        changes[last[tile] + 1] -= count
    live = [*accumulate(changes)]
    return (MADE if draws(kernel) else 1 + kernel.scattered) + max(live), sum(live)


def held_masks(kernel: KernelText) -> set[Node]:
    """Masks that more than two statements of a block read: they take registers, as measured."""
    readers = Counter(
        node for statement in kernel.sections.get(INSIDE, ()) for node in {*statement.reads} if node.op in MASKS
    )
    return {node for node, count in readers.items() if count > 2}


def draws(kernel: KernelText) -> bool:
    """Whether a kernel generates random numbers."""
    return any(
        node.op in ("noise", "drop") for statement in kernel.sections.get(INSIDE, ()) for node in statement.makes
    )


def steps(
    kernel: KernelText, children: Iterable[Loop | Statement], values: Values
) -> Iterator[tuple[Statement, Values]]:
    """The statements in order with loops unrolled; a rolled loop counts two rounds, because its inputs stay live."""
    for child in children:
        if isinstance(child, Statement):
            yield child, values
            continue
        rounds = 2 if child.variable == kernel.rolled else kernel.program.sizes[child.variable]
        for value in range(rounds):
            yield from steps(kernel, child.items, {**values, child.variable: value})


def make(kernel: KernelText, node: Node, section: int) -> Statement:
    """The statement that computes a node."""
    reads = tuple(kernel.read(node))
    if node.op == "over":
        (arg,) = (kernel.scope.instead.get(arg, arg) for arg in node.args)
        reads = tuple(kernel.read(arg)) if arg in kernel.scope.inline else (arg,)
        return Statement(arg.heads, reads, list, (node,), over=node.data[0], how=node.data[1])
    statement = Statement(node.heads, reads, list, (node,))
    if node.op == "highest":
        return highest(kernel, node, statement)
    if node.op in ROWS:
        return online_map(kernel, node, statement)
    statement.lines = lambda: kernel.let(node, section, kernel.text(node))
    return statement


class Demand:
    """The statements of a kernel: each node once, or once per section or loop that reads it."""

    def __init__(self, kernel: KernelText):
        self.text = kernel
        self.sections: dict[int, list[Statement]] = {}
        self.levels: dict[Node, dict[str, int]] = {}
        self.done: set[tuple[int, Key]] = set()

    def all(self) -> dict[int, list[Statement]]:
        """The statements by section."""
        for section, statement in self.text.ends:
            statement.levels = self.most(statement.reads)
            for node in statement.reads:
                self.need(node, section, statement)
            self.sections.setdefault(section, []).append(statement)
        for section, statements in self.sections.items():
            self.later(section, statements)
        return self.sections

    def need(self, node: Node, section: int, reader: Statement) -> None:
        """Adds the statements for a node that a statement reads, and for its arguments."""
        kernel = self.text
        if node in kernel.scope.inline:
            for arg in kernel.read(node):
                self.need(arg, section, reader)
            return
        section, key = kernel.section(node, section), kernel.key(reader, node)
        if node.op in ELSEWHERE or (section, key) in self.done:
            return
        self.done.add((section, key))
        statement = make(kernel, node, section)
        statement.levels = self.most(statement.reads)
        if kernel.anew(node):
            statement.levels[kernel.ranged] = key[1]
        for arg in statement.reads:
            self.need(arg, section, statement)
        kernel.count(node, section)
        self.sections.setdefault(section, []).append(statement)

    def most(self, nodes: Iterable[Node]) -> dict[str, int]:
        levels: dict[str, int] = {}
        for node in nodes:
            for variable, level in self.level(node).items():
                levels[variable] = max(level, levels.get(variable, 0))
        return levels

    def level(self, node: Node) -> dict[str, int]:
        """The number of sums over each variable below a node, itself included."""
        if node not in self.levels:
            levels = self.most(self.text.read(node))
            if node.op == "over":
                levels[node.data[0]] = 1 + levels.get(node.data[0], 0)
            self.levels[node] = levels
        return self.levels[node]

    def later(self, section: int, statements: list[Statement]) -> None:
        """Moves statements into the loops that read them first, so that their values do not stay live."""
        kernel = self.text
        readers: dict[Key, list[dict[str, int]]] = {}
        for statement in reversed(statements):
            reader_levels = [
                levels for node in statement.makes for levels in readers.get(kernel.key(statement, node), ())
            ]
            for variable in kernel.program.sizes if reader_levels else ():
                least = min(levels.get(variable, 0) for levels in reader_levels) - (variable == statement.over)
                if variable != kernel.ranged or not kernel.anew(statement.makes[0]):
                    statement.levels[variable] = max(least, statement.levels.get(variable, 0))
            for node in statement.reads:
                if kernel.section(node, section) == section:
                    readers.setdefault(kernel.key(statement, node), []).append(statement.levels)
