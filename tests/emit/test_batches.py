"""Inputs whose batch dimensions differ are broadcast, as in torch, wherever they meet."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from tests.agreement import modules, same_outcome

SIZES = {"n": 5, "m": 6, "f": 4, "h": 2, "g": 3, "d": 3}
SHAPES = ((), (3,), (2, 1), (2, 3))
PROJECTED = {"Q": "x[n f] Wq[f h d] -> n h d", "K": "c[m f] Wk[f h d] -> m h d"}
WEIGHTS = {"Wq": "f h d", "Wk": "f h d"}
DESIGNS: dict[str, dict[str, Any]] = {
    "numbers of keys, read by blocks of queries": {
        "legs": {},
        "inputs": {"s": "m", "t": "n m"},
        "diagram": {"S": "2 * t[n m] + 1 -> n m", "y": "s[m] S[n m] -> n"},
    },
    "keys beside what is added to scores": {
        "legs": {"f": 4, "h": "head 2", "g": 3, "d": 3},
        "inputs": {"x": "n f", "c": "m f", "b": "h g m"},
        "weights": WEIGHTS,
        "diagram": PROJECTED
        | {
            "A": {"softmax": "m", "of": {"logsumexp": "g", "of": "Q[n h d] K[m h d] + b[h g m] -> g h n m"}},
            "y": "A[h n m] K[m h d] -> n h d",
        },
    },
    "heads mixed by an input": {
        "legs": {"f": 4, "h": "head 2", "g": 3, "d": 3},
        "inputs": {"x": "n f", "c": "m f", "C": "h g"},
        "weights": WEIGHTS,
        "diagram": PROJECTED
        | {"A": {"softmax": "m", "of": "C[h g] Q[n h d] K[m h d] -> g n m"}, "y": "A[g n m] c[m f] -> n g f"},
    },
}


@pytest.mark.parametrize("linear_memory", [False, True])
@pytest.mark.parametrize("name", DESIGNS)
def test_inputs_with_other_batches(name: str, linear_memory: bool) -> None:
    own = DESIGNS[name]
    legs = {"n": "query", "m": "key", **own["legs"]}
    design = {"tensornet": 1, "name": "own", **own, "legs": legs, "output": "y"}
    oracle, module = modules(design, linear_memory=linear_memory)
    for shapes in product(SHAPES, repeat=len(own["inputs"])):
        draw, given = torch.Generator().manual_seed(0), []
        for shape, words in zip(shapes, own["inputs"].values(), strict=True):
            sizes = (*shape, *(SIZES[leg] for leg in words.split()))
            given.append(torch.randn(*sizes, generator=draw, dtype=torch.float64))
        same_outcome(module, oracle, given, rtol=0, atol=1e-12)
