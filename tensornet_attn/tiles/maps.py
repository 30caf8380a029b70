"""Elementwise functions in Triton, with derivatives: templates over x, the result y, its gradient d, numbers a, b."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Map:
    """`value` of x; `slope`: the gradient of x."""

    value: str
    slope: str


_SIGMOID = "1 / (1 + exp_of(-{x}))"
_TANH = "2 / (1 + exp_of(-2 * {x})) - 1"
_LOG1P = "tl.maximum({x}, 0.0) + tl.log(1 + exp_of(-tl.abs({x})))"
MAPS: dict[str, Map] = {
    "relu": Map("tl.maximum({x}, 0.0)", "tl.where({x} > 0, {d}, 0.0)"),
    "tanh": Map(_TANH, "{d} * (1 - {y} * {y})"),
    "sigmoid": Map(_SIGMOID, "{d} * {y} * (1 - {y})"),
    "exp": Map("exp_of({x})", "{d} * {y}"),
    "log": Map("tl.log({x})", "tl.where({d} == 0, 0.0, {d} / {x})"),
    "square": Map("{x} * {x}", "2 * {x} * {d}"),
    "sqrt": Map("tl.sqrt({x})", "tl.where({d} == 0, 0.0, {d} / (2 * {y}))"),
    "abs": Map("tl.abs({x})", "tl.where({x} > 0, {d}, tl.where({x} < 0, -{d}, 0.0))"),
    "softplus": Map(_LOG1P, "{d} / (1 + exp_of(-{x}))"),
    "reciprocal": Map("tl.where({x} == 0, 0.0, 1 / {x})", "-{d} * {y} * {y}"),
    "silu": Map("{x} / (1 + exp_of(-{x}))", "{d} * (1 + {x} - {y}) / (1 + exp_of(-{x}))"),
    "gelu": Map(
        "0.5 * {x} * (1 + tl.erf(0.7071067811865476 * {x}))",
        "{d} * (0.5 + 0.5 * tl.erf(0.7071067811865476 * {x}) + 0.3989422804014327 * {x} * exp_of(-0.5 * {x} * {x}))",
    ),
    "elu": Map("tl.where({x} > 0, {x}, exp_of(tl.minimum({x}, 0.0)) - 1)", "tl.where({x} > 0, {d}, {d} * ({y} + 1))"),
    "elu1": Map("tl.where({x} > 0, {x} + 1, exp_of(tl.minimum({x}, 0.0)))", "tl.where({x} > 0, {d}, {d} * {y})"),
    "elu1_neg": Map("tl.where({x} < 0, 1 - {x}, exp_of(tl.minimum(-{x}, 0.0)))", "tl.where({x} < 0, -{d}, -{d} * {y})"),
    "softcap": Map("{a} * (2 / (1 + exp_of(-2 * {x} / {a})) - 1)", "{d} * (1 - ({y} / {a}) * ({y} / {a}))"),
    "power": Map("power_of({x}, {a})", "tl.where({d} == 0, 0.0, {d} * {a} * power_of({x}, {a} - 1))"),
    "clamp": Map("tl.minimum(tl.maximum({x}, {a}), {b})", "tl.where(({x} >= {a}) & ({x} <= {b}), {d}, 0.0)"),
}
