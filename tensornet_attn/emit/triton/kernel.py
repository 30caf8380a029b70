"""One Triton kernel: what stands before its loop, inside and after it, from the nodes that it has to compute."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

from tensornet_attn.emit.triton.nodes import Scope, inlined
from tensornet_attn.emit.wrap import wrapped
from tensornet_attn.plan.tiles.derive import part_of
from tensornet_attn.plan.tiles.model import ROWS, Node, Program, along_width, below, scale_of

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
    accumulators: list[str] = field(default_factory=list)  # the widths of sums that are held all the time
    numbers: int = 0  # sums that are one number each
    resident: list[str] = field(default_factory=list)  # those of operands, and of what is made of them
    streamed: list[str] = field(default_factory=list)  # those of operands that are loaded for each block
    temporaries: list[str] = field(default_factory=list)  # those of what is made of them, entry by entry

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
            args = (self.scope.instead.get(arg, arg) for arg in node.args)
            found = max(map(self.place, args), default=BEFORE)
            if node.op == "sum_over_blocks":
                found = AFTER
            if self.crowded and node.op == "load" and not node.axes:
                found = INSIDE
            self.places[node] = max(found, INSIDE if self.moving & {*node.axes} and found == BEFORE else found)
        return self.places[node]

    def compute(self, ends: Iterable[Node]) -> None:
        """The lines of some nodes, and of all that they need."""
        ends = list(ends)
        self.lean(ends)
        needed = below(ends, self.scope.local, self.scope.instead)
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

    def lean(self, ends: Iterable[Node]) -> None:
        """Products whose factor along the summed width stands beside what is loaded for each block: it is put on the
        other side, of which a program has one block."""
        nodes = self.program.nodes
        for node in below(ends, self.scope.local):
            if node.op != "dot" or node in self.scope.instead:
                continue
            for moved, held in (node.args, node.args[::-1]):
                row, rest = along_width(moved)
                if row is not None and row.axes == node.data and self.loaded(rest) and not self.loaded(held):
                    self.scope.instead[node] = nodes.product(
                        rest, nodes.mul(row, held, moved.name), node.axes, node.name
                    )

    def loaded(self, node: Node) -> bool:
        """Whether a tile is another one for each block of the loop."""
        return bool(self.moving & {*node.axes})

    def after(self, node: Node) -> dict[Node, str]:
        """Makes the numbers that a node after the loop needs there too; the names that they have inside."""
        found: dict[Node, str] = {}
        for arg in (self.scope.instead.get(arg, arg) for arg in node.args):
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
            if node.op in ("add", "mul", "map", "hide") or (node.op == "load" and not node.axes):
                self.scope.local.pop(node, None)

    def make(self, node: Node) -> None:
        place = self.place(node)
        self.order += [(node, tuple(self.read(node)))] if place == INSIDE else []
        if place == INSIDE and self.scope.raw(node):
            self.streamed += self.widths_of(node)
        elif place == INSIDE and self.other in node.axes and node.op in ("add", "mul", "map", "slope"):
            self.temporaries += self.widths_of(node)
        if place == BEFORE and len(node.axes) == 2:
            self.resident += self.widths_of(node)
        if node.op in (*ROWS, "keep", "part"):
            self.look(*node.data[:2])
        if node.op == "hide":
            for mask in (mask for group in node.data[0] for mask in group):
                self.look(*mask)
        if node.op in ROWS:
            self.soften(node)
            return
        if node.op == "part":
            self.line(INSIDE, f"{self.named(node)} = {self.softened(node, node.args[0], node.data[2])}", node)
            return
        text = self.scope.text(node)
        for bias in (arg for arg in node.args if arg.op == "bias"):
            scale = scale_of(node)
            factor = "1.0" if scale is None else self.scope.ref(scale, ())
            text = f"with_bias({text}, {factor}, {self.mask_of(bias.data[0])}, MASK, SUMS)"
        self.line(place, f"{self.named(node)} = {text}", node)

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
            return 2 if node.op == "noise" else len(node.args) if node.op == "softmax" else 1
        return 3 if self.program.relative and node.axes == (query, *self.program.relative) else 0

    def read(self, node: Node) -> Iterator[Node]:
        """What a line reads: the arguments of a node, and those of what stands inside it."""
        for arg in (self.scope.instead.get(arg, arg) for arg in node.args):
            yield arg
            if arg in self.scope.inline:
                yield from self.read(arg)

    def mask_of(self, places: tuple[int, ...]) -> str:
        """The arguments that say where a tile of the call's mask is."""
        others = self.program.others
        steps = {axis: f"mask_step[{i}]" for i, axis in enumerate(self.program.pair, 1 + len(others))}
        sides = ", ".join(f"{axis}, {steps[axis]}, {axis}_end" for axis in self.scope.pair)
        base = self.scope.base("mask", others, places)
        return f"{base if base.isidentifier() else self.scope.named(base, 'mask_base')}, {sides}"

    def look(self, mask: int, places: tuple[int, ...]) -> None:
        """Where a tile of a box may look."""
        name = self.scope.seen(mask, places)
        if name in self.seen:
            return
        self.seen.add(name)
        left, right = self.program.masks[mask]
        text = "visible"
        text += "" if left is None else f" & (distance <= {left})"
        text += "" if right is None else f" & (distance >= {-right})"
        self.line(INSIDE, f"{name} = allowed({text}, {self.mask_of(places)}, MASK)")

    def named(self, node: Node) -> str:
        self.scope.local[node] = self.scope.label(node)
        return self.scope.local[node]

    def soften(self, node: Node) -> None:
        number = self.program.maps.index(node)
        if node.op == "normalize":
            x, seen = self.scope.ref(node.args[0], node.axes), self.scope.seen(*node.data[:2])
            whole = x if self.online else f"({x}) * {self.row(number)}"
            name = self.named(node)
            self.line(INSIDE, f"{name} = where_visible({whole}, {seen}, edge, 0.0)", node)
            if self.online:
                self.line(INSIDE, f"l_i_{number} += tl.sum({name}, 1)")
        elif self.online:
            self.sum_up(node, number)
        elif len(node.args) == 1:
            self.line(INSIDE, f"{self.named(node)} = {self.softened(node, node.args[0], number)}", node)
        else:
            parts = [part_of(node, arg, self.program) for arg in node.args]
            self.compute(parts)
            self.line(INSIDE, f"{self.named(node)} = {' + '.join(self.scope.local[part] for part in parts)}", node)

    def sum_up(self, node: Node, number: int) -> None:
        """A map that is not divided by the sum of its rows, which is found on the way."""
        most, total, alpha = f"m_i_{number}", f"l_i_{number}", f"alpha_{number}"
        if len(node.args) == 1:
            name = self.named(node)
            given = f"{self.given_scores(node, node.args[0])}, {most}, {total}"
            self.line(INSIDE, f"{name}, {alpha}, {most}, {total} = online({given})", node)
            return
        own = [self.scope.names.fresh(f"{self.scope.local[arg]}_visible") for arg in node.args]
        for seen, arg in zip(own, node.args, strict=True):
            self.line(INSIDE, f"{seen} = scaled({self.given_scores(node, arg)})", node)
        higher = own[0]
        for seen in own[1:]:
            higher = f"tl.maximum({higher}, {seen})"
        self.line(INSIDE, f"{alpha}, {most} = higher(tl.max({higher}, 1), 1.0, {most})")
        name = self.named(node)
        self.line(INSIDE, f"{name} = {' + '.join(f'power({seen}, 1.0, {most})' for seen in own)}", node)
        self.line(INSIDE, f"{total} = {total} * {alpha} + tl.sum({name}, 1)")

    def given_scores(self, node: Node, scores: Node) -> str:
        """What makes maps of scores: their scale, where they may be seen."""
        scale, seen = scale_of(scores), self.scope.seen(*node.data[:2])
        return f"{self.scope.ref(scores, node.axes)}, {self.scope.ref(scale, ()) if scale else 1.0}, MASK, {seen}, edge"

    def softened(self, node: Node, scores: Node, number: int) -> str:
        return f"softened({self.given_scores(node, scores)}, {self.row(number)})"

    def row(self, number: int) -> str:
        """What each row of a map has been divided by, as it is kept."""
        return self.scope.along(self.program.query, f"lse_{number}")

    def source(self, name: str, about: str, parameters: Iterable[str], bounds: tuple[str, str], last: bool) -> str:
        """The function; `last`: the last blocks have the longest loops, and go first."""
        inside = [*self.block_lines(), *self.pair_lines(), *self.sections[INSIDE]]
        loop = [
            f"for start in range({bounds[0]}, {bounds[1]}, {self.other}_block):",
            *(_INDENT + line for line in inside),
        ]
        tile = [*self.sections[BEFORE], *loop, *self.sections[AFTER]]
        if self.looped:
            tile = [*self.sections[FIRST], *self.around(tile), *self.sections[LAST]]
        body = [f'"""{about}"""', *self.opening(last), *tile]
        lines = [part for line in body for part in _indented(line)]
        head = wrapped(f"def {name}({', '.join(parameters)}):", 0, packed=True)
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

    def opening(self, last: bool) -> list[str]:
        """Which block, batch element and tiles of heads a program has."""
        f, rest = self.fixed, "lead" if self.looped else "pair"
        block = f"{'blocks - 1 - ' if last else ''}tl.program_id(0) % blocks"
        lines = [f"block, {rest} = {block}, (tl.program_id(0) // blocks).to(tl.int64)"]
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
        distance = f"distance = {self.scope.along(n, f'({n} + ({m}_end - {n}_end))')} - {self.scope.along(m)}"
        keys = (
            f"key_mask + batch * key_mask_step[0], {m}, key_mask_step[1], {m}_end, KEYS, {1 - self.scope.pair.index(m)}"
        )
        found = [
            *([distance] if any(re.search(r"\bdistance\b", line) for line in self.sections[INSIDE]) else []),
            f"in_bounds = {' & '.join(self.scope.along(axis, f'({axis} < {axis}_end)') for axis in self.scope.pair)}",
            f"visible = with_keys(in_bounds, {keys})",
        ]
        edges = self.edges() if any("edge" in line for line in self.sections[INSIDE]) else ()
        return found + [f"edge {'|' if i else ''}= {' | '.join(parts)}" for i, parts in enumerate(edges) if parts]

    def edges(self) -> Iterator[list[str]]:
        """When some query of a block may not see some key of it: at the ends; because of the masks of boxes."""
        n, m = self.program.pair
        first = {n: "start", m: "(start - first)"} if self.fixed in self.program.relative else {self.other: "start"}
        first = {n: "first", m: "first"} | first
        before = [f"({first[m]} < 0)"] if self.fixed in self.program.relative else []
        given = ["KEYS", "(MASK > 0)"] if self.program.masks else []
        yield [*given, *before, *(f"({first[axis]} + {axis}_block > {axis}_end)" for axis in (n, m))]
        left = [left for left, _ in self.program.masks if left is not None]
        right = [right for _, right in self.program.masks if right is not None]
        apart = f"{first[n]} + {m}_end - {n}_end - {first[m]}"
        far = [f"({apart} + {n}_block > {1 + min(left)})"] if left else []
        yield far + ([f"({apart} - {m}_block < {-1 - min(right)})"] if right else [])


def _indented(line: str) -> list[str]:
    own = len(line) - len(line.lstrip(" "))
    return [" " * (own + 4) + part for part in wrapped(line.lstrip(" "), own + 4, packed=True)]
