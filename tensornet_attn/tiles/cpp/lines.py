"""The lines of a pass: calls of BLAS, loops over rows, and loops over index variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.tiles.cpp.faded import without_faded
from tensornet_attn.tiles.cpp.passes import Pass, fresh, is_rows
from tensornet_attn.tiles.cpp.places import Env, Where
from tensornet_attn.tiles.loops import Loop, Statement
from tensornet_attn.tiles.program import Node, Unfit

LIVE = ["live |= part != 0;"]
START = {"add": "0", "max": "-INFINITY", "lse": "-INFINITY"}
MORE = {"add": "to[j] += {x};", "max": "to[j] = tl::maximum(to[j], {x});", "lse": "to[j] = log_add(to[j], {x});"}


@dataclass
class Chain:
    """Passes that follow each other and walk along the keys in turn; `reverse`: the first one begins at the last key.

    `turns`: the first pass that can make each node.
    """

    reverse: bool = False
    passes: list[PassPrinter] = field(default_factory=list)
    turns: dict[Node, int] = field(default_factory=dict)


@dataclass
class PassPrinter(Pass):
    """Prints a pass."""

    sides: dict[str, str] = field(default_factory=dict)  # buffers of a side x width, for products: their width
    pending: list[str] = field(default_factory=list)  # lines that fill them
    turned: dict[int, Node] = field(default_factory=dict)  # operands whose transpose products read, by number
    saved: dict[Node, int] = field(default_factory=dict)  # products that may be saved: tiles before each
    restores: bool = False  # reads them, otherwise saves them
    chain: Chain = field(default_factory=Chain)
    turn: int = 0  # among the passes of the chain
    carries: dict[Node, str] = field(default_factory=dict)  # what sums that run along keys add up to so far

    def __post_init__(self) -> None:
        self.chain.passes.append(self)

    def among(self, nodes: Iterable[Node]) -> PassPrinter:
        """The pass of the chain that has all that some nodes are made of."""
        turn = max(map(self.turn_of, nodes), default=0)
        for later in range(len(self.chain.passes), turn + 1):
            PassPrinter(
                self.graph, self.program, self.operands, self.instead, saved=self.saved, restores=self.restores,
                chain=self.chain, turn=later,
            )  # fmt: skip
        return self.chain.passes[turn]

    def turn_of(self, node: Node) -> int:
        """The first pass of the chain that can make a node."""
        node, turns = self.other(node), self.chain.turns
        if node not in turns:
            turn = max(map(self.turn_of, node.args), default=0)
            runs = node.op == "running" and node.data[0] != self.chain.reverse ^ bool(turn % 2)
            turns[node] = turn + runs
        return turns[node]

    def block(self) -> list[str]:
        """The lines for a block of keys."""
        items = self.build()
        if self.fading not in self.kept:
            return self.lines(items, {})
        start = next(
            number for number, child in enumerate(items) if isinstance(child, Statement) and self.fading in child.makes
        )
        end = next((number for number in range(start, len(items)) if not is_rows(items[number])), len(items))
        after = [
            statement
            for child in items[end:]
            for statement in ([child] if isinstance(child, Statement) else child.statements())
        ]
        early = not self.saved  # the backward reads what the forward saves of a block
        return without_faded(self, self.lines(items[:end], {}), self.lines(items[end:], {}), after, early)

    def lines(self, items: Iterable[Loop | Statement], env: Env) -> list[str]:
        """The lines of some items; what is of rows side by side shares one loop over them."""
        lines: list[str] = []
        row_items: list[Loop | Statement] = []

        def flush() -> None:
            if row_items:
                lines.extend(["for (long i = 0; i < rows; ++i) {", *indented(self.row_lines(row_items, env)), "}"])
                row_items.clear()

        for child in items:
            if is_rows(child):
                row_items.append(child)
                continue
            flush()
            if isinstance(child, Loop):
                lines += self.zeros(child, False)
                lines += [self.head(child.variable), *indented(self.lines(child.items, env)), "}"]
            else:
                lines += self.statement(child, env)
        flush()
        return lines

    def row_lines(self, items: Iterable[Loop | Statement], env: Env) -> list[str]:
        lines: list[str] = []
        for child in items:
            if isinstance(child, Loop):
                lines += self.zeros(child, True)
                lines += [self.head(child.variable), *indented(self.row_lines(child.items, env)), "}"]
            else:
                lines += self.statement(child, env)
        return lines

    def head(self, variable: str) -> str:
        return over_values(variable, self.program.sizes)

    def zeros(self, loop: Loop, rows: bool) -> list[str]:
        """Before a loop over a variable: what is added up over it begins at zero, or the least number."""
        lines = []
        for statement in loop.statements():
            if statement.over == loop.variable:
                (node,) = statement.makes
                address, size = (
                    (self.row(node, {}), self.count(node.axes[1])) if rows else (self.tile(node, {}), self.unit(node))
                )
                lines += nested(
                    statement.inner, self.program.sizes, [f"fill({address}, {size}, {START[statement.how]});"]
                )
        return lines

    def statement(self, statement: Statement, env: Env) -> list[str]:
        if not statement.makes:
            return statement.lines()
        node = statement.makes[0]
        if node.op == "dot":
            tile = self.tile(node, env)
            return self.saving(node, env, tile, self.product(node, env, tile, self.columns(node), "false"))
        if node.op in ("softmax", "normalize"):
            return self.online(node, env)
        target = self.row(node, env)
        if statement.over:
            return self.loop([self.other(node.args[0])], [env], [MORE[statement.how]], target)
        if node.op == "noise":
            return self.noise(node, env)
        if node.op == "unshift":
            return [
                f"fill({target}, span, 0);",
                *self.loop([node.args[0]], [env], ["to[i + keys - 1 - j] = {x};"], target),
            ]
        if node.op == "running":
            return self.running(node, env)
        self.kept.discard(node)
        form, sums = ("part += (to[j] = {x});", ["part"]) if node is self.fading else ("to[j] = {x};", [])
        lines = self.loop([node], [env], [form], target, sums)
        self.kept.add(node)
        return ["{ real part = 0;", *indented(lines), *LIVE, "}"] if sums else lines

    def loop(
        self,
        nodes: Sequence[Node],
        envs: Sequence[Env],
        forms: Sequence[str],
        target: str = "",
        sums: Sequence[str] = (),
        max_of: str = "",
    ) -> list[str]:
        """A loop over the keys of a row, with a form for each entry {x}; `sums`, `max_of`: what it reduces."""
        hoisted: dict[str, str] = {}
        lines: list[str] = []

        def hoist(expression: str, cpp_type: str) -> str:
            if expression not in hoisted:
                hoisted[expression] = f"v{len(hoisted)}"
                lines.append(f"{cpp_type}{hoisted[expression]} = {expression};")
            return hoisted[expression]

        entries = zip(nodes, envs, forms, strict=True)
        body = " ".join(form.format(x=self.value(node, env, self.entry, hoist)) for node, env, form in entries)
        head = [f"real* to = {target};"] if target else []
        reduction = f" reduction(+:{', '.join(sums)})" if sums else f" reduction(max:{max_of})" if max_of else ""
        count = self.count(nodes[0].axes[1]) if len(nodes[0].axes) == 2 else "keys"
        loop = f"for (long j = 0; j < {count}; ++j) {{ {body} }}"
        return ["{", *indented([*lines, *head, f"#pragma omp simd{reduction}", loop]), "}"]

    def online(self, node: Node, env: Env) -> list[str]:
        """A softmax that is not divided by the sum of its rows: these and the largest scores are found on the way."""
        x, seen = node.args[:2]
        tile = self.stat_at(node.data, env)
        statistic, row = f"{tile} * QUERIES + i", self.row(node, env)
        if node.op == "normalize":
            masked = Node("keep", (x, seen), node.axes, node.name, (), node.heads)
            sum_lines = self.loop([masked], [env], ["part += (to[j] = {x});"], row, ["part"])
            return ["{ real part = 0;", *sum_lines, f"l_i[{statistic}] += part; }}"]
        variable = node.data[2]
        largest = self.program.nodes.over(x, variable, "max", node.name)
        scores = Node("keep", (largest, seen), node.axes, node.name, (Number(-inf),), node.heads)
        form = "to[j] = {x}; next = to[j] > next ? to[j] : next;"
        lines = [f"real next = m_i[{statistic}], part = 0;", *self.loop([scores], [env], [form], row, max_of="next")]
        lines.append(f"const real less = raised(next, m_i[{statistic}], l_i[{statistic}], alpha[{statistic}]);")
        if variable:  # a sum of powers for each value of the variable
            less = Node("less", (), (self.program.query,))
            power = Node("softened", (x, seen, less), node.axes, node.name, (), x.heads)
            powers = self.program.nodes.over(power, variable, "add", node.name)
            lines += self.loop([powers], [env], ["part += (to[j] = {x});"], row, ["part"])
        else:
            lines += [f"real* to = {row};", "#pragma omp simd reduction(+:part)"]
            lines += ["for (long j = 0; j < keys; ++j) part += (to[j] = exp_of(to[j] - less));"]
        lines += [f"l_i[{statistic}] += part;", *(LIVE if node is self.fading else [])]
        if node in self.stored:
            lines.append(f"most_then[(start / KEYS * {self.maps} + {tile}) * QUERIES + i] = m_i[{statistic}];")
        return ["{", *indented(lines), "}"]

    def running(self, node: Node, env: Env) -> list[str]:
        """A row of a sum that runs along keys; it is carried from block to block."""
        (reverse,), target = node.data, self.row(node, env)
        carry = (
            f"{self.carries.setdefault(node, f'carried_{self.name[node]}')}[{self.flat(node.heads, env)} * QUERIES + i]"
        )
        lines = self.loop([node.args[0]], [env], ["to[j] = {x};"], target)
        return [*lines, f"{carry} = running_{'back' if reverse else 'on'}({target}, keys, {carry});"]

    def noise(self, node: Node, env: Env) -> list[str]:
        """The noise of a row: as it was given, drawn, or none."""
        number, index, stream, std, always = node.data
        target, name, operand = self.row(node, env), self.operands[number], self.program.operands[number]
        row = self.address(Node("load", (), node.axes, data=(number, index)), env, where_row(self.entry, self.pair[1]))
        given_row = f"{name} ? {row} : nullptr"
        drawn = f"{'true' if always else 'training'}, {self.number(std)}, seed, {self.lead(operand.heads, index, env)}"
        return [f"noise({target}, keys, {given_row}, {drawn}, {stream}, first + i, start);"]

    # products

    def saving(self, node: Node, env: Env, tile: str, lines: list[str]) -> list[str]:
        """The lines that compute a product; if it is saved, the forward copies it, and the backward reads the copy."""
        if node not in self.saved:
            return lines
        copy, size = self.saved_at(node, env), "rows * KEYS * sizeof(real)"
        if self.restores:
            return [f"if (saved) std::memcpy({tile}, {copy}, {size});", "else {", *indented(lines), "}"]
        return [*lines, f"if (saved) std::memcpy({copy}, {tile}, {size});"]

    def saved_at(self, node: Node, env: Env) -> str:
        """Where a saved tile is: all blocks of queries and keys of a tile of a program, then those of the next one."""
        tiles = sum(self.program.tiles(product.heads) for product in self.saved)
        tile = f"pair * {tiles} + {self.saved[node]} + {self.flat(node.heads, env)}"
        return f"saved + ((({tile}) * blocks + first / height) * key_blocks + start / KEYS) * TILE"

    def product(self, node: Node, env: Env, to: str, ld: str, adds: str, alpha: str = "1") -> list[str]:
        """The call for a product."""
        (axis,), (a, b) = node.data, map(self.other, node.args)
        (pa, la), (pb, lb) = self.matrix(a, env), self.matrix(b, env)
        x, y = node.axes
        if x not in a.axes:
            (a, pa, la), (b, pb, lb) = (b, pb, lb), (a, pa, la)
        ta, tb = (str(turned).lower() for turned in (a.axes[0] == axis, b.axes[1] == axis))
        sizes = ", ".join(map(self.count, (x, y, axis)))
        pending, self.pending = self.pending, []
        if b.op == "load" and y in self.long_sides and tb == "true" and adds == "false":
            number, index = b.data[:2]
            self.turned[number] = b
            offset = f"{self.flat(index, env)} * {axis}_size * {self.room(y)} + {self.entry.origin[y]}"
            columns = f"turned{number} + {offset}, {self.room(y)}"
            matrices = f"{pa}, {la}, {pb}, {lb}, {columns}"
            return [*pending, f"multiply_turned(turns, {ta}, {sizes}, {matrices}, {to}, {ld}, {alpha});"]
        return [*pending, f"multiply({ta}, {tb}, {sizes}, {pa}, {la}, {pb}, {lb}, {adds}, {to}, {ld}, {alpha});"]

    @property
    def long_sides(self) -> tuple[str, ...]:
        return (self.pair[1], *self.program.relative)

    def room(self, side: str) -> str:
        """The length of a row of a transposed operand."""
        return "key_room" if side == self.pair[1] else "place_room"

    def matrix(self, node: Node, env: Env) -> tuple[str, str]:
        """(address, leading dimension) of an argument of a product."""
        if node in self.kept:
            return self.tile(node, env), self.columns(node)
        if node.op == "load":
            return self.address(node, env, Where({}, self.entry.origin)), self.rows_step(node)
        if node.op == "gradient":
            return self.result_at("gradient", node.data[0], node.axes, env), f"{node.axes[1]}_size"
        if len(node.axes) == 2 and node.axes[1] in self.program.widths:
            return self.made_side(node, env)
        raise Unfit(f"a product reads a '{node.op}' of {' '.join(node.axes)}")

    def made_side(self, node: Node, env: Env) -> tuple[str, str]:
        """A tile of rows or keys x width, made for one product: that is little beside the product."""
        (side, width), name = node.axes, fresh(node, self.names)
        self.sides[name] = width
        where = Where({side: "r", width: "c"}, self.entry.origin)
        entry = self.value(node, env, where)
        loop = f"for (long r = 0; r < {self.count(side)}; ++r) for (long c = 0; c < {width}_size; ++c)"
        self.pending.append(f"{loop} {name}[r * {width}_size + c] = {entry};")
        return name, f"{width}_size"


def where_row(where: Where, key: str) -> Where:
    """The first entry of a row."""
    return Where({axis: index for axis, index in where.index.items() if axis != key}, where.origin)


def nested(variables: Iterable[str], sizes: Mapping[str, int], body: list[str]) -> list[str]:
    """Lines in loops over index variables."""
    for variable in reversed([*variables]):
        body = [over_values(variable, sizes), *indented(body), "}"]
    return body


def over_values(variable: str, sizes: Mapping[str, int]) -> str:
    """The head of a loop over an index variable."""
    return f"for (int at_{variable} = 0; at_{variable} < {sizes[variable]}; ++at_{variable}) {{"


def indented(lines: Iterable[str]) -> list[str]:
    return [line if line.startswith("#") else f"  {line}" for line in lines]
