"""A pass of a C++ kernel: what it makes for a block of queries x keys, in loops over index variables and rows.

A pass visits blocks of keys. In each, products are calls of BLAS, into tiles; what is elementwise between them is one
loop over rows, in which a value that no product reads is a row of its own. A sum over an index variable stands inside
of what reads it, or is a tile to which each value of the variable is added, whichever holds fewer tiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, prod

from tensornet_attn.emit.triton.loops import Loop, Loops, Statement, placed, shared
from tensornet_attn.ops import MAPS
from tensornet_attn.tiles.model import At, Node, Program, Unfit, below, scale_of

Env = Mapping[str, str]
ELEMENTWISE = "mul add map slope keep hide softened spread inside equal over distance visible both either bias".split()
UNROLLED = 16  # values of a variable whose sum stands inside of an expression


@dataclass(eq=False)
class Row(Statement):
    """A statement of each row i: `lines` are inside of the loop over rows."""


@dataclass
class Pass:
    """What one loop over blocks of keys makes. `ends`: statements whose reads it needs."""

    program: Program
    operands: tuple[str, ...]
    number: Callable[[Node], str]
    names: set[str]
    instead: dict[Node, Node] = field(default_factory=dict)
    ends: list[Statement] = field(default_factory=list)
    made: dict[Node, Statement] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    readers: dict[Node, list[Node | Statement]] = field(default_factory=dict)
    name: dict[Node, str] = field(default_factory=dict)
    dims: dict[Node, tuple[str, ...]] = field(default_factory=dict)
    rows: set[Node] = field(default_factory=set)  # that are rows, not tiles
    tiles: dict[str, tuple[int, str]] = field(default_factory=dict)  # buffer: how many tiles, of which size
    temporaries: dict[str, tuple[int, str]] = field(default_factory=dict)  # buffer: how many rows, of which size
    hoisted: dict[str, str] = field(default_factory=dict)
    totals: Callable[[Node, Env], str] = lambda node, env: ""
    scalars: dict[str, Callable[[Node, Env], str]] = field(default_factory=dict)  # nodes of one number a row, by op
    exact: dict[Statement, tuple[Node, ...]] = field(default_factory=dict)
    levels: dict[Node, dict[str, int]] = field(default_factory=dict)
    sides: dict[str, str] = field(default_factory=dict)  # buffers of a side x width
    pending: list[str] = field(default_factory=list)
    drops: int = 0

    @property
    def pair(self) -> tuple[str, str]:
        return self.program.pair

    def other(self, node: Node) -> Node:
        return self.instead.get(node, node)

    @property
    def wide(self) -> tuple[str, ...]:
        """The sides of a tile of relative positions, which is shifted to keys; none of them if there are none."""
        return (self.program.query, *self.program.relative) if self.program.relative else ("", "")

    def unit(self, node: Node) -> str:
        return "WIDE" if node.axes == self.wide else "TILE"

    def columns(self, node: Node) -> str:
        """The room of a row."""
        return "SPAN" if node.axes == self.wide else "KEYS"

    # which nodes are made

    def build(self) -> list[Loop | Statement]:
        needed = below([self.other(node) for one in self.ends for node in one.reads], (), self.instead)
        self.needed = {node: None for node in needed}
        for node in needed:
            for arg in map(self.other, node.args):
                self.readers.setdefault(arg, []).append(node)
        for one in self.ends:
            one.reads = tuple(map(self.other, one.reads))
            for node in one.reads:
                self.readers.setdefault(node, []).append(one)
        self.kept = {node for node in needed if self.is_made(node)}
        for node in needed:
            if node in self.kept:
                self.make(node)
        for one in self.ends:
            self.exact[one] = one.reads
            one.reads = tuple(dict.fromkeys(self.sources(one.reads)))
            self.statements.append(one)
        for one in self.statements:
            one.levels = self.most(self.args_of(one))
        self.order_statements()
        order = self.variable_order()
        loops = Loops(order, lambda one, node: (node, 0)).of(self.statements)
        self.name_all(loops)
        return loops

    def args_of(self, one: Statement) -> Iterable[Node]:
        """What a statement reads, as nodes of the program."""
        return self.exact[one] if one in self.exact else map(self.other, one.makes[0].args)

    def most(self, nodes: Iterable[Node]) -> dict[str, int]:
        """How many sums over each variable stand on the way to some nodes."""
        found: dict[str, int] = {}
        for node in nodes:
            for variable, level in self.level(self.other(node)).items():
                found[variable] = max(level, found.get(variable, 0))
        return found

    def level(self, node: Node) -> dict[str, int]:
        if node not in self.levels:
            found = self.most(node.args)
            if node.op == "over":
                found[node.data[0]] = 1 + found.get(node.data[0], 0)
            self.levels[node] = found
        return self.levels[node]

    def is_made(self, node: Node) -> bool:
        """Whether a node of queries x keys has a tile or a row of its own."""
        if node.axes not in (self.pair, self.wide) or node.op in ("visible", "both", "either", "bias", "distance", "load"):
            return False
        if node.op in ("dot", "softmax", "normalize", "unshift", "noise"):
            return True
        readers = self.readers.get(node, [])
        if any(isinstance(one, Statement) and not isinstance(one, Row) for one in readers):
            return True  # a product reads it
        if any(isinstance(one, Node) and one.op == "dot" for one in readers):
            return True
        if node.op == "over" and not self.inlined_sum(node):
            return True
        often = any(isinstance(one, Node) and {*one.heads} - {*node.heads} for one in readers)
        if often and node.op in ("softened", "map", "slope", "over"):
            return True  # read for each value of a variable that it lacks
        cheap = node.op in ("mul", "spread", "keep", "inside") and sum(a.axes == self.pair for a in node.args) <= 1
        return len(readers) > 1 and not (cheap and len(readers) <= 2 and node.op != "mul")

    def inlined_sum(self, node: Node) -> bool:
        """Whether a sum over a variable stands inside of its reader: what it reads is held, and is no more than it."""
        variable, how = node.data
        size = self.program.nodes.sizes[variable]
        if size > UNROLLED or node.args[0].op == "dot":
            return False
        heavy = [one for one in self.leaves(node.args[0]) if one.axes == self.pair]
        held = max((self.program.tiles(one.heads) for one in heavy if variable in one.heads), default=0)
        return held <= self.program.tiles(node.heads)

    def leaves(self, node: Node) -> Iterator[Node]:
        """The products that an expression is made of, and maps."""
        node = self.other(node)
        if node.op in ("dot", "softmax", "normalize", "softened") or node.axes not in (self.pair, self.wide):
            yield node
            return
        for arg in node.args:
            yield from self.leaves(arg)

    def sources(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Made nodes that an expression of these reads."""
        for node in map(self.other, nodes):
            if node in self.kept or node.op == "alpha":
                yield node
            else:
                yield from self.sources(node.args)

    def make(self, node: Node) -> None:
        args = tuple(map(self.other, node.args))
        if node.op == "over":
            (arg,) = args
            if arg.op == "dot" and arg not in self.kept:
                raise Unfit("a sum of products")
            reads = tuple(dict.fromkeys(self.sources([arg])))
            one: Statement = Row(arg.heads, reads, list, (node,), over=node.data[0], how=node.data[1])
        elif node.op == "dot":
            one = Statement(node.heads, tuple(dict.fromkeys(self.sources(args))), list, (node,))
        else:
            one = Row(node.heads, tuple(dict.fromkeys(self.sources(args))), list, (node,))
            if node.op == "softmax":
                one.makes = (node, self.alpha(node))
        self.made[node] = one
        self.statements.append(one)

    def alpha(self, node: Node) -> Node:
        return self.program.nodes.node("alpha", (), (self.program.query,), "alpha", node.data[:2])

    def order_statements(self) -> None:
        """Products and rows in turn, as few turns as possible; sums of variables count as they go."""
        maker = {node: one for one in self.statements for node in one.makes}
        stage: dict[Statement, int] = {}
        for one in self.statements:
            own = isinstance(one, Row)
            found = 1 if own else 0
            for node in one.reads:
                before = stage[maker[node]]
                found = max(found, before if before % 2 == own else before + 1)
            stage[one] = found
        self.statements.sort(key=lambda one: stage[one])

    def variable_order(self) -> list[str]:
        used = {variable for one in self.statements for variable in one.heads}
        own = [variable for variable in self.program.nodes.sizes if variable in used]
        from itertools import islice, permutations

        best: tuple[int, list[str]] | None = None
        for order in islice(permutations(own), 24):
            loops = Loops(list(order), lambda one, node: (node, 0)).of(self.statements)
            self.name_all(loops)
            price = sum(count for count, _ in self.tiles.values()) * 1000 + sum(count for count, _ in self.temporaries.values())
            if best is None or price < best[0]:
                best = (price, list(order))
        return best[1] if best else own

    # names and buffers

    def name_all(self, loops: list[Loop | Statement]) -> None:
        placed(loops, ())
        self.name, self.dims, self.rows, self.tiles, self.temporaries = {}, {}, set(), {}, {}
        group = row_groups(loops)
        readers: dict[Node, list[Statement]] = {}
        for one in self.statements:
            for node in one.reads:
                readers.setdefault(node, []).append(one)
        taken = set(self.names)
        for one in self.statements:
            for node in one.makes:
                if node.op == "alpha":
                    self.dims[node] = ()
                    continue
                paths = [other.path for other in readers.get(node, ())]
                kept = min((shared(one.known, path) for path in paths), default=len(one.known))
                dims = (*(loop.variable for loop in one.known[kept:]), *one.inner)
                wish = re.sub(r"\W", "_", (node.name or node.op).replace(".of", "_scores"))
                name, number = wish, 1
                while name in taken:
                    number += 1
                    name = f"{wish}_{number}"
                taken.add(name)
                self.name[node], self.dims[node] = name, dims
                count = prod(self.program.nodes.sizes[variable] for variable in dims)
                alone = isinstance(one, Row) and all(
                    isinstance(other, Row) and group[other] == group[one] for other in readers.get(node, ())
                )
                if alone:
                    self.rows.add(node)
                    self.temporaries[name] = count, self.columns(node)
                else:
                    self.tiles[name] = count, self.unit(node)

    def place(self, node: Node, env: Env) -> str:
        """The number of a tile among those of its buffer."""
        text = ""
        for variable in self.dims[node]:
            at, size = env.get(variable, variable), self.program.nodes.sizes[variable]
            text = f"({text} * {size} + {at})" if text else at
        return text or "0"

    def tile(self, node: Node, env: Env) -> str:
        """The address of a tile."""
        name, place = self.name[node], self.place(node, env)
        return name if place == "0" else f"{name} + {place} * {self.unit(node)}"

    def row(self, node: Node, env: Env) -> str:
        """The address of row i of what is made."""
        name, place = self.name[node], self.place(node, env)
        columns = self.columns(node)
        if node in self.rows:
            return name if place == "0" else f"{name} + {place} * {columns}"
        return f"{name} + i * {columns}" if place == "0" else f"{name} + {place} * {self.unit(node)} + i * {columns}"

    # expressions of an element (i, j)

    def element(self, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
        node, at = self.other(node), env.get("@", "j")
        if node in self.kept:
            return f"{hoist(self.row(node, env), 'const real* ')}[{at}]"
        if node.op == "shift":
            return self.element(node.args[0], {**env, "@": "(i + keys - 1 - j)"}, hoist)
        if node.op == "sum_over_blocks":
            return self.totals(node, env)
        if node.axes == ():
            return hoist(self.scalar(node, env), "const real ")
        if node.axes == (self.program.query,):
            return hoist(self.scalar(node, env), "const real ")
        if node.op == "load" and node.axes and node.axes in ((self.program.key,), self.program.relative):
            return f"{hoist(self.address(node, env), 'const real* ')}[{at}]"
        if node.op == "over":
            return self.sum_inside(node, env, hoist)
        return ELEMENTS[node.op](self, node, env, hoist)

    def sum_inside(self, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
        variable, how = node.data
        parts = [
            self.element(node.args[0], {**env, variable: str(value)}, hoist)
            for value in range(self.program.nodes.sizes[variable])
        ]
        if how == "add":
            return f"({' + '.join(parts)})"
        if how == "any":
            return f"({' | '.join(parts)})"
        most = parts[0]
        for part in parts[1:]:
            most = f"tl::maximum({most}, {part})"
        if how == "max":
            return most
        return f"log_sum<{len(parts)}>({{{', '.join(parts)}}})"

    def scalar(self, node: Node, env: Env) -> str:
        """A number, or the number of row i."""
        node = self.other(node)
        if node.op == "number":
            return f"real({self.number(node)})"
        if node.op == "sum_over_blocks":
            return self.totals(node, env)
        if node.op in self.scalars:
            return self.scalars[node.op](node, env)
        if node.op == "load":
            address = self.address(node, env)
            return f"({address})[i]" if node.axes else f"*({address})"
        if node.op == "over":
            variable, how = node.data
            parts = [
                self.scalar(node.args[0], {**env, variable: str(value)})
                for value in range(self.program.nodes.sizes[variable])
            ]
            if how == "add":
                return f"({' + '.join(parts)})"
            raise Unfit(f"a {how} of numbers")
        if node.op in ("mul", "add"):
            sign = " * " if node.op == "mul" else " + "
            return f"({sign.join(self.scalar(arg, env) for arg in node.args if arg.op != 'bias')})"
        if node.op in ("map", "slope"):
            return mapped(node, [self.scalar(arg, env) for arg in node.args])
        if node.op == "spread":
            return self.scalar(node.args[0], env)
        raise Unfit(f"'{node.op}' of a number a row")

    def address(self, node: Node, env: Env) -> str:
        """Where a loaded tile begins: at the block's first row or key."""
        number, index = node.data[:2]
        name, operand = self.operands[number], self.program.operands[number]
        text = f"{name}_base"
        for k, (leg, variable) in enumerate(zip(operand.heads, index, strict=True), 1):
            if leg in self.program.whole or variable:
                at = env.get(variable, variable) if variable else "0"
                text += f" + {at} * {name}_step[{k}]" if at != "0" else ""
        for k, axis in enumerate(operand.axes, 1 + len(operand.heads)):
            if axis == self.program.query:
                text += f" + first * {name}_step[{k}]"
            elif axis == self.program.key:
                text += f" + start * {name}_step[{k}]"
            elif axis in self.program.relative:
                text += f" + place * {name}_step[{k}]"
        return text

    def mask_at(self, index: At, env: Env) -> str:
        """Where row i of the call's mask stands for a tile of the map."""
        text, k = "batch * mask_step[0]", 1
        for leg, variable in zip(self.program.others, index, strict=True):
            at = env.get(variable, variable) if variable else f"{leg}_at" if leg not in self.program.whole else "0"
            at = at if variable or self.program.heads.get(leg, 1) == 1 and leg not in self.program.whole else "0"
            text += f" + {at} * mask_step[{k}]"
            k += 1
        return f"{text} + (first + i) * mask_step[{k}] + start"

    def stride(self, node: Node) -> str:
        number = node.data[0]
        operand = self.program.operands[number]
        return f"int({self.operands[number]}_step[{1 + len(operand.heads)}])"

    def matrix(self, node: Node, env: Env) -> tuple[str, str]:
        """(address, leading dimension) of an argument of a product."""
        node = self.other(node)
        if node in self.kept:
            return self.tile(node, env), self.columns(node)
        if node.op == "load":
            return self.address(node, env), self.stride(node)
        if node.op == "gradient":
            return self.scalars["gradient_tile"](node, env), f"{node.axes[1]}_size"
        if len(node.axes) == 2 and node.axes[1] in self.program.widths:
            return self.made_side(node, env)
        raise Unfit(f"a product reads a '{node.op}' of {' '.join(node.axes)}")

    def made_side(self, node: Node, env: Env) -> tuple[str, str]:
        """A tile of rows or keys x width, made for one product: that is little beside the product."""
        (side, width), name = node.axes, f"side_{len(self.sides)}"
        self.sides[name] = width
        count, value = self.size(side), self.of_width(node, env)
        loop = f"for (long r = 0; r < {count}; ++r) for (long c = 0; c < {width}_size; ++c)"
        self.pending.append(f"{loop} {name}[r * {width}_size + c] = {value};")
        return name, f"{width}_size"

    def of_width(self, node: Node, env: Env) -> str:
        """An expression of entry c of row r of a block."""
        node = self.other(node)
        if node.op == "load":
            number, index = node.data[:2]
            operand, name = self.program.operands[number], self.operands[number]
            text = self.address(node, env)
            for k, axis in enumerate(operand.axes, 1 + len(operand.heads)):
                text += f" + {'c' if axis in self.program.widths else 'r'} * {name}_step[{k}]"
            return f"*({text})"
        if node.op == "gradient":
            return f"({self.scalars['gradient_tile'](node, env)})[r * {node.axes[1]}_size + c]"
        if node.op == "number":
            return f"real({self.number(node)})"
        if node.op in self.scalars:
            return self.scalars[node.op](node, env).replace(" + i]", " + r]")
        if node.op in ("mul", "add"):
            return f"({(' * ' if node.op == 'mul' else ' + ').join(self.of_width(arg, env) for arg in node.args)})"
        if node.op in ("map", "slope"):
            return mapped(node, [self.of_width(arg, env) for arg in node.args])
        if node.op == "spread":
            return self.of_width(node.args[0], env)
        raise Unfit(f"'{node.op}' of {' '.join(node.axes)} in a product")

    def product(self, node: Node, env: Env, to: str, ld: str, beta: str, alpha: str = "1") -> list[str]:
        """The call for a product."""
        (axis,), (a, b) = node.data, map(self.other, node.args)
        (pa, la), (pb, lb) = self.matrix(a, env), self.matrix(b, env)
        x, y = node.axes
        if x not in a.axes:
            (a, pa, la), (b, pb, lb) = (b, pb, lb), (a, pa, la)
        ta, tb = a.axes[0] == axis, b.axes[1] == axis
        sizes = ", ".join(self.size(side) for side in (x, y, axis))
        before, self.pending = self.pending, []
        call = f"multiply({str(ta).lower()}, {str(tb).lower()}, {sizes}, {pa}, {la}, {pb}, {lb}, {beta}, {to}, {ld}, {alpha});"
        return [*before, call]

    def size(self, axis: str) -> str:
        known = {self.program.query: "rows", self.program.key: "keys", **dict.fromkeys(self.program.relative, "span")}
        return known.get(axis, f"{axis}_size")

    # lines

    def lines(self, items: Iterable[Loop | Statement], env: Env) -> list[str]:
        """The lines of a block; what is of rows side by side shares one loop over them."""
        found: list[str] = []
        together: list[Loop | Statement] = []

        def flush() -> None:
            if together:
                found.extend(["for (long i = 0; i < rows; ++i) {", *indented(self.row_lines(together, env)), "}"])
                together.clear()

        for item in items:
            if is_rows(item):
                together.append(item)
                continue
            flush()
            if isinstance(item, Loop):
                found += self.zeros(item)
                found += [self.head(item.variable), *indented(self.lines(item.items, env)), "}"]
            else:
                found += self.statement(item, env)
        flush()
        return found

    def head(self, variable: str) -> str:
        return f"for (int {variable} = 0; {variable} < {self.program.nodes.sizes[variable]}; ++{variable}) {{"

    def zeros(self, loop: Loop) -> list[str]:
        """Before a loop over a variable: tiles that are added up over it begin at zero."""
        found = []
        for one in loop.statements():
            if one.over == loop.variable:
                (node,) = one.makes
                count = prod(self.program.nodes.sizes[variable] for variable in one.inner)
                at = self.tile(node, {variable: "0" for variable in one.inner})
                found.append(f"fill({at}, {count} * {self.unit(node)}, {START[one.how]});")
        return found

    def row_zeros(self, loop: Loop) -> list[str]:
        found = []
        for one in loop.statements():
            if one.over == loop.variable:
                (node,) = one.makes
                count = prod(self.program.nodes.sizes[variable] for variable in one.inner)
                at = self.row(node, {variable: "0" for variable in one.inner})
                size = self.columns(node) if node in self.rows else self.unit(node)
                found.append(f"for (int at = 0; at < {count}; ++at) fill({at} + at * {size}, {self.size(node.axes[1])}, {START[one.how]});")
        return found

    def row_lines(self, items: Iterable[Loop | Statement], env: Env) -> list[str]:
        found: list[str] = []
        for item in items:
            if isinstance(item, Loop):
                found += self.row_zeros(item)
                found += [self.head(item.variable), *indented(self.row_lines(item.items, env)), "}"]
            else:
                found += self.statement(item, env)
        return found

    def statement(self, one: Statement, env: Env) -> list[str]:
        if not one.makes or one.makes[0].op == "alpha":
            return one.lines()
        node = one.makes[0]
        if node.op == "dot":
            return self.product(node, env, self.tile(node, env), self.columns(node), "0")
        if node.op in ("softmax", "normalize"):
            return one.lines() if one.lines is not list else self.online(node, env)
        if one.over:
            (arg,) = map(self.other, node.args)
            target = self.row(node, env)
            how = {"add": "to[j] += {x};", "max": "to[j] = tl::maximum(to[j], {x});", "lse": "to[j] = log_add(to[j], {x});"}
            return self.loop(arg, env, how[one.how], target)
        if node.op == "noise":
            return self.noise(node, env)
        if node.op == "unshift":
            target = self.row(node, env)
            return [f"fill({target}, span, 0);", *self.loop(node.args[0], env, "to[i + keys - 1 - j] = {x};", target)]
        return self.loop(node, env, "to[j] = {x};", self.row(node, env), own=node)

    def loop(self, node: Node, env: Env, form: str, target: str = "", own: Node | None = None, before: str = "") -> list[str]:
        """A loop over the keys of a row."""
        hoisted: dict[str, str] = {}

        def hoist(text: str, kind: str) -> str:
            if text not in hoisted:
                hoisted[text] = f"v{len(hoisted)}"
                lines.append(f"{kind}{hoisted[text]} = {text};")
            return hoisted[text]

        lines: list[str] = []
        if own is not None:
            self.kept.discard(own)
        x = self.element(node, env, hoist)
        if own is not None:
            self.kept.add(own)
        head = [f"real* to = {target};"] if target else []
        reduction = f" reduction(+:{before})" if before else ""
        return [
            "{",
            *indented([*lines, *head, f"#pragma omp simd{reduction}", f"for (long j = 0; j < {self.size(node.axes[1]) if len(node.axes) == 2 else 'keys'}; ++j) {form.format(x=x)}"]),
            "}",
        ]

    def online(self, node: Node, env: Env) -> list[str]:
        """A softmax that is not divided by the sum of its rows: these and the largest scores are found on the way."""
        x, seen = node.args[:2]
        number, index = node.data[:2]
        at = f"{self.stat_at(number, index, env)} * QUERIES + i"
        if node.op == "normalize":
            kept = Node("keep", (x, seen), node.axes, node.name, (), node.heads)
            row = self.row(node, env)
            summed = ["{ real part = 0;", *self.loop(kept, env, "part += (to[j] = {x});", row, before="part")]
            return [*summed, f"l_i[{at}] += part; }}"]
        scored = self.loop(self.scores(node), env, "to[j] = {x};", self.row(node, env))
        return [
            *scored,
            f"online({self.row(node, env)}, keys, m_i[{at}], l_i[{at}], alpha[{at}]);",
        ]

    def noise(self, node: Node, env: Env) -> list[str]:
        """The noise of a row: as it was given, drawn, or none."""
        number, index, stream, std, always = node.data
        target, name = self.row(node, env), self.operands[number]
        operand = self.program.operands[number]
        lead = self.lead(operand.heads, index, env)
        std_text = self.number(Node("number", data=(std,)))
        given = f"{name} ? {self.address(node, env)} + i * {name}_step[{1 + len(operand.heads)}] : nullptr"
        drawn = "true" if always else "training"
        return [f"noise({target}, keys, {given}, {drawn}, {std_text}, seed, {lead}, {stream}, first + i, start);"]

    def lead(self, heads: Iterable[str], index: At, env: Env) -> str:
        """A number of its own for each tile of these legs, the same in every pass."""
        text = "batch"
        for leg, variable in zip(heads, index, strict=True):
            at = env.get(variable, variable) if variable else f"{leg}_at" if leg in self.looped else "0"
            size = self.program.nodes.sizes.get(variable, 1) if variable else f"{leg}_programs" if leg in self.looped else 1
            text = f"({text} * {size} + {at})"
        return text

    @property
    def looped(self) -> set[str]:
        """The legs of which each program has one tile."""
        return {leg for leg, tiles in self.program.heads.items() if leg not in self.program.whole and tiles == 1}

    def scores(self, node: Node) -> Node:
        """The scores of a map where they are seen, else minus infinity."""
        x, seen = node.args[:2]
        found = Node("keep", (x, seen), node.axes, node.name, (_MINUS,), node.heads)
        return found

    def stat_at(self, number: int, index: At, env: Env) -> str:
        text, count = "", 1
        for variable in index:
            if variable:
                at, size = env.get(variable, variable), self.program.nodes.sizes[variable]
                text = f"({text} * {size} + {at})" if text else at
        first = self.program.first_of(number)
        return f"({first} + {text})" if text and first else text or str(first)


class _Minus:
    value = -inf


_MINUS = _Minus()
START = {"add": "0", "max": "-INFINITY", "lse": "-INFINITY"}


def row_groups(items: Iterable[Loop | Statement]) -> dict[Statement, int]:
    """The loop over rows that each statement stands in, by number; products have none of them alike."""
    found: dict[Statement, int] = {}
    number = [0]

    def walk(items: Iterable[Loop | Statement]) -> None:
        for item in items:
            if is_rows(item):
                for one in [item] if isinstance(item, Statement) else item.statements():
                    found[one] = number[0]
                continue
            number[0] += 1
            if isinstance(item, Loop):
                walk(item.items)
                number[0] += 1
            else:
                found[item] = -number[0]

    walk(items)
    return found


def is_rows(item: Loop | Statement) -> bool:
    return isinstance(item, Row) if isinstance(item, Statement) else all(is_rows(one) for one in item.items)


def indented(lines: Iterable[str]) -> list[str]:
    return [line if line.startswith("#") else f"  {line}" for line in lines]


def mapped(node: Node, parts: list[str]) -> str:
    own = MAPS[node.data[0]]
    template, letters = (own.triton, "xab") if node.op == "map" else (own.slope, "xydab")
    if not template:
        raise Unfit(f"there is no C++ of '{node.data[0]}'")
    text = template.format(**dict(zip(letters, (f"({part})" for part in parts), strict=False)))
    return f"({text.replace('tl.', 'tl::')})"


def _add(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    parts = [p.element(arg, env, hoist) for arg in node.args if arg.op != "bias"]
    text = f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]
    for arg in node.args:
        if arg.op == "bias":
            row = hoist(f"MODE == 2 ? row_of(mask_bias, {p.mask_at(arg.data[0], env)}) : nullptr", "const real* ")
            text = f"biased<MODE>({text}, {row}, j)"
    return text


def _mul(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    return f"{p.element(node.args[0], env, hoist)} * {p.element(node.args[1], env, hoist)}"


def _map(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    return mapped(node, [p.element(arg, env, hoist) for arg in node.args])


def _keep(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    x, seen = node.args
    fill = node.data[0].value if node.data else 0.0
    return f"where_seen<MODE>({_seen(p, seen, env, hoist)}, {p.element(x, env, hoist)}, {'-INFINITY' if fill == -inf else fill})"


def _seen(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    if node.op == "visible":
        number, _ = node.data
        look = p.program.masks[number]
        if look.conditions:
            raise Unfit("a mask that is no interval")
        shift = "(first + i + key_end - query_end - start)"
        parts = []
        if look.left is not None:
            parts.append(f"j >= {hoist(f'{shift} - {look.left}', 'const long ')}")
        if look.right is not None:
            parts.append(f"j <= {hoist(f'{shift} + {look.right}', 'const long ')}")
        row = hoist(
            f"MODE == 2 ? see(arena, row_of(mask_seen, {p.mask_at(node.data[1], env)}), key_seen, keys, {number}) : nullptr",
            "const unsigned char* ",
        )
        return f"seen<MODE>({' & '.join(f'({part})' for part in parts) or 'true'}, {row}, j)"
    parts = [_seen(p, arg, env, hoist) for arg in node.args]
    return f"({(' & ' if node.op == 'both' else ' | ').join(parts) or 'true'})"


def _softened(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    x, seen, rows = node.args
    less = hoist(p.scalar(rows, env), "const real ")
    return f"where_seen<MODE>({_seen(p, seen, env, hoist)}, exp_of({p.element(x, env, hoist)} - {less}), 0.0)"


def _spread(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    return p.element(node.args[0], env, hoist)


def _drop(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    stream, tree, heads, index = node.data
    p.drops += 1
    probability = p.number(Node("number", data=(tree,)))
    drawn = f"keep_row(arena.row({p.drops % 4}), keys, {probability}, seed, {p.lead(heads, index, env)}, {stream}, first + i, start)"
    row = hoist(f"training ? {drawn} : nullptr", "const real* ")
    return f"dropped({p.element(node.args[0], env, hoist)}, {row}, j)"


def _equal(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    a, b = (p.element(arg, env, hoist) for arg in node.args)
    return f"(({a}) == ({b}) ? real(1) : real(0))"


def _distance(p: Pass, node: Node, env: Env, hoist: Callable[[str, str], str]) -> str:
    return f"real({hoist('(first + i + key_end - query_end - start)', 'const long ')} - j)"


ELEMENTS: dict[str, Callable[..., str]] = {
    "add": _add, "mul": _mul, "map": _map, "slope": _map, "keep": _keep, "hide": _keep, "softened": _softened,
    "spread": _spread, "inside": _spread, "equal": _equal, "distance": _distance, "drop": _drop,
}  # fmt: skip
