"""One Triton kernel: what it has to make, in which section, in which loops, and under which names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tensornet_attn.emit.triton.loops import Carried, Key, Loop, Statement, shared
from tensornet_attn.emit.triton.nodes import Scope, arguments, flat
from tensornet_attn.tiles.model import Node, Program, scale_of

BEFORE, INSIDE, AFTER, FIRST, LAST = range(5)
# Nodes that are made once where that is possible: they take long.
HELD = ("noise", "drop", "dot", "softened", "gradient")


@dataclass
class KernelText:
    """A kernel whose programs have one block of the `fixed` side each, and loop over blocks of the `other` side.

    A leg that is `looped` is a loop around all that: its tiles add to the same sums, which stand FIRST and LAST.
    """

    scope: Scope
    fixed: str
    looped: str | None = None
    online: bool = False  # maps are not divided by their sums yet: these are found on the way
    crowded: bool = False  # numbers are too many to be held: they are read where they are needed
    lean: bool = False  # what one variable has is made anew in each loop over it, and not held
    ranged: str = ""  # that variable
    again: bool = False  # there is a barrier before these loops, so that nothing is held all the same
    rolled: str = ""  # the variable, where its only loop is not unrolled
    ends: list[tuple[int, Statement]] = field(default_factory=list)
    made: dict[int, list[Statement]] = field(default_factory=dict)
    loops: dict[int, list[Loop | Statement]] = field(default_factory=dict)
    starts: dict[int, list[tuple[Carried, Callable[[], str]]]] = field(default_factory=dict)
    names: dict[tuple[Node, int], str] = field(default_factory=dict)
    dims: dict[tuple[Node, int], tuple[str, ...]] = field(default_factory=dict)
    places: dict[Node, int] = field(default_factory=dict)
    live: int = 0  # the most tiles of queries x keys that are needed at once, with what is being made
    accumulators: list[str] = field(default_factory=list)  # the widths of sums that are held all the time
    numbers: int = 0  # sums that are one number each
    resident: list[str] = field(default_factory=list)  # those of operands, and of what is made of them
    streamed: list[str] = field(default_factory=list)  # those of operands that are loaded for each block
    temporaries: list[str] = field(default_factory=list)  # those of what is made of them, entry by entry

    @property
    def program(self) -> Program:
        return self.scope.program

    @property
    def other(self) -> str:
        return self.program.key if self.fixed == self.program.query else self.program.query

    @property
    def moving(self) -> set[str]:
        """The sides of which a program has another block each time around its loop."""
        return {self.program.query, self.program.key, *self.program.relative} - {self.fixed}

    # what is to be made

    def add(
        self,
        section: int,
        lines: Callable[[], list[str]],
        reads: Iterable[Node] = (),
        heads: Iterable[str] = (),
        carried: Iterable[Carried] = (),
        parts: bool = False,
    ) -> None:
        """Lines that make no node, inside of loops over `heads`."""
        self.ends.append((section, Statement(tuple(heads), tuple(reads), lines, carried=tuple(carried), parts=parts)))

    def carry(self, wish: str, section: int, start: str | Callable[[], str]) -> Carried:
        """What goes on from block to block, from a start that stands in a section."""
        found = Carried(self.scope.own(wish))
        self.starts.setdefault(section, []).append((found, start if callable(start) else lambda: start))
        return found

    @property
    def every(self) -> int:
        """The length of a row of numbers with an entry for each value of the variable that is not unrolled."""
        return 1 << (self.program.nodes.sizes[self.rolled] - 1).bit_length()

    def entry(self, one: Carried, index: dict[str, str] | None = None) -> str:
        """What is carried, for the variables of the loops around, or for others that stand for them."""
        places = [(index or {}).get(variable, variable) for variable in one.dims]
        sizes = [self.program.nodes.sizes[variable] for variable in one.dims]
        return f"{one.name}[{flat(places, sizes)}]" if one.dims else one.name

    def assign(self, one: Carried, value: str, adds: bool = False) -> list[str]:
        if one.dims:
            return [f"{one.name}_next += ({f'{self.entry(one)} + {value}' if adds else value},)"]
        return [f"{one.name} {'+' if adds else ''}= {value}"]

    def place(self, node: Node) -> int:
        """The section of a node, the first that has all that it needs."""
        if node not in self.places:
            args = (self.scope.instead.get(arg, arg) for arg in node.args)
            found = max(map(self.place, args), default=BEFORE)
            if node.op in ("sum_over_blocks", "alpha"):
                found = AFTER if node.op == "sum_over_blocks" else INSIDE
            self.places[node] = max(found, INSIDE if self.moving & {*node.axes} and found == BEFORE else found)
        return self.places[node]

    def late(self, node: Node) -> bool:
        """Whether a node is made again in each section that reads it."""
        if self.rolled in node.heads:
            return True
        if node.op == "load" and not node.axes and (self.crowded or self.ranged in node.heads):
            return True
        return not node.axes and any(self.late(arg) for arg in node.args)

    def anew(self, node: Node) -> bool:
        """Whether a node is made in each loop over the `ranged` variable that reads it."""
        return self.ranged in node.heads and (bool(self.rolled) or node.op not in HELD)

    def key(self, one: Statement, node: Node) -> Key:
        """A node as a statement makes or reads it."""
        return (node, one.levels.get(self.ranged, 0) if self.anew(node) else 0)

    def read(self, node: Node) -> Iterator[Node]:
        """What a line reads: the arguments of a node, and those of what stands inside it."""
        for arg in (self.scope.instead.get(arg, arg) for arg in arguments(node)):
            if arg in self.scope.inline:
                yield from self.read(arg)
            elif arg.op not in ("number", "bias", "sum_over_blocks"):
                yield arg

    # names, and what is held

    def name_all(self) -> None:
        """A name for each node: that of a tuple where it is held for another loop, with an entry for each value."""
        readers: dict[tuple[Node, int], list[tuple[int, Statement]]] = {}
        for section, statements in self.made.items():
            for one in statements:
                for node in one.reads:
                    readers.setdefault((node, self.section(node, section)), []).append((section, one))
        for section, statements in self.made.items():
            for one in statements:
                for node in one.makes:
                    paths = [
                        other.path if there == section else ()
                        for there, other in readers.get((node, section), ())
                        if there != section or self.key(other, node) == self.key(one, node)
                    ]
                    kept = min((shared(one.known, path) for path in paths), default=len(one.known))
                    dims = (*(loop.variable for loop in one.known[kept:]), *one.inner)
                    if len(dims) >= len(self.dims.get((node, section), ())):
                        self.dims[node, section] = dims
                    if (node, section) not in self.names:
                        self.names[node, section] = self.scope.label(node)
                for carried in one.carried:
                    carried.dims = tuple(v for v in one.variables if v != self.rolled)

    def section(self, node: Node, reader: int) -> int:
        """The section in which a node is made that is read in this one."""
        return reader if self.late(node) else self.place(node)

    def refer(self, node: Node, section: int) -> str:
        """A node as a line of a section has it."""
        at = (node, self.section(node, section))
        dims = self.dims[at]
        places = [self.program.nodes.sizes[variable] for variable in dims]
        return f"{self.names[at]}[{flat(dims, places)}]" if dims else self.names[at]

    def let(self, node: Node, section: int, text: str) -> list[str]:
        name = self.names[node, section]
        shape = f"  # {' '.join(node.axes) or 'a number'}"
        return [(f"{name} += ({text},)" if self.dims[node, section] else f"{name} = {text}") + shape]

    def text(self, node: Node) -> str:
        text = self.scope.text(node)
        for bias in (arg for arg in node.args if arg.op == "bias"):
            scale = scale_of(node)
            factor = "1.0" if scale is None else self.scope.ref(scale, ())
            text = f"with_bias({text}, {factor}, {self.scope.mask_of(bias.data[0])}, MASK, SUMS)"
        return text

    def alpha(self, node: Node) -> Node:
        """What all before is multiplied with, for each row of a map."""
        return self.program.nodes.node("alpha", (), (self.program.query,), "alpha", node.data[:2])

    # what it needs

    def widths_of(self, node: Node) -> list[str]:
        """Its widths, for all of its tiles; twice for relative positions: of these there are as many as of queries and
        keys together."""
        often = (2 if {*self.program.relative} & {*node.axes} else 1) * self.program.tiles(node.heads)
        return often * [axis for axis in node.axes if axis in self.program.widths]

    def count(self, node: Node, section: int) -> None:
        """Adds to the widths of what is held, loaded and made."""
        if section == INSIDE and self.scope.raw(node):
            self.streamed += self.widths_of(node)
        elif section == INSIDE and self.other in node.axes and node.op in ("add", "mul", "map", "slope"):
            self.temporaries += self.widths_of(node)
        if section == BEFORE and len(node.axes) == 2:
            self.resident += self.widths_of(node)

    def tiles_of(self, node: Node) -> int:
        """As how many tiles of queries x keys a node counts: more where numbers move to other threads, to be used."""
        query, key = self.program.query, self.program.key
        if node.axes == (query, key):
            products = node.op == "over" and node.args[0].op == "dot"  # that are on their way at once
            often = self.program.nodes.sizes[node.data[0]] if products else 1
            return 0 if node.op in ("visible", "both", "either") else 2 if node.op == "noise" else often
        return 3 if self.program.relative and node.axes == (query, *self.program.relative) else 0
