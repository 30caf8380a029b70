"""Arithmetic of sizes, scales, coefficients and parameters, as expression trees. Texts are never run as code."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

from tensornet_attn import limits
from tensornet_attn.ir.tokens import Refusal, Span, Token, TokenStream

T = TypeVar("T")
Value = int | float | Fraction
HINT = "use numbers, legs and settings with + - * / // **, e.g. 'f / h' or 'd ** -0.5'."
FUNCTIONS = {  # name: minimum number of arguments
    "sqrt": 1, "log": 1, "log2": 1, "exp": 1, "abs": 1, "floor": 1, "ceil": 1, "min": 2, "max": 2,
}  # fmt: skip
OF_MATH = ("sqrt", "log", "log2", "exp", "floor", "ceil")  # functions of Python's module `math`
CONSTANTS = {"pi": math.pi}  # unless a leg or a setting has the name
_MEANT = {"rsqrt": "x ** -0.5", "pow": "x ** 2", "square": "x ** 2", "ln": "log(x)", "round": "floor(x + 0.5)"}
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2}


@dataclass(frozen=True)
class Number:
    value: int | float


@dataclass(frozen=True)
class Name:
    name: str
    span: Span = field(default=(0, 0), compare=False)


@dataclass(frozen=True)
class Negative:
    of: Arith


@dataclass(frozen=True)
class Binary:
    op: str  # + - * / // **
    left: Arith
    right: Arith


@dataclass(frozen=True)
class FunctionCall:
    function: str
    arguments: tuple[Arith, ...]


Arith = Number | Name | Negative | Binary | FunctionCall
ONE = Number(1)


def times(a: Arith, b: Arith) -> Arith:
    """The product of two trees, without factors of 1."""
    return b if a == ONE else a if b == ONE else Binary("*", a, b)


def parse(text: str | int | float) -> Arith:
    """Parses a text such as `f / h`, or converts a number. Raises Refusal if the text is invalid."""
    if not isinstance(text, str):
        return number(text)
    stream = TokenStream(text, HINT)
    tree = parse_sum(stream)
    if stream.next.kind != "end":
        raise stream.unexpected("an operator")
    return tree


def number(value: int | float) -> Arith:
    return Negative(Number(-value)) if value < 0 else Number(value)


def parse_sum(stream: TokenStream, binding: int = 1) -> Arith:
    """Parses `+ - * / //` by precedence climbing; `_signed` and `_power` parse signs and powers."""
    left = _signed(stream)
    while stream.next.kind == "symbol" and _BINDING.get(stream.next.text, 0) >= binding:
        op = stream.operator().text
        left = Binary(op, left, parse_sum(stream, _BINDING[op] + 1))
    return left


def _signed(stream: TokenStream) -> Arith:
    """Parses signs; `-d ** 2` is -(d ** 2), as in Python."""
    if stream.at("-", "+"):
        stream.descend()
        sign = stream.take().text
        inner = _signed(stream)
        stream.depth -= 1
        return Negative(inner) if sign == "-" else inner
    return _power(stream)


def _power(stream: TokenStream) -> Arith:
    base = _atom(stream)
    if not stream.at("**"):
        return base
    stream.descend()
    stream.take()
    power = Binary("**", base, _signed(stream))
    stream.depth -= 1
    return power


def _atom(stream: TokenStream) -> Arith:
    token = stream.next
    if token.kind == "number":
        stream.take()
        return literal(token)
    if token.kind == "name":
        stream.take()
        return _call(stream, token.text, token.span) if stream.at("(") else Name(token.text, token.span)
    if stream.at("("):
        stream.descend()
        stream.take()
        inner = parse_sum(stream)
        stream.expect(")", "')'")
        stream.depth -= 1
        return inner
    raise stream.unexpected("a number, a leg or a setting")


def literal(token: Token) -> Number:
    """The value of a number token."""
    text = token.text
    if len(text) > 40:
        raise Refusal("number", "this number has more than 40 characters.", "shorten it.", token.span)
    value = int(text) if text.isdigit() else float(text)
    if not math.isfinite(value):
        raise Refusal("number", f"'{text}' is not a finite number.", "keep numbers below 1e308.", token.span)
    return Number(value)


def _call(stream: TokenStream, function: str, span: Span) -> FunctionCall:
    if function not in FUNCTIONS:
        hint = f"use one of {', '.join(sorted(FUNCTIONS))}."
        hint = f"write '{_MEANT[function]}'." if function in _MEANT else hint
        raise Refusal("unknown-function", f"there is no function '{function}'.", hint, span)
    arguments = parse_arguments(stream, parse_sum)
    least = FUNCTIONS[function]
    if len(arguments) < least or (least == 1 and len(arguments) > 1):
        wanted = "one argument" if least == 1 else "two or more arguments"
        raise Refusal("syntax", f"'{function}' takes {wanted}, got {len(arguments)}.", _USAGE[function], span)
    return FunctionCall(function, tuple(arguments))


_USAGE = {name: f"e.g. '{name}(f)'." if least == 1 else f"e.g. '{name}(f, 64)'." for name, least in FUNCTIONS.items()}


def parse_arguments(stream: TokenStream, parse_argument: Callable[[TokenStream], T]) -> list[T]:
    """Parses arguments such as `(a, b)`; the cursor is at the opening parenthesis."""
    stream.descend()
    stream.expect("(", "'('")
    arguments: list[T] = []
    while not stream.at(")"):
        if arguments:
            stream.expect(",", "',' or ')'")
        arguments.append(parse_argument(stream))
    stream.take()
    stream.depth -= 1
    return arguments


def with_constants(tree: Arith, declared: Container[str]) -> Arith:
    """The tree with `pi` replaced by its value, unless a leg or a setting has this name."""
    if isinstance(tree, Name):
        constant = CONSTANTS.get(tree.name)
        return tree if constant is None or tree.name in declared else Number(constant)
    if isinstance(tree, Negative):
        return Negative(with_constants(tree.of, declared))
    if isinstance(tree, Binary):
        left, right = (with_constants(side, declared) for side in (tree.left, tree.right))
        return Binary(tree.op, left, right)
    if isinstance(tree, FunctionCall):
        return FunctionCall(tree.function, tuple(with_constants(argument, declared) for argument in tree.arguments))
    return tree


def names(tree: Arith) -> Iterator[Name]:
    """The names of legs and settings in a tree, in the order written."""
    if isinstance(tree, Name):
        yield tree
    elif isinstance(tree, Negative):
        yield from names(tree.of)
    elif isinstance(tree, Binary):
        yield from names(tree.left)
        yield from names(tree.right)
    elif isinstance(tree, FunctionCall):
        for argument in tree.arguments:
            yield from names(argument)


def evaluate(tree: Arith, values: Mapping[str, Value]) -> int | float:
    """The value of a tree; whole results are ints. Raises Refusal if it has no finite real value."""
    value = _evaluate(tree, values)
    if isinstance(value, Fraction):
        value = int(value) if value.denominator == 1 else float(value)
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _evaluate(tree: Arith, values: Mapping[str, Value]) -> Value:
    if isinstance(tree, Number):
        return Fraction(tree.value) if isinstance(tree.value, int) else tree.value
    if isinstance(tree, Name):
        value = values[tree.name]
        return Fraction(value) if isinstance(value, int) else value
    try:
        if isinstance(tree, Negative):
            return -_evaluate(tree.of, values)
        if isinstance(tree, FunctionCall):
            return _apply(tree.function, [_evaluate(argument, values) for argument in tree.arguments])
        return _bounded(_combine(tree.op, _evaluate(tree.left, values), _evaluate(tree.right, values)))
    except ZeroDivisionError:
        raise _refused(tree, "divides by zero", "use another divisor.") from None
    except OverflowError:
        raise _refused(tree, "is too large", "keep numbers below 1e308, whole ones below 2 ** 512.") from None
    except ValueError:
        raise _refused(tree, "is not a real number", "take roots and logarithms of positive numbers.") from None


def _refused(tree: Arith, what: str, hint: str) -> Refusal:
    text = to_text(tree)
    return Refusal("number", f"'{text if len(text) <= 60 else text[:57] + '...'}' {what}.", hint)


def _combine(op: str, left: Value, right: Value) -> Value:
    if op == "**":
        return _raise(left, right)
    if op == "//":
        return Fraction(left // right)
    combined: Value = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[op](left, right)
    return combined


def _raise(base: Value, exponent: Value) -> Value:
    """A power. Raises OverflowError before computing a result that is too large."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(exponent) > limits.INTEGER_BITS or bits * abs(exponent) > 2 * limits.INTEGER_BITS:
            raise OverflowError
        return Fraction(base ** int(exponent))
    power = float(base) ** float(exponent)
    if isinstance(power, complex):
        raise ValueError
    return float(power)


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > 2 * limits.INTEGER_BITS:
            raise OverflowError
    elif not math.isfinite(value):
        raise OverflowError
    return value


