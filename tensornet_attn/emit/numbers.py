"""Emits arithmetic: settings as values, legs as sizes of weights or lengths of the call."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.arithmetic import (
    OF_MATH,
    Arith,
    Binary,
    FunctionCall,
    Name,
    Negative,
    Number,
    evaluate,
    names,
    to_text,
)
from tensornet_attn.ir.values import ATOM, PRODUCT, SUM

_EXACT = 2**53  # a larger int may overflow when combined with a tensor; a float does not
_SHORT = 6  # maximum characters of a literal; `1 - 0.8` stays, since its value is 0.19999999999999996
_WHOLE = frozenset("+ - * //".split())
OF_LENGTHS = ("at_least_one", *(f"{word}_of_length" for word in OF_MATH))  # the functions of `runtime/lengths.py`

Size = Callable[[str], str]


def number_text(tree: Arith, graph: Graph, size: Size, traced: bool = True) -> tuple[str, int]:
    """A number as Python, and its precedence. `traced`: functions of lengths may be scalar tensors in traced code."""
    if all(name.name in graph.values for name in names(tree)):
        number = evaluate(tree, graph.values)
        if abs(number) >= _EXACT:
            return _literal(float(number))
        if fixed(tree, graph) and (len(repr(number)) <= _SHORT or isinstance(tree, Number | Negative)):
            return _literal(number)
    return _python(_of_lengths(tree, graph, traced), size), _level(tree)


def integer_text(tree: Arith, graph: Graph, size: Size) -> str:
    """A number that must be a constant int, such as the k of topk."""
    if fixed(tree, graph) or not _whole(tree):
        return repr(int(evaluate(tree, graph.values)))
    return _python(tree, size)


def fixed(tree: Arith, graph: Graph) -> bool:
    """Whether a number depends on no leg, so that it is equal for all sizes."""
    return all(name.name not in graph.leg for name in names(tree))


def _of_lengths(tree: Arith, graph: Graph, traced: bool) -> Arith:
    """The tree with lengths and their functions as in `runtime/lengths.py`: `log_of_length(at_least_one(m))`."""
    if isinstance(tree, Name):
        return tree if tree.name in graph.values else FunctionCall("at_least_one", (tree,))
    if isinstance(tree, Negative):
        return replace(tree, of=_of_lengths(tree.of, graph, traced))
    if isinstance(tree, Binary):
        left, right = (_of_lengths(side, graph, traced) for side in (tree.left, tree.right))
        return replace(tree, left=left, right=right)
    if not isinstance(tree, FunctionCall):
        return tree
    arguments = tuple(_of_lengths(argument, graph, traced) for argument in tree.arguments)
    of_length = traced and tree.function in OF_MATH and any(name.name not in graph.values for name in names(tree))
    return replace(tree, function=f"{tree.function}_of_length" if of_length else tree.function, arguments=arguments)


def _literal(number: float) -> tuple[str, int]:
    return repr(number), ATOM if number >= 0 else PRODUCT


def _python(tree: Arith, size: Size) -> str:
    return re.sub(rf"\b({'|'.join(OF_MATH)})\(", r"math.\1(", to_text(tree, size))


def _level(tree: Arith) -> int:
    if isinstance(tree, Binary):
        return SUM if tree.op in ("+", "-") else PRODUCT
    return PRODUCT if isinstance(tree, Negative) else ATOM


def _whole(tree: Arith) -> bool:
    """Whether Python computes the number in ints."""
    if isinstance(tree, Number):
        return isinstance(tree.value, int)
    if isinstance(tree, Negative):
        return _whole(tree.of)
    if isinstance(tree, Binary):
        return tree.op in _WHOLE and _whole(tree.left) and _whole(tree.right)
    return isinstance(tree, Name) or (
        isinstance(tree, FunctionCall) and tree.function in ("min", "max", "abs") and all(map(_whole, tree.arguments))
    )
