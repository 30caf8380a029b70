"""One Triton kernel: what stands before its loop, inside and after it, from the nodes that it has to compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tensornet_attn.emit.triton.nodes import Scope, inlined
from tensornet_attn.emit.wrap import wrapped
from tensornet_attn.plan.tiles.model import Node, Program, below

_INDENT = "    "
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
    sections: tuple[list[str], ...] = field(default_factory=lambda: ([], [], [], [], []))
    places: dict[Node, int] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    order: list[Node] = field(default_factory=list)  # what is made inside of the loop
    kept: list[str] = field(default_factory=list)  # the widths of sums that are held all the time
    given: list[str] = field(default_factory=list)  # those of operands

    def __post_init__(self) -> None:
        self.scope.before = self.sections[BEFORE]

    @property
    def program(self) -> Program:
        return self.scope.program

    @property
    def other(self) -> str:
        return self.program.key if self.fixed == self.program.query else self.program.query

    def line(self, place: int, text: str, node: Node | None = None) -> None:
        shape = "" if node is None else f"  # {' '.join(node.axes) or 'a number'}"
        self.sections[place].append(text + shape)

    def place(self, node: Node) -> int:
        if node not in self.places:
            found = max((self.place(arg) for arg in node.args), default=BEFORE)
            if node.op == "total":
                found = AFTER
            self.places[node] = max(found, INSIDE if self.other in node.axes and found == BEFORE else found)
        return self.places[node]

    def compute(self, ends: Iterable[Node]) -> None:
        """The lines of some nodes, and of all that they need."""
        ends = list(ends)
        needed = below(ends)
        inside = inlined(self.scope, ends, needed)
        for node in needed:
            if node.op in ("number", "bias") or node in self.scope.local or node in self.scope.inline:
                continue
            if node in inside:
                self.scope.inline[node] = self.scope.text(node)
                continue
            self.make(node)

    def make(self, node: Node) -> None:
        place = self.place(node)
        self.order += [node] if place == INSIDE else []
        if place == BEFORE:
            own = self.given if self.scope.raw(node) else self.kept
            own += [axis for axis in node.axes if axis in self.program.widths]
        if node.op in ("softmax", "keep"):
            self.look(*node.data)
        if node.op == "softmax":
            self.soften(node)
            return
        text = self.scope.text(node)
        name = self.scope.local[node] = self.scope.label(node)
        self.line(place, f"{name} = {text}", node)
        for bias in (arg for arg in node.args if arg.op == "bias"):
            self.line(place, "if MASK == 2:")
            self.line(place, f"{_INDENT}{name} += {self.bias(bias)}")

    @property
    def live(self) -> int:
        """The most tiles of queries x keys that are needed at once, with what is being made."""
        last: dict[Node, int] = {}
        for time, node in enumerate(self.order):
            for arg in self.read(node):
                last[arg] = time
        pair = (self.program.query, self.program.key)
        spans = [(time, last.get(node, time)) for time, node in enumerate(self.order) if node.axes == pair]
        made = _MADE if any(node.op in ("noise", "drop") for node in self.order) else 1
        return made + max((sum(a <= t <= b for a, b in spans) for t in range(len(self.order))), default=0)

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
        text = "there"
        text += "" if left is None else f" & (apart <= {left})"
        text += "" if right is None else f" & (apart >= {-right})"
        self.line(INSIDE, f"{name} = allowed({text}, {self.mask_of(places)}, MASK)")

    def soften(self, node: Node) -> None:
        number, (scores,) = self.program.maps.index(node), node.args
        seen, x = self.scope.seen(*node.data), self.scope.ref(scores, node.axes)
        name = self.scope.local[node] = self.scope.label(node)
        if self.online:
            most, total, fade = f"most_{number}", f"total_{number}", f"fade_{number}"
            self.line(INSIDE, f"{name}, {fade}, {most}, {total} = online({x}, {seen}, {most}, {total})", node)
        else:
            self.line(INSIDE, f"{name} = softened({x}, {seen}, lse_{number})", node)

    def source(self, name: str, about: str, parameters: Iterable[str], bounds: tuple[str, str]) -> str:
        """The function."""
        o = self.other
        loop = [
            f"for start in range({bounds[0]}, {bounds[1]}, {o}_block):",
            *(
                _INDENT + line
                for line in [f"{o} = start + tl.arange(0, {o}_block)", *self.pair_lines(), *self.sections[INSIDE]]
            ),
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
        lines = [
            f"block, {rest} = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)",
            f"first = block * {f}_block",
            f"{f} = first + tl.arange(0, {f}_block)",
        ]
        start = rest
        for leg in reversed([leg for leg in self.program.heads if leg not in self.program.whole]):
            own, count = (f"{leg}_part", f"{leg}_parts") if leg == self.looped else (f"{leg}_at", f"{leg}_programs")
            lines.append(f"{own}, batch = {rest} % {count}, {rest} // {count}")
            rest = "batch"
        lines += ["batch = pair"] if rest == start else []
        return lines + [f"{axis} = tl.arange(0, {axis}_wide)" for axis in self.program.widths]

    def pair_lines(self) -> list[str]:
        n, m = self.program.query, self.program.key
        return [
            f"apart = ({n} + ({m}_end - {n}_end))[:, None] - {m}[None, :]",
            f"there = ({n} < {n}_end)[:, None] & ({m} < {m}_end)[None, :]",
            "if KEYS:",
            f"{_INDENT}own = load_1d(key_mask + batch * key_mask_step[0], {m}, key_mask_step[1], {m}_end)",
            f"{_INDENT}there &= (own != 0)[None, :]",
        ]


def _indented(line: str) -> list[str]:
    own = len(line) - len(line.lstrip(" "))
    return [" " * (own + 4) + part for part in wrapped(line.lstrip(" "), own + 4)]
