"""Single contractions: what they read like, and that they compute what the reference does."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.agreement import modules, same_outcome
from tests.random_call import F64

CASES = {
    # diagram of y: (weights, the line of code)
    "x[n f] W[f h d] -> n h d": (
        {"W": "f h d"},
        "return projected(x, self.W.flatten(1)).unflatten(-1, self.W.shape[1:])",
    ),
    "x[n f] W[f d] -> n d": ({"W": "f d"}, "return projected(x, self.W)"),
    "x[n f] W[f] -> n": ({"W": "f"}, "return x @ self.W"),
    "2 * x[n f] W[f d] -> n d": ({"W": "f d"}, "return 2 * projected(x, self.W)"),
    "-x[n f] W[f d] + b[d] -> n d": ({"W": "f d", "b": "d"}, "return -projected(x, self.W) + self.b"),
    "x[n f] W[d f] -> n d": ({"W": "d f"}, "return projected(x, self.W.transpose(-2, -1))"),
    "x[n f] b[f] -> n f": ({"b": "f"}, "return x * self.b"),
    "x[n f] b[d] -> n d f": ({"b": "d"}, "return x[..., None, :] * self.b[:, None]"),
    "x[n f] x[n f] -> n": ({}, "return x.square().sum(-1)"),
    "x[n f] -> f n": ({}, "return x.transpose(-2, -1)"),
    "x[n f] + 1 -> n f": ({}, "return x + 1"),
    "x[n f] - (0.5 * f) * b[f] -> n f": ({"b": "f"}, "return x - 0.5 * self.b.shape[0] * self.b"),
    "x[n f] s[] -> n f": ({"s": []}, "return x * self.s"),
}


def design(text: str, weights: dict[str, Any]) -> dict[str, Any]:
    legs = {"n": "query", "f": 4, "h": 2, "d": 3}
    used = {leg for leg in legs if re.search(rf"\b{leg}\b", f"{text} {weights}")}
    return {
        "tensornet": 1,
        "name": "one",
        "legs": {leg: size for leg, size in legs.items() if leg in used},
        "inputs": {"x": "n f"},
        "weights": weights,
        "diagram": {"y": text},
        "output": "y",
    }


@pytest.mark.parametrize("text", CASES)
def test_lines(text: str) -> None:
    weights, line = CASES[text]
    oracle, module = modules(design(text, weights))
    assert f"{line}  # ..." in module.source
    x = torch.randn(2, 5, 4, dtype=F64)
    torch.testing.assert_close(module(x), oracle(x))


def test_more_legs_than_the_alphabet() -> None:
    """A product over 31 legs with names of several letters."""
    left, right = [f"left_{i}" for i in range(20)], [f"right_{i}" for i in range(10)]
    kept = [*left[14:], *right]
    data = {
        "tensornet": 1,
        "name": "many",
        "legs": {"n": "query", "f": 3} | dict(zip([*left, *right], itertools.cycle([1, 1, 1, 1, 2]), strict=False)),
        "inputs": {"x": "n f"},
        "weights": {"A": ["f", *left], "B": [*reversed(right), *left[:14]], "C": ["f", *kept]},
        "diagram": {
            "P": f"x[n f] A[f {' '.join(left)}] -> {' '.join(left)} n",
            "R": f"P[{' '.join(left)} n] B[{' '.join([*reversed(right), *left[:14]])}] -> n {' '.join(kept)}",
            "y": f"R[n {' '.join(kept)}] C[f {' '.join(kept)}] -> n f",
        },
        "output": "y",
    }
    oracle, module = modules(data)
    x = torch.randn(2, 5, 3, dtype=F64)
    torch.testing.assert_close(module(x), oracle(x))


@pytest.mark.parametrize(("name", "exact"), [("linear3", True), ("linear3_shifted", False), ("linear2", False)])
def test_products_are_exact_where_rows_may_be_divided_by_sums_near_zero(name: str, exact: bool) -> None:
    option = ", exact=True" if exact else ""
    assert f"projected(x, self.Wq.flatten(1){option})" in ta.emit_source(name, package=True)


@pytest.mark.parametrize("scores", ["h r n m", "r h m n", "r h n m"])
@pytest.mark.parametrize("key", ["m h r d", "r m h d", "h m r d"])
@pytest.mark.parametrize("read", ["n h d", "h d n"])
def test_products_of_several_maps(scores: str, key: str, read: str) -> None:
    """Products that have queries and keys, whose legs are in another order than a matrix product makes."""
    one = {
        "tensornet": 1,
        "name": "maps",
        "legs": {"n": "query", "m": "key", "f": 4, "h": 2, "r": 3, "d": 5},
        "inputs": {"x": "n f", "z": "m f"},
        "weights": {"Wq": "f h d", "Wk": "f h r d"},
        "diagram": {
            "Q": "x[n f] Wq[f h d] -> n h d",
            "K": f"z[m f] Wk[f h r d] -> {key}",
            "L": {"map": "tanh", "of": f"Q[n h d] K[{key}] -> {scores}"},
            "y": f"L[{scores}] K[{key}] -> {read}",
        },
        "output": "y",
    }
    oracle, module = modules(one)
    given = [torch.randn(2, 6, 4, dtype=F64), torch.randn(2, 7, 4, dtype=F64)]
    same_outcome(module, oracle, given)
