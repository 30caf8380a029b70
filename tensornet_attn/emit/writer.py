"""The state of an emission: lines so far, values of tensors and steps, and sizes and numbers as Python text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import Any

from tensornet_attn.cost.target import TRAINING, Target
from tensornet_attn.emit import layout
from tensornet_attn.emit.names import Names, locals_of
from tensornet_attn.emit.numbers import OF_LENGTHS, integer_text, number_text
from tensornet_attn.emit.wrap import WIDTH
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Graph, Step, Use
from tensornet_attn.graph.hidden import zero_outside
from tensornet_attn.graph.pairs import overwrites
from tensornet_attn.ir.arithmetic import Arith, evaluate
from tensornet_attn.ir.arithmetic import names as arithmetic_names
from tensornet_attn.ir.values import ATOM, PRODUCT, SUM, Legs, TensorText, shape_comment

_INLINE = 64  # maximum characters of an expression nested in another


@dataclass
class Writer:
    """Collects the body of `forward`. `functions` are the helpers it calls, which the file imports or contains."""

    graph: Graph
    names: Names
    groups: list[list[str]] = field(default_factory=list)  # lines, grouped by paragraph
    values: dict[str, TensorText] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    lengths: dict[str, str] = field(default_factory=dict)  # sequence leg: local name
    used_lengths: set[str] = field(default_factory=set)  # sequence legs whose length is used
    keeps: dict[object, Any] = field(default_factory=dict)  # masks created so far, by what they depend on
    past_keeps: list[Any] = field(default_factory=list)  # masks created under a condition that has ended
    instead: Mapping[str, str] = field(default_factory=dict)  # functions that the backend replaces, by name
    cancelling: bool = False  # whether rows may be divided by sums near zero
    memory: int | None = None  # bytes that a kernel may take for itself; None: a part of the free memory
    cpp: bool = False  # C++ kernels compute what they can
    of_one: bool = False  # of one position, without half precision
    plain: bool = False  # the file needs only torch: functions in plain forms, products as operators
    native: list[str] = field(default_factory=list)  # the texts of the C++ kernels
    regions: list[tuple[object, Any]] = field(default_factory=list)  # structures of programs, and their Triton kernels
    target: Target = TRAINING  # of the plan
    hidden: Mapping[str, str] = field(default_factory=dict)  # what a kernel reads on the key leg instead of a tensor
    inside: Mapping[str, Step] = field(default_factory=dict)  # the steps inside a kernel, by name
    tile_maps: dict[str, str] = field(default_factory=dict)  # maps that kernels apply to tiles: name in this file
    wide: frozenset[str] = frozenset()  # tensors and steps kept in at least float32, see `graph/precision.py`
    rounded: str = ""  # the step whose result is rounded to the dtype of the layer
    widened: str = ""  # the step whose result becomes at least float32

    def __post_init__(self) -> None:
        self.local = locals_of(self.graph, self.names)
        self.batched = layout.batched(self.graph)
        self.readers = layout.readers(self.graph)
        self.zero_outside = zero_outside(self.graph, self.batched)
        self.overwrites = overwrites(self.graph)

    def line(self, statement: str, value: TensorText | None = None) -> None:
        self.groups[-1].append(f"{statement}  # {shape_comment(value)}" if value is not None else statement)

    def bind(self, name: str, expression: str, legs: Legs, level: int = ATOM) -> None:
        """Sets the value of a step: on a line of its own, or nested in its only reader."""
        if name == self.rounded:
            expression, level = self.call("to_narrow", expression, self.like.text), ATOM
        elif name == self.widened:
            expression, level = self.call("to_wide", expression), ATOM
        value = TensorText(expression, legs, name in self.batched, level)
        if self._stands_inside(name, value):
            self.values[name] = value
            return
        self.line(f"{self.local[name]} = {expression}", value)
        self.values[name] = TensorText(self.local[name], legs, value.batched)

    def named(self, name: str, expression: str, legs: Legs, **packing: Any) -> None:
        """Sets the value of a kernel, which has batch dimensions, on a line of its own."""
        if name == self.rounded:
            expression = self.call("to_narrow", expression, self.like.text)
        self.values[name] = TensorText(self.local[name], legs, True, **packing)
        self.line(f"{self.local[name]} = {expression}", self.values[name])

    def about(self, comment: str) -> None:
        """Adds a comment, wrapped."""
        self.groups[-1] += [f"# {line}" for line in wrap(comment, WIDTH - 10, break_long_words=False)]

    def operand(self, wish: str, value: TensorText, groups: tuple[Legs, ...], expression: str = "") -> str:
        """The name of a value with each group of legs flattened, by `expression` if given; on its own line if new."""
        expression = expression or value.grouped(groups)
        if expression.isidentifier():
            return expression
        local, batch = self.names.fresh(wish), "... " if value.batched else ""
        self.line(f"{local} = {expression}  # {batch}{layout.dimensions(*groups)}")
        return local

    def _stands_inside(self, name: str, value: TensorText) -> bool:
        if name not in self.graph.step or "." not in name or len(self.readers[name]) != 1:
            return False
        reader = self.readers[name][0][0]
        if reader.contraction is not None:
            nestable = len(reader.terms) > 1
        else:
            nestable = operation_of(reader).inline
        return nestable and len(value.text) <= _INLINE and "einsum" not in value.text

    def call(self, function: str, *arguments: str) -> str:
        """A call of a function that the file imports or contains."""
        function = self.instead.get(function, function)
        self.functions.add(function)
        return f"{function}({', '.join(arguments)})"

    def value(self, use: Use) -> TensorText:
        return self.packed(use).unpacked

    def packed(self, use: Use) -> TensorText:
        """The value of a use; heads that are packed into one dimension stay packed."""
        name = self.hidden.get(use.name, use.name) if self.graph.key in use.legs else use.name
        return self.values[name].renamed(self.graph.legs_of(name), use.legs)

    @property
    def like(self) -> TensorText:
        """The first input, or weight, that is not kept wide: it determines device and dtype."""
        narrow = [tensor for tensor in self.graph.of_role("input") if not tensor.wide]
        if not narrow and (weights := self.graph.of_role("weight")):
            return TensorText(f"self.{weights[0].name}", (), False)
        tensor = (narrow or self.graph.of_role("input"))[0]
        return TensorText(self.local[tensor.name], tensor.legs, True)

    @property
    def batch_dims(self) -> str:
        """The number of batch dimensions of the call."""
        ndims: dict[int, list[str]] = {}  # dimensions of the inputs, by their number of legs
        for tensor in self.graph.of_role("input"):
            ndims.setdefault(len(tensor.legs), []).append(f"{self.local[tensor.name]}.ndim")
        return _largest(
            [f"{_largest(dims)} - {leg_count}" if leg_count else _largest(dims) for leg_count, dims in ndims.items()]
        )

    @property
    def batch_shape(self) -> str:
        """The batch dimensions of the call, for use inside a tuple."""
        shapes = [
            f"{self.local[tensor.name]}.shape[:-{len(tensor.legs)}]"
            if tensor.legs
            else f"{self.local[tensor.name]}.shape"
            for tensor in self.graph.of_role("input")
        ]
        return f"*{shapes[0]}" if len(shapes) == 1 else f"*{self.call('joint_shape', *shapes)}"

    def number(self, tree: Arith, traced: bool = True) -> str:
        """Arithmetic as Python, for use as an argument; `traced`: see `number_text`."""
        return self.numbered(tree, traced)[0]

    def numbered(self, tree: Arith, traced: bool = True) -> tuple[str, int]:
        """Arithmetic as Python, and its precedence."""
        expression, level = number_text(tree, self.graph, self.size, traced)
        self.functions |= {name for name in OF_LENGTHS if f"{name}(" in expression}
        return expression, level

    def scale(self, tree: Arith) -> str:
        """The scale of fused attention, of which functions ask whether it is positive."""
        expression = self.number(tree)
        return (
            expression
            if all(name.name in self.graph.values for name in arithmetic_names(tree))
            else self.call("unfixed", expression)
        )

    def factor(self, tree: Arith) -> str:
        """Arithmetic as Python, for use before `* x`."""
        expression, level = self.numbered(tree)
        return f"({expression})" if level == SUM else expression

    def scaled(self, coefficient: Arith, value: TensorText) -> TensorText:
        """coefficient * value; a coefficient of 1 is left out."""
        constant = None if any(True for _ in arithmetic_names(coefficient)) else evaluate(coefficient, {})
        if constant == 1:
            return value
        expression = f"({value.text})" if value.level < PRODUCT else value.text
        expression = f"-{expression}" if constant == -1 else f"{self.factor(coefficient)} * {expression}"
        return TensorText(expression, value.legs, value.batched, PRODUCT)

    def dropped(self, probability: Arith, expression: str) -> str:
        """The text with dropout applied."""
        number = self.number(probability)
        return expression if number in ("0", "0.0") else f"F.dropout({expression}, {number}, self.training)"

    def eps(self, tree: Arith, usual: float = 0) -> list[str]:
        """The argument eps; empty if it equals the default of the function."""
        eps = self.number(tree)
        return [] if eps in (str(usual), str(float(usual))) else [eps]

    def integer(self, tree: Arith) -> str:
        return integer_text(tree, self.graph, self.size)

    def length(self, leg: str | None) -> str:
        """The local name of the length of a sequence leg, which is marked as used."""
        self.used_lengths.add(str(leg))
        return self.lengths[str(leg)]

    @property
    def lengths_of_pair(self) -> list[str]:
        """The local names of the numbers of queries and keys."""
        return [self.length(self.graph.query), self.length(self.graph.key)]

    @property
    def narrow(self) -> set[str]:
        """Legs so short that a product with few rows is faster than one with few columns."""
        return set()

    def size(self, name: str) -> str:
        """The size of a leg (or the value of a setting) as Python text."""
        if name in self.lengths:
            return self.length(name)
        if name in dict(self.graph.settings):
            setting = dict(self.graph.settings)[name]
            return repr(setting) if setting >= 0 else f"({setting!r})"
        for tensor in self.graph.tensors:
            if tensor.role == "weight" and name in tensor.legs and not tensor.stored:
                return f"self.{tensor.name}.shape[{tensor.legs.index(name)}]"
        leg = self.graph.leg[name]
        if leg.kind == "relative" and leg.size is None:
            return f"max({self.length(self.graph.query)} + {self.length(self.graph.key)} - 1, 0)"
        return str(leg.size)

    def positions(self, leg: str) -> str:
        """The positions along a sequence or relative leg, as an expression."""
        device = f"{self.like.text}.device"
        kind, reach, query, key = self.graph.leg[leg].kind, self.graph.leg[leg].reach, self.graph.query, self.graph.key
        if kind == "query":
            return self.call("query_positions", self.length(query), self.length(key or query), device)
        if kind == "relative" and reach is None:
            return self.call("relative_positions", self.length(query), self.length(key), device)
        if kind == "relative" and reach is not None:
            return f"torch.arange(-{reach}, {reach + 1}, device={device})"
        return f"torch.arange({self.size(leg)}, device={device})"

    def wanted(self, step: Step) -> Legs:
        """The layout that the only reader of a step prefers."""
        return layout.wanted(self.graph, self.readers, step)

    def result(self, name: str, legs: Legs) -> TensorText:
        """The value of a step with its legs in this order, as a local name."""
        value = self.values[name].unpacked.arranged(legs)
        if value.text != self.local[name]:
            self.line(f"{self.local[name]} = {value.text}", value)
        return replace(value, text=self.local[name])

    def output(self, name: str, legs: Legs) -> None:
        """Writes the last line; the line that computes the output becomes the return statement if possible."""
        value = self.values[name].unpacked
        last_line = self.groups[-1][-1] if self.groups[-1] else ""
        assignment = f"{value.text} = "
        if last_line.startswith(assignment) and value.legs == legs:
            self.groups[-1][-1] = f"return {last_line.removeprefix(assignment)}"
        else:
            self.line(f"return {value.arranged(legs).text}", replace(value, legs=legs))


def _largest(numbers: list[str]) -> str:
    return numbers[0] if len(numbers) == 1 else f"max({', '.join(numbers)})"
