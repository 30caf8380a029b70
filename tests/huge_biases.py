"""Rows of scores that a bias absorbs: keys of equal bias weigh the same, and gradients are those of these weights.

What tells terms of one key apart, before the bias is added, is not absorbed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tests.agreement import modules
from tests.ops.test_softmax import SCORES
from tests.ops.test_softmax import design as with_sink
from tests.random_call import F64, same_results

LEAST = torch.finfo(F64).min
HUGE = -1e25  # beside it, scores and the logarithm of the number of keys are less than a rounding
HEADS = {"f": 6, "h": "head 2"}


def extended(parent: str, **scores: Any) -> dict[str, Any]:
    return {"tensornet": 1, "name": "biased", "extends": parent, "legs": HEADS} | (
        {"diagram": scores} if scores else {}
    )


def mixed(box: str) -> dict[str, Any]:
    """Several scores of a key, reduced by a box, and a term by distance."""
    return extended(
        "mgk",
        S={box: "r", "of": "L"},
        near={"rel_shift": "p", "to": "m", "of": "B"},
        A={"softmax": "m", "of": "S[h n m] + near[h n m] -> h n m"},
    ) | {"legs": HEADS | {"p": "relative 4"}, "weights": {"B": "h p"}}


DESIGNS: dict[str, Any] = {  # none of which torch's fused attention computes
    "one pass": extended("mhsa", A={"softmax": "m", "of": SCORES["blocks"]}),
    "two passes": extended("talking_heads"),
    "several legs": extended("mhsa", A={"softmax": ["h", "m"], "of": SCORES["blocks"]}),
    "a sum of exponentials": extended("mgk"),
    "sink": with_sink("blocks", "heads"),
    "a biased sum of exponentials": mixed("logsumexp"),
    "a maximum": mixed("max"),
    "shares of two readers": extended(
        "mhsa",
        A={"softmax": ["h", "m"], "of": SCORES["blocks"]},
        P={"sum": "h", "of": "A"},
        u="P[n m] V[m h d] -> n h d",
        o="A[h n m] V[m h d] -> n h d",
        y="o[n h d] Wo[h d f] + u[n h d] Wo[h d f] -> n f",
    ),
}


def check(name: str, backend: str, *values: float) -> nn.Module:
    """Values and gradients are the reference's; returns the compiled module."""
    oracle, module = modules(DESIGNS[name], backend)
    x, keys = torch.randn(1, 20, 6, generator=torch.Generator().manual_seed(0), dtype=F64), torch.ones(1, 20) > 0
    keys[:, 3] = False
    for value in values:
        bias = torch.zeros(20, 20, dtype=F64)
        bias[[2, 7, 19]] = value
        bias[7, 4:] = -math.inf
        bias[10:14] = value * (1 + torch.arange(20) % 3) / 3  # the largest for a third of the keys
        bias[13, ::2] = -math.inf
        options = {"mask": bias, "key_mask": keys}
        same_results(module, oracle, [x], options)
    return module
