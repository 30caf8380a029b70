"""Emits tile programs for a block of rows in PyTorch: variables and sides are dimensions, products are matmuls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tensornet_attn.emit.boxes import emit_box
from tensornet_attn.emit.contract import einsum_text, product, summed
from tensornet_attn.emit.layout import box_layout
from tensornet_attn.emit.masks import keep_and_bias, seen_text
from tensornet_attn.emit.wrap import tuple_text
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Box, Step, Use
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ir.values import ATOM, PRODUCT, SUM, Legs, TensorText
from tensornet_attn.ops import MAPS, MASKS, OPS
from tensornet_attn.ops.operation import dim_of
from tensornet_attn.tiles.legs import unbounded
from tensornet_attn.tiles.program import Node, below
from tensornet_attn.tiles.rows import RowsProgram

_INLINE = 64  # maximum characters of an expression nested in another
_AROUND = ("add", "dropped")  # nodes that may contain such an expression, besides multiples and elementwise boxes
_NARROW = 8  # columns up to which MKL multiplies the transposed matrices 3 to 10 times as fast
_ROWS, _KEYS = 64, 1024  # block sizes for comparing tensor sizes


@dataclass
class BlockWriter(Writer):
    """Collects the body of the function of a block: positions are those of its rows, sizes are arguments.

    `sizes`: legs whose sizes the call passes; `size_names`: their local names; `spare`: the template for new tensors if
    there is no operand; `read`: operands of the current box, `box_result`: its result. `nearby`: a block may lack
    the first keys.
    """

    sizes: list[str] = field(default_factory=list)
    size_names: dict[str, str] = field(default_factory=dict)
    spare: str = "like"
    read: dict[Use, TensorText] = field(default_factory=dict)
    box_result: TensorText | None = None
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

    def packed(self, use: Use) -> TensorText:
        return self.read[use]

    def bind(self, name: str, expression: str, legs: Legs, level: int = ATOM) -> None:
        self.box_result = TensorText(expression, legs, name in self.batched, level)

    def size(self, name: str) -> str:
        if name in self.lengths or name in dict(self.graph.settings):
            return super().size(name)
        if name not in self.sizes:
            self.sizes.append(name)
        if name not in self.size_names:
            self.size_names[name] = self.names.fresh(name)
        return self.size_names[name]

    def block_size(self, leg: str) -> str:
        """The size of a leg in a block."""
        if leg == self.graph.query:
            return "rows.at.shape[0]"
        if leg == self.graph.key:
            return "rows.m"
        return "rows.at.shape[0] + rows.m - 1" if unbounded(self.graph, leg) else self.size(leg)

    def positions(self, leg: str) -> str:
        if leg == self.graph.key:
            all_keys = f"torch.arange(rows.m, device={self.like.text}.device)"
            return super().call("keys_of", "rows") if self.nearby else all_keys
        return super().positions(leg)

    @property
    def like(self) -> TensorText:
        leaves = (self.values[tensor.name] for tensor in self.graph.tensors if tensor.role in ("input", "weight"))
        return next(leaves, TensorText(self.spare, (), False))

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
        self.values: dict[Node, TensorText] = {}
        self.rooms: dict[Node, int] = {}
        self.steps: dict[Node, str] = {}
        self.named = {node: writer.names.fresh(f"d_{name}") for node, (name, _) in wanted.items()}
        self.lent: set[str] = set()  # names of steps that are printed as part of others
        for name, node in program.values.items():
            self.steps.setdefault(node, name)
        self.variable = writer.names.fresh("x")
        self.absorbed = {inner for node in self.order for inner in self._inside(node)}
        graph = program.graph
        layouts = [*(step.legs for step in graph.steps), *(tensor.legs for tensor in graph.tensors)]
        self.wide = {leg for layout in layouts if {*program.pair} <= {*layout} for leg in layout}

    def print(self, end: Node) -> None:
        """Prints every line that a node needs and that is not yet printed."""
        for node in below([end]):
            if node not in self.absorbed and node.op not in ("number", "spread"):
                self.value(node)

    def value(self, node: Node) -> TensorText:
        """The value of a node, computed once."""
        if node not in self.values:
            self.values[node] = self._bound(node, getattr(self, f"_{node.op}")(node))
        return self.values[node]

    # names, lines, layouts

    def _bound(self, node: Node, value: TensorText) -> TensorText:
        """A line for the value, or the value itself if it is nested in its only reader."""
        if node.op in ("load", "constant", "gradient", "view", "number") or value.text.isidentifier():
            return value
        if self._stands_inside(node, value):
            self.absorbed.add(node)
            return value
        name, guard = self._name(node), ""
        if node in self.wanted and self.uses[node] == 1:
            operand, legs = self.wanted[node]
            value, guard = value.aligned(legs, whole=True), f' if "{operand}" in wanted else None'
        self.writer.line(f"{name} = {value.text}{guard}", value)
        return TensorText(name, value.legs, value.batched)

    def _stands_inside(self, node: Node, value: TensorText) -> bool:
        step_name = self.steps.get(node, ".")
        if self.uses[node] != 1 or node not in self.reader or "." not in step_name:
            return False
        reader = self.reader[node]
        if reader.op == "mul" and reader.args[0].op == "number":
            return True
        nestable = reader.op in _AROUND
        if reader.op == "box":
            nestable = OPS[reader.data[0].op.kind].inline
        return nestable and len(value.text) <= _INLINE and "einsum" not in value.text

    def _name(self, node: Node) -> str:
        """The name of a step for its value, derived names for other nodes."""
        if node in self.steps:
            return self.writer.local[self.steps[node]]
        if node in self.named:
            return self.named[node]
        prefix, base = ("d_", node.name[2:]) if node.name.startswith("d_") else ("", node.name)
        base, suffix = (base[:-2], "_k") if base.endswith(".k") else (base, "")
        local = self.writer.local.get(base) or base.replace(".", "_")
        if not prefix + suffix and self.program.values.get(base) in self.absorbed and local not in self.lent:
            self.lent.add(local)
            return local
        return self.writer.names.fresh(f"{prefix}{local or node.op}{suffix}")

    def _layout(self, node: Node) -> Legs:
        """Legs shared with pairs of query and key, then the sides, then the others, in the order of the diagram."""
        base, graph = node.name.removeprefix("d_"), self.writer.graph
        legs = (*node.heads, *node.axes)
        written = self.writer.values[base].legs if base in self.writer.values else ()
        if not written and base in graph.step:
            written = graph.step[base].legs
        if {*written} == {*legs} and base in self.writer.values:
            return written
        legs = within(written, legs) + without(legs, *written)
        if not node.axes:
            return legs
        heads = within(without(legs, *node.axes), self.wide)
        return heads + node.axes + without(legs, *heads + node.axes)

    # sums and products

    def _sums(self, node: Node) -> bool:
        return node.op in ("sum", "dot") or (node.op == "over" and node.data[1] == "add")

    def _chain(self, node: Node) -> tuple[list[Node], tuple[Node, ...]]:
        """(nodes inside a sum of products, its factors); the factors are one node if it is a plain sum."""
        inner, inside = node, list[Node]()
        while inner.op != "dot" and self._sums(inner):
            (arg,) = inner.args
            extends = self._sums(arg) or (arg.op == "mul" and arg.args[0].op != "number")
            if not extends or self.uses[arg] != 1 or "." not in self.steps.get(arg, "."):
                return inside, (arg,)
            inside.append(arg)
            inner = arg
        return inside, inner.args

    def _inside(self, node: Node) -> list[Node]:
        """The nodes printed as part of a node."""
        if self._sums(node):
            return self._chain(node)[0]
        return self._scaled(*node.args) if node.op == "mul" and node.args[0].op == "number" else []

    def _scaled(self, number: Node, node: Node) -> list[Node]:
        """The nodes into which a number is folded: a node, its inner nodes, and recursively its smallest factor."""
        smallest = self._smallest(node)
        if smallest is None:
            return []
        inside, factors = self._factors(node)
        self.uses[self._multiple(number, factors[smallest])] += 1
        return [node, *inside, *self._scaled(number, factors[smallest])]

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
            smallest, (_, factors) = self._smallest(node), self._factors(node)
            self.rooms[node] = self._elements(node) if smallest is None else self._room(factors[smallest])
        return self.rooms[node]

    def _elements(self, node: Node) -> int:
        """Elements of a node, for a block of rows and many keys."""
        query, key = self.program.pair
        axis_sizes = {query: _ROWS, key: _KEYS}
        return prod(self.program.nodes.sizes[leg] for leg in node.heads) * prod(
            axis_sizes.get(axis, _KEYS) for axis in node.axes
        )

    def _load(self, node: Node) -> TensorText:
        return self.writer.values[node.name]

    _constant = _load

    def _over(self, node: Node) -> TensorText:
        return self._product(node, self._chain(node)[1])

    _sum = _dot = _over

    def _product(self, node: Node, factors: tuple[Node, ...]) -> TensorText:
        layout = self._layout(node)
        if len(factors) == 1:
            return summed(self.value(factors[0]), layout)
        left, right = (
            self.value(self._without_spread(factor, other_factor)) for factor, other_factor in (factors, factors[::-1])
        )
        pair = self.program.pair
        if left.legs[-2:] == right.legs[-2:] == pair and not {*pair} & {*layout}:
            return self._over_pairs(left, right, layout)
        big, small = (left, right) if len(left.legs) >= len(right.legs) else (right, left)
        covers = {*layout} < {*big.legs} and {*small.legs} <= {*big.legs}
        if covers and big.legs[-1] in layout and big.legs[-1] in small.legs:  # avoids one matmul per entry
            dims = ", ".join(str(i - len(big.legs)) for i, leg in enumerate(big.legs) if leg not in layout)
            expression = self.writer.call("summed_products", big.text, small.aligned(big.legs).text, f"({dims},)")
            kept_legs = within(big.legs, layout)
            return TensorText(expression, kept_legs, big.batched or small.batched).aligned(layout)
        return product(self.writer, left, right, layout)

    def _over_pairs(self, left: TensorText, right: TensorText, layout: Legs) -> TensorText:
        """A sum over queries and keys, flattened to one leg, then over the other shared legs; maps are not copied."""
        flat_left, flat_right = (
            replace(operand, text=f"{operand.atom}.flatten(-2)", legs=(*operand.legs[:-2], "pair"))
            for operand in (left, right)
        )
        shared = within(without(flat_left.legs[:-1], *layout), flat_right.legs)
        expression = einsum_text(flat_left, flat_right, shared + layout)
        return summed(TensorText(expression, shared + layout, left.batched or right.batched), layout)

    def _without_spread(self, factor: Node, other_factor: Node) -> Node:
        """Removes a broadcast along legs that the other factor has."""
        if factor.op != "spread":
            return factor
        (arg,) = factor.args
        added = {*factor.heads, *factor.axes} - {*arg.heads, *arg.axes}
        return arg if added <= {*other_factor.heads, *other_factor.axes} else factor

    def _mul(self, node: Node) -> TensorText:
        number, operand = node.args
        if number.op != "number":
            return self._product(node, node.args)
        (tree,) = number.data
        smallest, factors = self._smallest(operand), list(self._factors(operand)[1])
        if smallest is None:
            return self.writer.scaled(tree, self.value(operand))
        factors[smallest] = self._multiple(number, factors[smallest])
        return self._product(operand, tuple(factors))

    def _multiple(self, number: Node, factor: Node) -> Node:
        return self.program.nodes.mul(number, factor, f"{factor.name}.k")

    def _number(self, node: Node) -> TensorText:
        (tree,) = node.data
        like = self.writer.like.text
        expression = f"torch.full((), {self.writer.number(tree)}, device={like}.device, dtype={like}.dtype)"
        return TensorText(expression, (), False)

    def _add(self, node: Node) -> TensorText:
        layout, expression, batched = self._layout(node), "", False
        if all(arg.op == "number" for arg in node.args):
            return TensorText(" + ".join(self.value(arg).text for arg in node.args), (), False, SUM)
        for arg in node.args:
            if arg.op == "number":
                summand = self.writer.factor(arg.data[0])
            else:
                operand = self.value(arg)
                batched |= operand.batched
                operand = operand.aligned(layout)
                summand = operand.text
            sign = "-" if summand.startswith("-") else "+"
            expression = f"{expression} {sign} {summand.removeprefix('-')}" if expression else summand
        return TensorText(expression, layout, batched, SUM)

    def _spread(self, node: Node) -> TensorText:
        layout, operand = self._layout(node), self.value(node.args[0])
        sizes = tuple_text(map(self.writer.block_size, layout))
        expression = self.writer.call("spread_rows", operand.aligned(layout, whole=True).text, sizes)
        return TensorText(expression, layout, operand.batched)

    def _view(self, node: Node) -> TensorText:
        operand, new_names = self.value(node.args[0]), dict(zip(*node.data, strict=True))
        return TensorText(
            operand.text, tuple(new_names.get(leg, leg) for leg in operand.legs), operand.batched, operand.level
        )

    # boxes and their gradients

    def _box(self, node: Node) -> TensorText:
        (step, *_) = node.data
        return self._boxed(step, dict(zip(step.uses, map(self.value, node.args), strict=True)))

    def _boxed(self, step: Step, by_use: dict[Use, TensorText]) -> TensorText:
        writer = self.writer
        writer.read, writer.box_result = by_use, None
        emit_box(writer, step)
        return writer.box_result or writer.values[step.name]

    def _drawn(self, node: Node) -> TensorText:
        (step,), operand = node.data, self.value(node.args[0])
        expression = self.writer.call("drawn_rows", operand.text, self.writer.number(step.op.number("dropout")), "rows")
        return TensorText(expression, operand.legs, True)

    def _dropped(self, node: Node) -> TensorText:
        operand, entries = map(self.value, node.args)
        return TensorText(
            self.writer.call("dropped_rows", operand.aligned(entries.legs).text, entries.text), entries.legs, True
        )

    def _slope(self, node: Node) -> TensorText:
        saved, gradient = map(self.value, node.args)  # the result if that is enough: the operand can be freed
        expression = MAPS[node.data[0]].torch_slope.format(
            x=saved.atom, y=saved.atom, d=gradient.aligned(saved.legs).atom
        )
        return TensorText(
            expression,
            saved.legs,
            saved.batched or gradient.batched,
            ATOM if expression.startswith("torch.") else PRODUCT,
        )

    def _box_grad(self, node: Node) -> TensorText:
        (step, role, *_), (saved, gradient) = node.data, map(self.value, node.args)
        box, masked = step.op, self.writer.graph.masked(step)
        if masked or role:
            saved = saved.arranged(box_layout(self.writer.graph, step, box.of.legs))
        arguments = [saved.text, gradient.aligned(saved.legs).text]
        if masked:
            arguments.append(keep_and_bias(self.writer, step, saved.legs)[0])
        elif (dim := dim_of(saved, box.leg)) != -1:
            arguments.append(f"dim={dim}")
        arguments += [f"eps={eps}" for name, tree in box.numbers if name == "eps" for eps in self.writer.eps(tree)]
        if role:
            return TensorText(
                f"{self.writer.call(OPS[box.kind].row_gradients[role], *arguments)}[..., 0]", saved.legs[:-1], True
            )
        return TensorText(self.writer.call(OPS[box.kind].gradient, *arguments), saved.legs, True)

    def _kept(self, node: Node) -> TensorText:
        (step,), gradient, graph = node.data, self.value(node.args[0]), self.writer.graph
        use = step.op.of
        if not step.op.seen:
            legs = box_layout(graph, step, use.legs)
            keep = keep_and_bias(self.writer, step, legs)[0]
            return TensorText(self.writer.call("kept", gradient.aligned(legs).text, keep), legs, True)
        pair = within(self.program.pair, use.legs)
        legs = without(use.legs, *pair) + pair if len(pair) == 2 else use.legs
        keep = seen_text(self.writer, step.op.seen, legs, use.name in self.writer.batched)
        return TensorText(self.writer.call("hide", gradient.aligned(legs).text, keep, "0.0"), legs, True)

    def _pull(self, node: Node) -> TensorText:
        """The gradient of a box without tiles: written for shifts and maxima, otherwise by autograd."""
        (step, index, _), (gradient, *operands) = node.data, [self.value(arg) for arg in node.args]
        operand, name, op = operands[index], self.variable, operation_of(step)
        if op.makes_leg:
            return self._shift_gradient(step.box, gradient, operand)
        if op.operand_gradient and not self.writer.graph.masked(step):
            expression = self.writer.call(
                op.operand_gradient,
                operand.text,
                gradient.aligned(operand.legs).text,
                str(dim_of(operand, step.box.leg)),
            )
            return TensorText(expression, operand.legs, True)
        by_use = dict(zip(step.uses, operands, strict=True))
        by_use[step.uses[index]] = TensorText(name, operand.legs, True)
        output = self._boxed(step, by_use)
        aligned, leg_counts = (
            gradient.aligned(output.legs, whole=True).text,
            f"({len(output.legs)}, {len(operand.legs)})",
        )
        expression = self.writer.call("gradient_of", f"lambda {name}: {output.text}", aligned, operand.text, leg_counts)
        return TensorText(expression, operand.legs, True)

    def _shift_gradient(self, box: Box, gradient: TensorText, table: TensorText) -> TensorText:
        """The gradient of a table by relative position, whose row all queries, or all keys, may share."""
        graph, leg, target = self.writer.graph, str(box.leg), str(box.other)
        of_keys = target == graph.query
        rows, reach = str(graph.key if of_keys else graph.query), graph.leg[leg].reach
        others = without(table.legs, rows, leg)
        options = [*([] if reach is None else [str(reach)]), *(["of_keys=True"] if of_keys else [])]
        expression = self.writer.call(
            "shift_gradient", gradient.aligned((*others, rows, target), whole=True).text, "rows", *options
        )
        if rows in table.legs:
            return TensorText(expression, (*others, rows, leg), True)
        return TensorText(f"{expression}.sum(-2)", (*others, leg), True)


def mask_gradient(writer: BlockWriter, step: Step, gradient: TensorText) -> str:
    """The gradient of the call's mask, from the gradient of the scores it was added to."""
    assert step.box is not None
    legs = box_layout(writer.graph, step, step.box.of.legs)
    return writer.call(
        "mask_gradient", gradient.aligned(legs, whole=True).text, "mask", writer.batch_dims, str(len(legs) - 2)
    )