def _apply(function: str, arguments: list[Value]) -> Value:
    if function in ("min", "max"):
        return (min if function == "min" else max)(arguments)
    (x,) = arguments
    if function == "sqrt" and isinstance(x, Fraction) and x >= 0:
        root = Fraction(math.isqrt(x.numerator), math.isqrt(x.denominator))
        return root if root * root == x else math.sqrt(x)
    if function == "abs":
        return max(x, -x)
    of_math = getattr(math, function)
    return Fraction(of_math(x)) if function in ("floor", "ceil") else _bounded(of_math(float(x)))


def to_text(tree: Arith, rename: Callable[[str], str] = lambda name: name) -> str:
    """The tree as arithmetic that reads back to it and is valid Python; `rename` maps the names."""
    return _text(tree, 0, rename)


def _text(tree: Arith, binding: int, rename: Callable[[str], str]) -> str:
    if isinstance(tree, Number):
        return repr(tree.value)
    if isinstance(tree, Name):
        return rename(tree.name)
    if isinstance(tree, FunctionCall):
        return f"{tree.function}({', '.join(_text(argument, 0, rename) for argument in tree.arguments)})"
    if isinstance(tree, Negative):
        text, precedence = f"-{_text(tree.of, 3, rename)}", 3
    elif tree.op == "**":
        text, precedence = f"{_text(tree.left, 5, rename)} ** {_text(tree.right, 3, rename)}", 4
    else:
        precedence = _BINDING[tree.op]
        text = f"{_text(tree.left, precedence, rename)} {tree.op} {_text(tree.right, precedence + 1, rename)}"
    return f"({text})" if precedence < binding else text
