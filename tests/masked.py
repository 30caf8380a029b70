"""Designs with masks of every kind, and the same as a plain boolean matrix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

Sees = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SETTINGS = {"w": 3, "p": 2}
MANY = " or ".join(f"window({3 * i}, {-3 * i})" for i in range(12))  # more areas than are told apart
MASKS: dict[str, Sees] = {  # with settings w = 3 and p = 2
    "causal(1)": lambda q, k: k < q,
    "causal(-2)": lambda q, k: k <= q + 2,
    "prefix(p)": lambda q, k: k < 2,
    "global(p)": lambda q, k: (k < 2) | (q < 2),
    "dilated(w)": lambda q, k: (q - k) % 3 == 0,
    "block(w)": lambda q, k: (q // 3 == k // 3) & (q >= 0),
    "block_causal(w)": lambda q, k: (k // 3 <= q // 3) & (q >= 0),
    "window(1, -1)": lambda q, k: q - k == 1,
    "window(-1, w)": lambda q, k: (k > q) & (k <= q + 3),
    "causal and (window(w, 0) or prefix(p))": lambda q, k: (k <= q) & ((q - k <= 3) | (k < 2)),
    "prefix(p) and not causal": lambda q, k: (k < 2) & (k > q),
    "not (band(1) or prefix(p))": lambda q, k: ((q - k).abs() > 1) & (k >= 2),
    "band(w) and not band(p - 1)": lambda q, k: ((q - k).abs() <= 3) & ((q - k).abs() > 1),
    "window(2 * w, 0) and dilated(2)": lambda q, k: (k <= q) & (q - k <= 6) & ((q - k) % 2 == 0),
    "global(1) or band(1) or dilated(5)": lambda q, k: (k < 1) | (q < 1) | ((q - k).abs() <= 1) | ((q - k) % 5 == 0),
    "block(w) and causal(1)": lambda q, k: (q // 3 == k // 3) & (k < q) & (q >= 0),
    "block(4) and not dilated(w)": lambda q, k: (q // 4 == k // 4) & ((q - k) % 3 != 0) & (q >= 0),
    MANY: lambda q, k: (k <= q) & (q - k <= 33) & ((q - k) % 3 == 0),
    "document": lambda q, k: q - k == q - k,
    "causal and document": lambda q, k: k <= q,
    "not document or band(1)": lambda q, k: (q - k).abs() <= 1,
    "causal or block(w)": lambda q, k: (k <= q) | ((q // 3 == k // 3) & (q >= 0)),
}
CAUSAL = (  # those that let no query see a later key
    "causal(1)", "window(1, -1)", "causal and (window(w, 0) or prefix(p))", "window(2 * w, 0) and dilated(2)",
    "block(w) and causal(1)", "causal and document", MANY,
)  # fmt: skip


def design(mask: str | list[str], kind: str = "softmax", wide: bool = False, own: bool = True) -> dict[str, Any]:
    """Two heads of attention with a mask; `wide`: with scores that no product of two tensors makes.

    `own`: keys are the queries' own positions.
    """
    memory = "x" if own else "z"
    box: dict[str, Any] = {kind: "m", "mask": mask, "of": "S"}
    if kind == "normalize":
        box["of"] = {"map": "exp", "of": "S"}
    steps = {
        "Q": "x[n f] Wq[f h d] -> n h d",
        "K": f"{memory}[m f] Wk[f h d] -> m h d",
        "V": f"{memory}[m f] Wv[f h d] -> m h d",
        "S": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m",
        "A": box,
        "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
    }
    if wide:
        steps["S"] = {"map": "tanh", "of": steps["S"]}
    return {
        "tensornet": 1,
        "name": "masked",
        "legs": {"n": "query", "m": "key", "f": 6, "h": "head 2", "d": 3},
        "settings": {name: value for name, value in SETTINGS.items() if re.search(rf"\b{name}\b", str(mask))},
        "inputs": {"x": "n f"} | ({} if own else {"z": "m f"}),
        "weights": {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wo": "h d f"},
        "diagram": steps,
        "output": "y",
    }


def matrix(mask: str, n: int, m: int) -> torch.Tensor:
    """[n, m]: where a query sees a key."""
    query, key = torch.arange(m - n, m)[:, None], torch.arange(m)
    return MASKS[mask](query, key).expand(n, m)
