"""One Triton kernel: its statements by section and loop, and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tensornet_attn.emit.triton.nodes import KernelNames, arguments, flat
from tensornet_attn.tiles.loops import Accumulator, Key, Loop, Statement, shared
from tensornet_attn.tiles.program import Node, Program, scale_of

BEFORE, INSIDE, AFTER, FIRST, LAST = range(5)
# Expensive nodes, computed only once if possible.
HELD = ("noise", "drop", "dot", "softened", "gradient")


@dataclass
class KernelText:
    """A kernel whose programs handle one block of the `fixed` side and loop over blocks of the `other` side.

    A `looped` leg adds an outer loop: its tiles add to the same accumulators, which are opened FIRST and stored LAST.
    """

    scope: KernelNames
    fixed: str
    looped: str | None = None
    online: bool = False  # maps are not yet divided by their row sums, which are accumulated online
    crowded: bool = False  # too many scalars for registers: they are loaded where needed
    lean: bool = False  # values of one variable are recomputed in each loop over it
    ranged: str = ""  # this variable
    again: bool = False  # a barrier before these loops keeps the compiler from reusing values
    rolled: str = ""  # the variable, if its only loop is not unrolled
    ends: list[tuple[int, Statement]] = field(default_factory=list)
    sections: dict[int, list[Statement]] = field(default_factory=dict)
    loops: dict[int, list[Loop | Statement]] = field(default_factory=dict)
    starts: dict[int, list[tuple[Accumulator, Callable[[], str]]]] = field(default_factory=dict)
    names: dict[tuple[Node, int], str] = field(default_factory=dict)
    dims: dict[tuple[Node, int], tuple[str, ...]] = field(default_factory=dict)
    places: dict[Node, int] = field(default_factory=dict)
    live: int = 0  # maximum live tiles of queries x keys, temporaries included
    accumulators: list[str] = field(default_factory=list)  # widths of accumulators inside of the inner loop
    numbers: int = 0  # scalar sums
    scattered: int = 0  # tiles of addresses and conditions while entries of tables are stored, as measured
    resident: list[str] = field(default_factory=list)  # widths of resident operands and of values derived from them
    streamed: list[str] = field(default_factory=list)  # widths of operands loaded per block
    temporaries: list[str] = field(default_factory=list)  # widths of temporaries derived from them entry by entry

    @property
    def program(self) -> Program:
        return self.scope.program

    @property
    def other(self) -> str:
        return self.program.key if self.fixed == self.program.query else self.program.query

    @property
    def moving(self) -> set[str]:
        """The sides along which a program has a different block in each iteration."""
        return {self.program.query, self.program.key, *self.program.relative} - {self.fixed}

    # statements

    def add(
        self,
        section: int,
        lines: Callable[[], list[str]],
        reads: Iterable[Node] = (),
        heads: Iterable[str] = (),
        carried: Iterable[Accumulator] = (),
        parts: bool = False,
    ) -> None:
        """Adds lines that make no node, inside loops over `heads`."""
        self.ends.append(
            (section, Statement(tuple(heads), tuple(reads), lines, carried=tuple(carried), in_parts=parts))
        )

    def add_sum(self, accumulator: Accumulator, summand: Node) -> None:
        """Adds a node to an accumulator in each step of the loop."""
        self.add(
            INSIDE,
            lambda: self.assign(accumulator, self.scope.ref(summand), adds=True),
            [summand],
            summand.heads,
            [accumulator],
        )

    def carry(self, wish: str, section: int, start: str | Callable[[], str]) -> Accumulator:
        """Adds an accumulator that is initialised in a section."""
        accumulator = Accumulator(self.scope.new_name(wish))
        self.starts.setdefault(section, []).append((accumulator, start if callable(start) else lambda: start))
        return accumulator

    def entry(self, accumulator: Accumulator, index: dict[str, str] | None = None) -> str:
        """The entry of an accumulator for the variables of the surrounding loops, or for the variables in `index`."""
        indices = [(index or {}).get(variable, variable) for variable in accumulator.dims]
        sizes = [self.program.sizes[variable] for variable in accumulator.dims]
        return f"{accumulator.name}[{flat(indices, sizes)}]" if accumulator.dims else accumulator.name

    def assign(self, accumulator: Accumulator, expression: str, adds: bool = False) -> list[str]:
        if accumulator.dims:
            return [
                f"{accumulator.name}_next += ({f'{self.entry(accumulator)} + {expression}' if adds else expression},)"
            ]
        return [f"{accumulator.name} {'+' if adds else ''}= {expression}"]

    def section_of(self, node: Node) -> int:
        """The section of a node: the first in which all its arguments are known."""
        if node not in self.places:
            args = (self.scope.instead.get(arg, arg) for arg in node.args)
            section = max(map(self.section_of, args), default=BEFORE)
            if node.op in ("sum_over_blocks", "alpha"):
                section = AFTER if node.op == "sum_over_blocks" else INSIDE
            self.places[node] = max(section, INSIDE if self.moving & {*node.axes} and section == BEFORE else section)
        return self.places[node]

    def late(self, node: Node) -> bool:
        """Whether a node is recomputed in each section that reads it."""
        if self.rolled in node.heads:
            return True
        if node.op == "load" and not node.axes and (self.crowded or self.ranged in node.heads):
            return True
        return not node.axes and any(self.late(arg) for arg in node.args)

    def anew(self, node: Node) -> bool:
        """Whether a node is recomputed in each loop over the `ranged` variable that reads it."""
        return self.ranged in node.heads and (bool(self.rolled) or node.op not in HELD)

    def key(self, statement: Statement, node: Node) -> Key:
        """The key of a node for a statement that makes or reads it."""
        return (node, statement.levels.get(self.ranged, 0) if self.anew(node) else 0)

    def read(self, node: Node) -> Iterator[Node]:
        """The nodes that a line reads: arguments of a node, and those of nodes nested in it."""
        if node.op == "visible":
            yield self.program.nodes.mask_tile(node)
        for arg in (self.scope.instead.get(arg, arg) for arg in arguments(node)):
            if arg in self.scope.inline:
                yield from self.read(arg)
            elif arg.op not in ("number", "sum_over_blocks"):
                yield arg

    # names and live values

    def name_all(self) -> None:
        """Names each node; a node that stays live for another loop is a tuple with one entry per value."""
        readers: dict[tuple[Node, int], list[tuple[int, Statement]]] = {}
        for section, statements in self.sections.items():
            for statement in statements:
                for node in statement.reads:
                    readers.setdefault((node, self.section(node, section)), []).append((section, statement))
        for section, statements in self.sections.items():
            for statement in statements:
                for node in statement.makes:
                    paths = [
                        reader.path if reader_section == section else ()
                        for reader_section, reader in readers.get((node, section), ())
                        if reader_section != section or self.key(reader, node) == self.key(statement, node)
                    ]
                    shared_loops = min(
                        (shared(statement.result_loops, path) for path in paths), default=len(statement.result_loops)
                    )
                    dims = (*(loop.variable for loop in statement.result_loops[shared_loops:]), *statement.inner)
                    if len(dims) >= len(self.dims.get((node, section), ())):
                        self.dims[node, section] = dims
                    if (node, section) not in self.names:
                        self.names[node, section] = self.scope.label(node)
                for carried in statement.carried:
                    carried.dims = tuple(variable for variable in statement.variables if variable != self.rolled)

    def section(self, node: Node, reader: int) -> int:
        """The section that computes a node read in section `reader`."""
        return reader if self.late(node) else self.section_of(node)

    def refer(self, node: Node, section: int) -> str:
        """A node as referenced in a line of a section."""
        key = (node, self.section(node, section))
        dims = self.dims[key]
        sizes = [self.program.sizes[variable] for variable in dims]
        return f"{self.names[key]}[{flat(dims, sizes)}]" if dims else self.names[key]

    def let(self, node: Node, section: int, expression: str) -> list[str]:
        name = self.names[node, section]
        comment = f"  # {' '.join(node.axes) or 'a number'}"
        return [(f"{name} += ({expression},)" if self.dims[node, section] else f"{name} = {expression}") + comment]

    def text(self, node: Node) -> str:
        expression = self.scope.text(node)
        for bias in (arg for arg in node.args if arg.op == "bias"):
            scale = scale_of(node)
            factor = "1.0" if scale is None else self.scope.ref(scale, ())
            expression = f"with_bias({expression}, {factor}, {self.scope.ref(bias, node.axes)}, MASK, SUMS)"
        return expression

    def alpha(self, node: Node) -> Node:
        """The factor that rescales earlier accumulators, per row of a map."""
        return self.program.nodes.node("alpha", (), (self.program.query,), "alpha", node.data[:2])

    # resources

    def widths_of(self, node: Node) -> list[str]:
        """The widths of all tiles of a node. Relative positions count twice: there are as many as queries plus keys."""
        copies = (2 if {*self.program.relative} & {*node.axes} else 1) * self.program.tiles(node.heads)
        return copies * [axis for axis in node.axes if axis in self.program.widths]

    def count(self, node: Node, section: int) -> None:
        """Adds the widths of a node to those of resident, streamed and temporary values."""
        if section == INSIDE and self.scope.raw(node):
            self.streamed += self.widths_of(node)
        elif section == INSIDE and self.other in node.axes and node.op in ("add", "mul", "map", "slope"):
            self.temporaries += self.widths_of(node)
        if section == BEFORE and len(node.axes) == 2:
            self.resident += self.widths_of(node)

    def tiles_of(self, node: Node) -> int:
        """The tiles that a node counts as: more if values move to other threads before use."""
        query, key = self.program.pair
        if node.axes == (query, key):
            products = node.op == "over" and node.args[0].op == "dot"  # products in flight at once
            count = self.program.sizes[node.data[0]] if products else 1
            return 0 if node.op in ("bias", "visible", "both", "either") else 2 if node.op == "noise" else count
        return 3 if self.program.relative and node.axes == (query, *self.program.relative) else 0
