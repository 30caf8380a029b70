"""One Triton kernel: what stands before its loop, inside and after it, from the nodes that it has to compute."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

from tensornet_attn.emit.triton.nodes import Scope, inlined
from tensornet_attn.emit.wrap import wrapped
from tensornet_attn.plan.tiles.model import ROWS, Node, Program, below

_INDENT = "    "
_BARRIER = "tl.debug_barrier()"
_MADE = 9  # tiles of whole numbers, while random ones are made
BEFORE, INSIDE, AFTER, FIRST, LAST = range(5)


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
    repeats: bool = False  # some of it is made twice
    sections: tuple[list[str], ...] = field(default_factory=lambda: ([], [], [], [], []))
    places: dict[Node, int] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    order: list[tuple[Node, tuple[Node, ...]]] = field(default_factory=list)  # made inside of the loop, of what
    kept: list[str] = field(default_factory=list)  # the widths of sums that are held all the time
    given: list[str] = field(default_factory=list)  # those of operands
    streamed: list[str] = field(default_factory=list)  # those of operands that are loaded for each block

    def __post_init__(self) -> None:
        self.scope.before = self.sections[BEFORE]
        if self.crowded:
            self.line(INSIDE, f"{_BARRIER}  # so that numbers are read for each block, and not held")

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

    def line(self, place: int, text: str, node: Node | None = None) -> None:
        shape = "" if node is None else f"  # {' '.join(node.axes) or 'a number'}"
        self.sections[place].append(text + shape)

    def place(self, node: Node) -> int:
        if node not in self.places:
            found = max((self.place(arg) for arg in node.args), default=BEFORE)
            if node.op == "total":
                found = AFTER
            if self.crowded and node.op == "load" and not node.axes:
                found = INSIDE
            self.places[node] = max(found, INSIDE if self.moving & {*node.axes} and found == BEFORE else found)
        return self.places[node]

    def compute(self, ends: Iterable[Node]) -> None:
        """The lines of some nodes, and of all that they need."""
        ends = list(ends)
        needed = below(ends, self.scope.local)
        inside = inlined(self.scope, ends, needed)
        for node in needed:
            if node.op in ("number", "bias") or node in self.scope.inline:
                continue
            there = self.after(node) if self.place(node) == AFTER else {}
            if node in inside:
                self.scope.inline[node] = self.scope.text(node)
            else:
                self.make(node)
            self.scope.local |= there

    def after(self, node: Node) -> dict[Node, str]:
        """Makes the numbers that a node after the loop needs there too; the names that they have inside."""
        found: dict[Node, str] = {}
        for arg in node.args:
            if self.places.get(arg) == INSIDE:
                found |= self.after(arg)
                if arg in self.scope.inline:
                    self.scope.inline[arg] = self.scope.text(arg)
                    continue
                found[arg] = self.scope.local.pop(arg)
                self.places[arg] = AFTER
                self.make(arg)
        self.places |= dict.fromkeys(found, INSIDE)
        return found

    def again(self, kept: Container[Node]) -> None:
        """From here on numbers are read, and what is computed entry by entry is made again, but what is kept."""
        self.repeats = True
        self.line(INSIDE, f"{_BARRIER}  # so that what follows is made again, and not held")
        self.scope.inline.clear()
        for node in [node for node, place in self.places.items() if place == INSIDE and node not in kept]:
            if node.op in ("add", "mul", "map") or (node.op == "load" and not node.axes):
                self.scope.local.pop(node, None)

    def make(self, node: Node) -> None:
        place = self.place(node)
        self.order += [(node, tuple(self.read(node)))] if place == INSIDE else []
        if place == INSIDE and self.scope.raw(node):
            self.streamed += self.widths_of(node)
        if place == BEFORE:
            own = self.given if self.scope.raw(node) else self.kept
            own += self.widths_of(node)
        if node.op in (*ROWS, "keep"):
            self.look(*node.data[:2])
        if node.op in ROWS:
            self.soften(node)
            return
        text = self.scope.text(node)
        name = self.scope.local[node] = self.scope.label(node)
        self.line(place, f"{name} = {text}", node)
        for bias in (arg for arg in node.args if arg.op == "bias"):
            self.line(place, "if MASK == 2:")
            self.line(place, f"{_INDENT}{name} += {self.bias(bias)}")

    def widths_of(self, node: Node) -> list[str]:
        """Its widths, twice for relative positions: of these there are as many as of queries and keys together."""
        often = 2 if {*self.program.relative} & {*node.axes} else 1
        return often * [axis for axis in node.axes if axis in self.program.widths]

    @property
    def live(self) -> int:
        """The most tiles of queries x keys that are needed at once, with what is being made."""
        first, last = dict[Node, int](), dict[int, int]()
        for time, (node, args) in enumerate(self.order):
            last |= {first[arg]: time for arg in args if arg in first}
            first[node] = last[time] = time
        made = _MADE if any(node.op in ("noise", "drop") for node, _ in self.order) else 1
        spans = [(time, last[time], self.tiles_of(node)) for time, (node, _) in enumerate(self.order)]
        return made + max((sum(c for a, b, c in spans if a <= t <= b) for t in range(len(self.order))), default=0)

    def tiles_of(self, node: Node) -> int:
        """As how many tiles of queries x keys a node counts: more where numbers move to other threads, to be used."""
        query, key = self.program.query, self.program.key
        if node.axes == (query, key):
            return 2 if node.op == "noise" else 1
        return 3 if self.program.relative and node.axes == (query, *self.program.relative) else 0

    def read(self, node: Node) -> Iterator[Node]:
        """What a line reads: the arguments of a node, and those of what stands inside it."""
        for arg in node.args:
            yield arg
            if arg in self.scope.inline:
                yield from self.read(arg)

    def mask_of(self, places: tuple[int, ...]) -> str:
        """The arguments that say where a tile of the call's mask is."""
        others, n, m = self.program.others, self.program.query, self.program.key
        count = 1 + len(others)
        base = self.scope.base("mask", others, places)
        return f"{base}, {n}, mask_step[{count}], {n}_end, {m}, mask_step[{count + 1}], {m}_end"

    def bias(self, node: Node) -> str:
        return f"bias_2d({self.mask_of(node.data[0])}).to(SUMS)"

    def look(self, mask: int, places: tuple[int, ...]) -> None:
        """Where a tile of a box may look."""
        name = self.scope.seen(mask, places)
        if name in self.seen:
            return
        self.seen.add(name)
        left, right = self.program.masks[mask]
        text = "visible"
        text += "" if left is None else f" & (apart <= {left})"
        text += "" if right is None else f" & (apart >= {-right})"
        self.line(INSIDE, f"{name} = allowed({text}, {self.mask_of(places)}, MASK)")

    def soften(self, node: Node) -> None:
        number, (scores,) = self.program.maps.index(node), node.args
        seen, x = self.scope.seen(*node.data[:2]), self.scope.ref(scores, node.axes)
        name = self.scope.local[node] = self.scope.label(node)
        if node.op == "normalize":
            whole = x if self.online else f"({x}) * lse_{number}[:, None]"
            self.line(INSIDE, f"{name} = tl.where({seen}, {whole}, 0.0)", node)
            if self.online:
                self.line(INSIDE, f"total_{number} += tl.sum({name}, 1)")
        elif self.online:
            most, total, fade = f"most_{number}", f"total_{number}", f"fade_{number}"
            self.line(INSIDE, f"{name}, {fade}, {most}, {total} = online({x}, {seen}, {most}, {total})", node)
        else:
            self.line(INSIDE, f"{name} = softened({x}, {seen}, lse_{number})", node)

    def source(self, name: str, about: str, parameters: Iterable[str], bounds: tuple[str, str]) -> str:
        """The function."""
        inside = [*self.block_lines(), *self.pair_lines(), *self.sections[INSIDE]]
        loop = [
            f"for start in range({bounds[0]}, {bounds[1]}, {self.other}_block):",
            *(_INDENT + line for line in inside),
        ]
        tile = [*self.sections[BEFORE], *loop, *self.sections[AFTER]]
        if self.looped:
            tile = [*self.sections[FIRST], *self.around(tile), *self.sections[LAST]]
        body = [f'"""{about}"""', *self.opening(), *tile]
        lines = [part for line in body for part in _indented(line)]
        head = wrapped(f"def {name}({', '.join(parameters)}):", 0)
        return "\n".join(["@triton.jit", *head, *lines])

    def around(self, lines: list[str]) -> list[str]:
        """The loop over the tiles of a leg."""
        leg, heads = self.looped, [leg for leg in self.program.heads if leg not in self.program.whole]
        first = f"{leg}_part * {leg}_share"
        pair = "batch"
        for own in heads:
            pair = (
                f"({pair} * {own}_programs + {own}_at)" if own != heads[-1] else f"{pair} * {own}_programs + {own}_at"
            )
        loop = f"for {leg}_at in range({first}, tl.minimum({first} + {leg}_share, {leg}_programs)):"
        return [loop, *(_INDENT + line for line in [f"pair = {pair}", *lines])]

    def opening(self) -> list[str]:
        """Which block, batch element and tiles of heads a program has."""
        f, rest = self.fixed, "lead" if self.looped else "pair"
        lines = [f"block, {rest} = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)"]
        if f in self.program.relative:
            n, m = self.program.query, self.program.key
            lines += [f"first = (block - (tl.cdiv({m}_end, {m}_block) - 1)) * {n}_block", *self.place_lines("first")]
        else:
            lines += [f"first = block * {f}_block", f"{f} = first + tl.arange(0, {f}_block)"]
        start = rest
        for leg in reversed([leg for leg in self.program.heads if leg not in self.program.whole]):
            own, count = (f"{leg}_part", f"{leg}_parts") if leg == self.looped else (f"{leg}_at", f"{leg}_programs")
            lines.append(f"{own}, batch = {rest} % {count}, {rest} // {count}")
            rest = "batch"
        lines += ["batch = pair"] if rest == start else []
        return lines + [f"{axis} = tl.arange(0, {axis}_wide)" for axis in self.program.widths]

    def place_lines(self, apart: str) -> list[str]:
        """Relative positions of two blocks that begin so far apart: after the end where there are none before."""
        m = self.program.key
        return [
            line
            for p in self.program.relative
            for line in (
                f"{p} = {apart} + {m}_end - {m}_block + tl.arange(0, {p}_block)",
                f"{p} = tl.where({p} < 0, {p}_end, {p})",
            )
        ]

    def block_lines(self) -> list[str]:
        """What stands in a block of the loop."""
        n, m = self.program.query, self.program.key
        if self.fixed in self.program.relative:
            return [f"{n} = start + tl.arange(0, {n}_block)", f"{m} = start - first + tl.arange(0, {m}_block)"]
        apart = "first - start" if self.fixed == n else "start - first"
        return [f"{self.other} = start + tl.arange(0, {self.other}_block)", *self.place_lines(apart)]

    def pair_lines(self) -> list[str]:
        n, m = self.program.query, self.program.key
        return [
            f"apart = ({n} + ({m}_end - {n}_end))[:, None] - {m}[None, :]",
            f"there = ({n} < {n}_end)[:, None] & ({m} < {m}_end)[None, :]",
            "visible = there",
            "if KEYS:",
            f"{_INDENT}own = load_1d(key_mask + batch * key_mask_step[0], {m}, key_mask_step[1], {m}_end)",
            f"{_INDENT}visible &= (own != 0)[None, :]",
        ]


def _indented(line: str) -> list[str]:
    own = len(line) - len(line.lstrip(" "))
    return [" " * (own + 4) + part for part in wrapped(line.lstrip(" "), own + 4)]
