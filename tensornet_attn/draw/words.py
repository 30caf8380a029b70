"""Formats legs, uses, coefficients and box parameters, for pictures and text."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet_attn.graph.model import Function, Graph, Leg, Step, Tensor, Use
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


def factor_words(value: Arith) -> str:
    """A coefficient before `*`: a number, or arithmetic in parentheses."""
    return to_text(value) if isinstance(value, Number) else f"({to_text(value)})"


def scale_words(value: Arith) -> str:
    """A scale before `*`, in parentheses if its precedence is lower."""
    loose = isinstance(value, Negative) or (isinstance(value, Binary) and value.op in "+-")
    return f"({to_text(value)})" if loose else to_text(value)


def box_words(graph: Graph, step: Step, scale: bool = True) -> tuple[str, ...]:
    """The operation of a box, its parameters and masks: `('softmax over m', 'scale = d ** -0.5', 'causal')`."""
    box = step.box
    assert box is not None
    op, masks = OPS[box.kind], (call_words(mask) for mask in graph.masks(step))
    shown = [(name, value) for name, value in box.numbers if not neutral(name, value) and (scale or name != "scale")]
    parameters = op.parameters(box, {name: _number(graph, name, value) for name, value in shown})
    mode = () if box.mode in (None, "none") else (f"{op.mode_key} = {box.mode}",)
    return (op.words(box), *parameters, *mode, *masks)


def _number(graph: Graph, name: str, value: Arith) -> str:
    """Arithmetic as written. A setting with the parameter's own name is replaced with its value, to avoid `k = k`."""
    text = to_text(value)
    return repr(graph.values[text]) if text == name and text in graph.values else text


def neutral(name: str, value: Arith) -> bool:
    """Whether a parameter has no effect, such as a scale of 1."""
    return isinstance(value, Number) and value.value == _NEUTRAL.get(name)


def is_one(value: Arith) -> bool:
    """Whether a coefficient or scale is 1 and therefore omitted."""
    return value == ONE


def coefficient_words(values: Sequence[Arith], bare: bool) -> str:
    """The sign and coefficients of a term; `bare` if the term has no factors, so that a 1 is written."""
    parts = [signed(value) for value in values]
    sign = "\N{MINUS SIGN}" if sum(sign == "-" for sign, _ in parts) % 2 else "+"
    numbers = [factor_words(value) for _, value in parts if bare or not is_one(value)]
    return " ".join([sign, " * ".join(numbers)]).strip()
