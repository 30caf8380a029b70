"""Rows of scores that a bias absorbs: all their keys weigh the same, and gradients are those of these weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tests.agreement import modules
from tests.ops.test_softmax import SCORES
from tests.ops.test_softmax import design as with_sink
from tests.random_call import F64, assert_same, results

LEAST = torch.finfo(F64).min
HUGE = -1e25  # beside it, scores and the logarithm of the number of keys are less than a rounding
HEADS = {"f": 6, "h": "head 2"}


def extended(parent: str, **scores: Any) -> dict[str, Any]:
    return {"tensornet": 1, "name": "biased", "extends": parent, "legs": HEADS} | (
        {"diagram": scores} if scores else {}
    )


DESIGNS: dict[str, Any] = {  # none of which torch's fused attention computes
    "one pass": extended("mhsa", A={"softmax": "m", "of": SCORES["blocks"]}),
    "two passes": extended("talking_heads"),
    "several legs": extended("mhsa", A={"softmax": ["h", "m"], "of": SCORES["blocks"]}),
    "a sum of exponentials": extended("mgk"),
    "sink": with_sink("blocks", "heads"),
}
EQUAL = {"several legs": ("Wq", "Wk"), "a sum of exponentials": ("Wk",)}  # f h d, f r h d


def check(name: str, backend: str, *values: float) -> nn.Module:
    """Values and gradients are the reference's; returns the compiled module.

    Heads that share a softmax have equal scores, and keys that share a sum: the bias absorbs their differences too.
    """
    oracle, module = modules(DESIGNS[name], backend)
    state = oracle.state_dict()
    for weight in EQUAL.get(name, ()):
        state[weight] = state[weight][:, :1].expand_as(state[weight]).clone()
    for one in (oracle, module):
        one.load_state_dict(state)
    x, keys = torch.randn(1, 20, 6, generator=torch.Generator().manual_seed(0), dtype=F64), torch.ones(1, 20) > 0
    keys[:, 3] = False
    for value in values:
        bias = torch.zeros(20, 20, dtype=F64)
        bias[[2, 7, 19]] = value
        bias[7, 4:] = -math.inf
        options = {"mask": bias, "key_mask": keys}
        assert_same(results(module, [x], options), results(oracle, [x], options))
    return module
