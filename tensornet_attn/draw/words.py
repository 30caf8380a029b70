"""Formats legs, uses, coefficients and box parameters, for pictures and text."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet_attn.graph.graph import Function, Graph, Leg, Step, Tensor, Use
from tensornet_attn.ir.arithmetic import ONE, Arith, Binary, Negative, Number, to_text
from tensornet_attn.ops import OPS

_NEUTRAL = {"scale": 1, "dropout": 0, "eps": 0, "fraction": 1, "blocks": 1}


KINDS = {
    "input": "input",
    "weight": "trainable",
    "frozen": "frozen",
    "constant": "constant",
    "noise": "noise",
    "state": "state",
}  # labels of tensor looks, in legend order


def look_of(tensor: Tensor) -> str:
    """A tensor's role, or `frozen` for a frozen weight."""
    return "frozen" if tensor.frozen else tensor.role


def plain(text: str) -> str:
    """The text as one printable line, for titles and descriptions."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def leg_words(leg: Leg) -> str:
    """`n`, `f = 512`, `m <= 256`: a leg's name, and its size if it is known before run time."""
    if leg.sequence:
        return leg.name if leg.maximum is None else f"{leg.name} <= {leg.maximum}"
    return leg.name if leg.size is None else f"{leg.name} = {leg.size}"


def use_words(use: Use) -> str:
    return f"{use.name}[{' '.join(use.legs)}]"


def call_words(call: Function) -> str:
    """`relu`, `band(5)`, `kron(eye(h), ones(d, d))`."""
    return call.to_text(to_text)


def signed(coefficient: Arith) -> tuple[str, Arith]:
    """Splits a coefficient into sign and rest: `-(0.5 * d)` is minus `0.5 * d`."""
    return ("-", coefficient.of) if isinstance(coefficient, Negative) else ("+", coefficient)


def factor_words(coefficient: Arith) -> str:
    """A coefficient before `*`: a number, or arithmetic in parentheses."""
    return to_text(coefficient) if isinstance(coefficient, Number) else f"({to_text(coefficient)})"


def scale_words(scale: Arith) -> str:
    """A scale before `*`, in parentheses if its precedence is lower."""
    loose = isinstance(scale, Negative) or (isinstance(scale, Binary) and scale.op in "+-")
    return f"({to_text(scale)})" if loose else to_text(scale)


def box_words(graph: Graph, step: Step, scale: bool = True) -> tuple[str, ...]:
    """The operation of a box, its parameters and masks: `('softmax over m', 'scale = d ** -0.5', 'causal')`."""
    box = step.box
    assert box is not None
    op, masks = OPS[box.kind], (call_words(mask) for mask in graph.masks(step))
    shown = [(name, number) for name, number in box.numbers if not neutral(name, number) and (scale or name != "scale")]
    parameters = op.parameters(box, {name: _number(graph, name, number) for name, number in shown})
    mode = () if box.mode in (None, "none") else (f"{op.mode_key} = {box.mode}",)
    return (op.words(box), *parameters, *mode, *masks)


def _number(graph: Graph, name: str, tree: Arith) -> str:
    """Arithmetic as written. A setting with the parameter's own name is replaced with its value, to avoid `k = k`."""
    written = to_text(tree)
    return repr(graph.values[written]) if written == name and written in graph.values else written


def neutral(name: str, number: Arith) -> bool:
    """Whether a parameter has no effect, such as a scale of 1."""
    return isinstance(number, Number) and number.value == _NEUTRAL.get(name)


def is_one(coefficient: Arith) -> bool:
    """Whether a coefficient or scale is 1 and therefore omitted."""
    return coefficient == ONE


def coefficient_words(coefficients: Sequence[Arith], bare: bool) -> str:
    """The sign and coefficients of a term; `bare` if the term has no factors, so that a 1 is written."""
    parts = [signed(coefficient) for coefficient in coefficients]
    sign = "\N{MINUS SIGN}" if sum(sign == "-" for sign, _ in parts) % 2 else "+"
    numbers = [factor_words(coefficient) for _, coefficient in parts if bare or not is_one(coefficient)]
    return " ".join([sign, " * ".join(numbers)]).strip()
