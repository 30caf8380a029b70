"""Emits tile programs for a block of rows in PyTorch: variables and sides are dimensions, products are matmuls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tensornet_attn.emit.boxes import emit_box
from tensornet_attn.emit.contract import einsum_text, product, scaled, summed
from tensornet_attn.emit.layout import box_layout
from tensornet_attn.emit.masks import keep_and_bias, seen_text
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Box, Step, Use
from tensornet_attn.ir.values import ATOM, PRODUCT, SUM, Legs, Value
from tensornet_attn.ops import MAPS, MASKS, OPS
from tensornet_attn.ops.operation import dim_of
from tensornet_attn.tiles.legs import unbounded
from tensornet_attn.tiles.model import Node, below
from tensornet_attn.tiles.rows import RowsProgram

_INLINE = 64  # maximum characters of an expression nested in another
_AROUND = ("add", "dropped")  # nodes that may contain such an expression, besides multiples and elementwise boxes
_NARROW = 8  # columns up to which MKL multiplies the transposed matrices 3 to 10 times as fast
_ROWS, _KEYS = 64, 1024  # block sizes for comparing tensor sizes


@dataclass
class BlockWriter(Writer):
    """Collects the body of the function of a block: positions are those of its rows, sizes are arguments.

    `sizes`: legs whose sizes the call passes; `known`: their local names; `spare`: the template for new tensors if
    there is no operand; `read`: operands of the current box, `made`: its result. `nearby`: a block may lack the first
    keys.
    """

    sizes: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)
    spare: str = "like"
    read: dict[Use, Value] = field(default_factory=dict)
    made: Value | None = None
    nearby: bool = False

    @property
    def narrow(self) -> set[str]:
        return {leg.name for leg in self.graph.legs if 1 < (leg.size or 0) <= _NARROW}

    def call(self, function: str, *arguments: str) -> str:
        if function == "query_positions":
            return "rows.at"
        if function == "relative_to_query":
            return super().call("relative_rows_of_keys", arguments[0], "rows", arguments[3])
        if function == "relative_to_key":
            return super().call("relative_rows", arguments[0], "rows", *arguments[3:])
        if function == "seen_mask" or function in {row.torch for row in MASKS.values()}:
            return super().call(function.replace("mask", "rows"), "rows", *arguments[2:-1])
        return super().call(function, *arguments)

    def packed(self, use: Use) -> Value:
        return self.read[use]

    def bind(self, name: str, text: str, legs: Legs, level: int = ATOM) -> None:
        self.made = Value(text, legs, name in self.batched, level)

    def size(self, name: str) -> str:
        if name in self.lengths or name in dict(self.graph.settings):
            return super().size(name)
        if name not in self.sizes:
            self.sizes.append(name)
        if name not in self.known:
            self.known[name] = self.names.fresh(name)
        return self.known[name]

    def block_size(self, leg: str) -> str:
        """The size of a leg in a block."""
        if leg == self.graph.query:
            return "rows.at.shape[0]"
        if leg == self.graph.key:
            return "rows.m"
        return "rows.at.shape[0] + rows.m - 1" if unbounded(self.graph, leg) else self.size(leg)

    def positions(self, leg: str) -> str:
        if leg == self.graph.key:
            every = f"torch.arange(rows.m, device={self.like.text}.device)"
            return super().call("keys_of", "rows") if self.nearby else every
        return super().positions(leg)

    @property
    def like(self) -> Value:
        given = (self.values[t.name] for t in self.graph.tensors if t.role in ("input", "weight"))
        return next(given, Value(self.spare, (), False))

    @property
    def batch_dims(self) -> str:
        return "len(rows.batch)"

    @property
    def batch_shape(self) -> str:
        return "*rows.batch"


class RowsPrinter:
    """Prints nodes as lines. `wanted`: gradients of a single operand, with its name and legs."""

    def __init__(
        self, writer: BlockWriter, program: RowsProgram, ends: list[Node], wanted: Mapping[Node, tuple[str, Legs]]
    ):
        self.writer, self.program, self.wanted = writer, program, wanted
        self.order = below(ends)
        self.uses = Counter(arg for node in self.order for arg in node.args)
        self.uses.update(ends)
        self.reader = {arg: node for node in self.order for arg in node.args}
        self.values: dict[Node, Value] = {}
        self.rooms: dict[Node, int] = {}
        self.steps: dict[Node, str] = {}
        self.named = {node: writer.names.fresh(f"d_{name}") for node, (name, _) in wanted.items()}
        self.lent: set[str] = set()  # names of steps that are printed as part of others
        for name, node in program.values.items():
            self.steps.setdefault(node, name)
        self.variable = writer.names.fresh("x")
        self.absorbed = {inner for node in self.order for inner in self._inside(node)}
        graph = program.graph
        legs = [*(step.legs for step in graph.steps), *(tensor.legs for tensor in graph.tensors)]
        self.wide = {leg for own in legs if {*program.pair} <= {*own} for leg in own}

    def print(self, end: Node) -> None:
        """Prints every line that a node needs and that is not yet printed."""
        for node in below([end]):
            if node not in self.absorbed and node.op not in ("number", "spread"):
                self.value(node)

    def value(self, node: Node) -> Value:
        """The value of a node, computed once."""
        if node not in self.values:
            self.values[node] = self._bound(node, getattr(self, f"_{node.op}")(node))
        return self.values[node]

    # names, lines, layouts

    def _bound(self, node: Node, value: Value) -> Value:
        """A line for the value, or the value itself if it is nested in its only reader."""
        if node.op in ("load", "constant", "gradient", "view", "number") or value.text.isidentifier():
            return value
        if self._stands_inside(node, value):
            self.absorbed.add(node)
            return value
        name, only = self._name(node), ""
        if node in self.wanted and self.uses[node] == 1:
            operand, legs = self.wanted[node]
            value, only = value.aligned(legs, whole=True), f' if "{operand}" in wanted else None'
        self.writer.line(f"{name} = {value.text}{only}", value)
        return Value(name, value.legs, value.batched)

    def _stands_inside(self, node: Node, value: Value) -> bool:
        own = self.steps.get(node, ".")
        if self.uses[node] != 1 or node not in self.reader or "." not in own:
            return False
        reader = self.reader[node]
        if reader.op == "mul" and reader.args[0].op == "number":
            return True
        fits = reader.op in _AROUND
        if reader.op == "box":
            fits = OPS[reader.data[0].op.kind].inline
        return fits and len(value.text) <= _INLINE and "einsum" not in value.text

    def _name(self, node: Node) -> str:
        """The name of a step for its value, derived names for other nodes."""
        if node in self.steps:
            return self.writer.local[self.steps[node]]
        if node in self.named:
            return self.named[node]
        start, base = ("d_", node.name[2:]) if node.name.startswith("d_") else ("", node.name)
        base, end = (base[:-2], "_k") if base.endswith(".k") else (base, "")
        local = self.writer.local.get(base) or base.replace(".", "_")
        if not start + end and self.program.values.get(base) in self.absorbed and local not in self.lent:
            self.lent.add(local)
            return local
        return self.writer.names.fresh(f"{start}{local or node.op}{end}")

    def _layout(self, node: Node) -> Legs:
        """Legs shared with pairs of query and key, then the sides, then the others, in the order of the diagram."""
        base, graph = node.name.removeprefix("d_"), self.writer.graph
        legs = (*node.heads, *node.axes)
        known = self.writer.values[base].legs if base in self.writer.values else ()
        if not known and base in graph.step:
            known = graph.step[base].legs
        if {*known} == {*legs} and base in self.writer.values:
            return known
        legs = tuple(leg for leg in known if leg in legs) + tuple(leg for leg in legs if leg not in known)
        if not node.axes:
            return legs
        heads = tuple(leg for leg in legs if leg in self.wide and leg not in node.axes)
        return heads + node.axes + tuple(leg for leg in legs if leg not in heads + node.axes)

    # sums and products

    def _sums(self, node: Node) -> bool:
        return node.op in ("sum", "dot") or (node.op == "over" and node.data[1] == "add")

    def _chain(self, node: Node) -> tuple[list[Node], tuple[Node, ...]]:
        """(nodes inside a sum of products, its factors); the factors are one node if it is a plain sum."""
        inner, found = node, list[Node]()
        while inner.op != "dot" and self._sums(inner):
            (arg,) = inner.args
            whole = self._sums(arg) or (arg.op == "mul" and arg.args[0].op != "number")
            if not whole or self.uses[arg] != 1 or "." not in self.steps.get(arg, "."):
                return found, (arg,)
            found.append(arg)
            inner = arg
        return found, inner.args

    def _inside(self, node: Node) -> list[Node]:
        """The nodes printed as part of a node."""
        if self._sums(node):
            return self._chain(node)[0]
        return self._scaled(*node.args) if node.op == "mul" and node.args[0].op == "number" else []

    def _scaled(self, number: Node, node: Node) -> list[Node]:
        """The nodes into which a number is folded: a node, its inner nodes, and recursively its smallest factor."""
        place = self._smallest(node)
        if place is None:
            return []
        found, factors = self._factors(node)
        self.uses[self._multiple(number, factors[place])] += 1
        return [node, *found, *self._scaled(number, factors[place])]

    def _factors(self, node: Node) -> tuple[list[Node], tuple[Node, ...]]:
        return self._chain(node) if self._sums(node) else ([], node.args)

    def _smallest(self, node: Node) -> int | None:
        """The index of the factor that should absorb a number. Returns None for the sum itself."""
        if not (self._sums(node) or (node.op == "mul" and node.args[0].op != "number")):
            return None
        if self.uses[node] != 1 or "." not in self.steps.get(node, "."):
            return None
        _, factors = self._factors(node)
        sizes = [self._room(factor) for factor in factors]
        return sizes.index(min(sizes)) if len(sizes) == 2 and min(sizes) <= self._elements(node) else None

    def _room(self, node: Node) -> int:
        """Elements of the smallest tensor that can absorb a factor of the node."""
        if node not in self.rooms:
            place, (_, factors) = self._smallest(node), self._factors(node)
            self.rooms[node] = self._elements(node) if place is None else self._room(factors[place])
        return self.rooms[node]

    def _elements(self, node: Node) -> int:
        """Elements of a node, for a block of rows and many keys."""
        query, key = self.program.pair
        sides = {query: _ROWS, key: _KEYS}
        return prod(self.program.nodes.sizes[leg] for leg in node.heads) * prod(sides.get(x, _KEYS) for x in node.axes)

    def _load(self, node: Node) -> Value:
        return self.writer.values[node.name]

    _constant = _load

    def _over(self, node: Node) -> Value:
        return self._product(node, self._chain(node)[1])

    _sum = _dot = _over

    def _product(self, node: Node, factors: tuple[Node, ...]) -> Value:
        want = self._layout(node)
        if len(factors) == 1:
            return summed(self.value(factors[0]), want)
        a, b = (self.value(self._without_spread(x, other)) for x, other in (factors, factors[::-1]))
        pair = self.program.pair
        if a.legs[-2:] == b.legs[-2:] == pair and not {*pair} & {*want}:
            return self._over_pairs(a, b, want)
        big, small = (a, b) if len(a.legs) >= len(b.legs) else (b, a)
        alike = {*want} < {*big.legs} and {*small.legs} <= {*big.legs}
        if alike and big.legs[-1] in want and big.legs[-1] in small.legs:  # avoids one matmul per entry
            dims = ", ".join(str(i - len(big.legs)) for i, leg in enumerate(big.legs) if leg not in want)
            text = self.writer.call("summed_products", big.text, small.aligned(big.legs).text, f"({dims},)")
            kept = tuple(leg for leg in big.legs if leg in want)
            return Value(text, kept, big.batched or small.batched).aligned(want)
        return product(self.writer, a, b, want)

    def _over_pairs(self, a: Value, b: Value, want: Legs) -> Value:
        """A sum over queries and keys, flattened to one leg, then over the other shared legs; maps are not copied."""
        one, other = (replace(x, text=f"{x.atom}.flatten(-2)", legs=(*x.legs[:-2], "pair")) for x in (a, b))
        more = tuple(leg for leg in one.legs[:-1] if leg in other.legs and leg not in want)
        text = einsum_text(one, other, more + want)
        return summed(Value(text, more + want, a.batched or b.batched), want)

    def _without_spread(self, x: Node, other: Node) -> Node:
        """Removes a broadcast along legs that the other factor has."""
        if x.op != "spread":
            return x
        (arg,) = x.args
        added = {*x.heads, *x.axes} - {*arg.heads, *arg.axes}
        return arg if added <= {*other.heads, *other.axes} else x

    def _mul(self, node: Node) -> Value:
        number, x = node.args
        if number.op != "number":
            return self._product(node, node.args)
        (tree,) = number.data
        place, factors = self._smallest(x), list(self._factors(x)[1])
        if place is None:
            return scaled(self.writer, tree, self.value(x))
        factors[place] = self._multiple(number, factors[place])
        return self._product(x, tuple(factors))

    def _multiple(self, number: Node, factor: Node) -> Node:
        return self.program.nodes.mul(number, factor, f"{factor.name}.k")

    def _number(self, node: Node) -> Value:
        (tree,) = node.data
        like = self.writer.like.text
        text = f"torch.full((), {self.writer.number(tree)}, device={like}.device, dtype={like}.dtype)"
        return Value(text, (), False)

    def _add(self, node: Node) -> Value:
        want, text, many = self._layout(node), "", False
        if all(arg.op == "number" for arg in node.args):
            return Value(" + ".join(self.value(arg).text for arg in node.args), (), False, SUM)
        for arg in node.args:
            if arg.op == "number":
                part = self.writer.factor(arg.data[0])
            else:
                value = self.value(arg)
                many |= value.batched
                value = value.aligned(want)
                part = value.text
            sign = ("- " if part.startswith("-") else "+ ") if text else ""
            text = f"{text} {sign}{part.removeprefix('-') if text else part}".strip()
        return Value(text, want, many, SUM)

    def _spread(self, node: Node) -> Value:
        want, value = self._layout(node), self.value(node.args[0])
        sizes = ", ".join(map(self.writer.block_size, want))
        text = self.writer.call(
            "spread_rows", value.aligned(want, whole=True).text, f"({sizes}{',' * (len(want) == 1)})"
        )
        return Value(text, want, value.batched)

    def _view(self, node: Node) -> Value:
        value, names = self.value(node.args[0]), dict(zip(*node.data, strict=True))
        return Value(value.text, tuple(names.get(leg, leg) for leg in value.legs), value.batched, value.level)

    # boxes and their gradients

    def _box(self, node: Node) -> Value:
        (step, *_), writer = node.data, self.writer
        return self._boxed(step, dict(zip(step.op.uses, map(self.value, node.args), strict=True)), writer)

    def _boxed(self, step: Step, read: dict[Use, Value], writer: BlockWriter) -> Value:
        writer.read, writer.made = read, None
        emit_box(writer, step)
        return writer.made or writer.values[step.name]

    def _drawn(self, node: Node) -> Value:
        (step,), value = node.data, self.value(node.args[0])
        text = self.writer.call("drawn_rows", value.text, self.writer.number(step.op.number("dropout")), "rows")
        return Value(text, value.legs, True)

    def _dropped(self, node: Node) -> Value:
        value, entries = map(self.value, node.args)
        return Value(
            self.writer.call("dropped_rows", value.aligned(entries.legs).text, entries.text), entries.legs, True
        )

    def _slope(self, node: Node) -> Value:
        known, d = map(self.value, node.args)  # the result if that is enough: the operand can be freed
        text = MAPS[node.data[0]].torch_slope.format(x=known.atom, y=known.atom, d=d.aligned(known.legs).atom)
        return Value(text, known.legs, known.batched or d.batched, ATOM if text.startswith("torch.") else PRODUCT)

    def _box_grad(self, node: Node) -> Value:
        (step, role, *_), (known, d) = node.data, map(self.value, node.args)
        box, masked = step.op, self.writer.graph.masked(step)
        if masked or role:
            known = known.arranged(box_layout(self.writer.graph, step, box.operand("of").legs))
        arguments = [known.text, d.aligned(known.legs).text]
        if masked:
            arguments.append(keep_and_bias(self.writer, step, known.legs)[0])
        elif (place := dim_of(known, box.leg)) != -1:
            arguments.append(f"dim={place}")
        arguments += [f"eps={text}" for name, tree in box.numbers if name == "eps" for text in self.writer.eps(tree)]
        if role:
            return Value(
                f"{self.writer.call(OPS[box.kind].row_gradients[role], *arguments)}[..., 0]", known.legs[:-1], True
            )
        return Value(self.writer.call(OPS[box.kind].gradient, *arguments), known.legs, True)

    def _kept(self, node: Node) -> Value:
        (step,), d, graph = node.data, self.value(node.args[0]), self.writer.graph
        use = step.op.operand("of")
        if not step.op.seen:
            legs = box_layout(graph, step, use.legs)
            keep = keep_and_bias(self.writer, step, legs)[0]
            return Value(self.writer.call("kept", d.aligned(legs).text, keep), legs, True)
        pair = tuple(leg for leg in self.program.pair if leg in use.legs)
        legs = tuple(leg for leg in use.legs if leg not in pair) + pair if len(pair) == 2 else use.legs
        keep = seen_text(self.writer, step.op.seen, legs, use.name in self.writer.batched)
        return Value(self.writer.call("hide", d.aligned(legs).text, keep, "0.0"), legs, True)

    def _pull(self, node: Node) -> Value:
        """The gradient of a box without tiles: written for shifts and maxima, otherwise by autograd."""
        (step, i, _), (d, *operands) = node.data, [self.value(arg) for arg in node.args]
        x, name, op = operands[i], self.variable, OPS[step.box.kind]
        if op.makes_leg:
            return self._shift_gradient(step.box, d, x)
        if op.operand_gradient and not self.writer.graph.masked(step):
            text = self.writer.call(op.operand_gradient, x.text, d.aligned(x.legs).text, str(dim_of(x, step.box.leg)))
            return Value(text, x.legs, True)
        read = dict(zip(step.op.uses, operands, strict=True))
        read[step.op.uses[i]] = Value(name, x.legs, True)
        result = self._boxed(step, read, self.writer)
        gradient, legs = d.aligned(result.legs, whole=True).text, f"({len(result.legs)}, {len(x.legs)})"
        text = self.writer.call("gradient_of", f"lambda {name}: {result.text}", gradient, x.text, legs)
        return Value(text, x.legs, True)

    def _shift_gradient(self, box: Box, d: Value, x: Value) -> Value:
        """The gradient of a table by relative position, whose row all queries, or all keys, may share."""
        graph, leg, to = self.writer.graph, str(box.leg), str(box.other)
        of_keys = to == graph.query
        rows, reach = str(graph.key if of_keys else graph.query), graph.leg[leg].reach
        others = tuple(own for own in x.legs if own not in (rows, leg))
        options = [*([] if reach is None else [str(reach)]), *(["of_keys=True"] if of_keys else [])]
        text = self.writer.call("shift_gradient", d.aligned((*others, rows, to), whole=True).text, "rows", *options)
        if rows in x.legs:
            return Value(text, (*others, rows, leg), True)
        return Value(f"{text}.sum(-2)", (*others, leg), True)


def mask_gradient(writer: BlockWriter, step: Step, d: Value) -> str:
    """The gradient of the call's mask, from the gradient of the scores it was added to."""
    assert step.box is not None
    legs = box_layout(writer.graph, step, step.box.operand("of").legs)
    return writer.call("mask_gradient", d.aligned(legs, whole=True).text, "mask", writer.batch_dims, str(len(legs) - 2))
