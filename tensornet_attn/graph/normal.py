"""The normal form of arithmetic, initialisers and masks: equal values have equal texts.

Values that are known at compile time become numbers, so that `d ** -0.5` and `1 / sqrt(d)` agree. Lengths at run time
remain as `query` and `key`, in sums of products of powers:

    (2 * n + n) / sqrt(m * 4)  ->  1.5*key**-0.5*query
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.ir.arithmetic import Arith, Binary, FunctionCall, Name, Negative, evaluate, names, to_text
from tensornet_attn.ir.steps import Function
from tensornet_attn.ir.tokens import Refusal

Value = int | float | Fraction
Product = tuple[tuple[str, Value], ...]  # (base, exponent), sorted by base
Sum = dict[Product, Value]  # products and their coefficients


def arithmetic_text(tree: Arith, graph: Diagram) -> str:
    """The normal form of arithmetic. Numbers that agree to 12 digits are equal, whatever the order of rounding."""
    try:
        return _text(_Normal(graph).sum(tree))
    except OverflowError:  # numbers beyond any real design
        return to_text(tree)


def masks_text(masks: Iterable[Function], graph: Diagram) -> str:
    """The text of a set of masks."""
    return " ".join(sorted({function_text(mask, graph) for mask in masks}))


def function_text(function: Function, graph: Diagram) -> str:
    """A map or a mask with evaluated arguments; the parts of `and` and `or` are sorted."""
    if function.name in ("and", "or"):
        parts = sorted(
            function_text(argument, graph) for argument in function.arguments if isinstance(argument, Function)
        )
        return f"({f' {function.name} '.join(parts)})"
    arguments = [
        function_text(argument, graph) if isinstance(argument, Function) else arithmetic_text(argument, graph)
        for argument in function.arguments
    ]
    return f"{function.name}({', '.join(arguments)})" if arguments else function.name


def values_texts(function: Function, legs: int, graph: Diagram) -> tuple[str, list[str]]:
    """(text of an initialiser or a constant's value, text for each leg if the value treats legs differently).

    `kron(eye(8), ones(64, 32))` has `eye 8 ones 64` for its rows and `eye 8 ones 32` for its columns.
    """
    name = function.name
    if name == "kron" and legs == 2:
        return name, [" ".join(_sides(function, side, graph)) for side in (0, 1)]
    if name == "sinusoid" and legs == 2:
        return name, ["position", "width"]
    short = {"zeros": "full(0)", "ones": "full(1)", "eye": "eye"}  # the legs give the size
    return short.get(name) or function_text(function, graph), [""] * legs


def _sides(function: Function, side: int, graph: Diagram) -> list[str]:
    if function.name == "kron":
        factors = [factor for factor in function.arguments if isinstance(factor, Function)]
        return [word for factor in factors for word in _sides(factor, side, graph)]
    arguments = function.arguments[side : side + 1] or function.arguments[-1:]  # eye(a) is a x a
    return [
        function.name,
        *(arithmetic_text(argument, graph) for argument in arguments if not isinstance(argument, Function)),
    ]


class _Normal:
    """Converts trees to sums of products. An expression without a rule becomes a base, named by its normal text."""

    def __init__(self, graph: Diagram):
        self.graph = graph

    def sum(self, tree: Arith) -> Sum:
        if all(name.name in self.graph.values for name in names(tree)):
            try:
                number = evaluate(tree, self.graph.values)
                return {(): Fraction(number) if isinstance(number, int) else number}
            except Refusal:  # such as a division by zero beside a length at run time
                pass
        if isinstance(tree, Name):
            leg = self.graph.leg.get(tree.name)
            return _base(leg.kind if leg is not None and leg.sequence else tree.name)
        if isinstance(tree, Negative):
            return _times({(): -1}, self.sum(tree.of))
        if isinstance(tree, FunctionCall):
            return self.call(tree)
        return self.binary(tree) if isinstance(tree, Binary) else {(): tree.value}

    def call(self, tree: FunctionCall) -> Sum:
        if tree.function == "sqrt":
            return self.power(tree.arguments[0], {(): Fraction(1, 2)})
        arguments = [_text(self.sum(argument)) for argument in tree.arguments]
        return _base(f"{tree.function}({', '.join(sorted(set(arguments)))})")

    def binary(self, tree: Binary) -> Sum:
        if tree.op == "**":
            return self.power(tree.left, self.sum(tree.right))
        left, right = self.sum(tree.left), self.sum(tree.right)
        if tree.op in "+-":
            return _plus(left, right if tree.op == "+" else _times({(): -1}, right))
        if tree.op == "*":
            return _times(left, right)
        if tree.op == "//":
            return _base(f"floor({_text(left)}, {_text(right)})")
        return _times(left, self.power(tree.right, {(): -1}))

    def power(self, tree: Arith, exponent: Sum) -> Sum:
        """Distributes exponents over products of lengths, which are positive; anything else becomes a base."""
        base, constant = self.sum(tree), exponent.get(()) if exponent.keys() <= {()} else None
        if constant is not None and len(base) == 1:
            ((product, coefficient),) = base.items()
            if coefficient > 0 and all(name in ("query", "key") for name, _ in product):
                scaled = float(coefficient) ** float(constant)
                return {tuple((name, power * constant) for name, power in product if constant): scaled}
        return (
            _base(f"({_text(base)})", constant)
            if constant is not None
            else _base(f"({_text(base)})**({_text(exponent)})")
        )


def _base(base: str, exponent: Value = 1) -> Sum:
    return {((base, exponent),): 1}


def _plus(left: Sum, right: Sum) -> Sum:
    total = dict(left)
    for product, coefficient in right.items():
        total[product] = total.get(product, 0) + coefficient
    return {product: coefficient for product, coefficient in total.items() if coefficient} or {(): 0}


def _times(left: Sum, right: Sum) -> Sum:
    """Multiplies out if a side is a single product; otherwise the sums could grow without bound."""
    if len(left) > 1 and len(right) > 1:
        left, right = _base(f"({_text(left)})"), _base(f"({_text(right)})")
    total: Sum = {}
    for left_product, a in left.items():
        for right_product, b in right.items():
            total = _plus(total, {_joined(left_product, right_product): a * b})
    return total


def _joined(left: Product, right: Product) -> Product:
    powers: dict[str, Value] = {}
    for base, exponent in (*left, *right):
        powers[base] = powers.get(base, 0) + exponent
    return tuple(sorted((base, exponent) for base, exponent in powers.items() if exponent))


def _text(total: Sum) -> str:
    products = [(_format(coefficient), product) for product, coefficient in total.items()]
    return " + ".join(sorted("*".join([number, *map(_factor, product)]) for number, product in products))


def _factor(factor: tuple[str, Value]) -> str:
    base, exponent = factor
    return base if exponent == 1 else f"{base}**{_format(exponent)}"


def _format(number: Value) -> str:
    if isinstance(number, Fraction) and number.denominator > 1:
        number = float(number)
    return f"{number:.12g}" if isinstance(number, float) else str(number)
