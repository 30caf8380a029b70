"""Small designs that the tests of pictures share."""

from typing import Any

import pytest

from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph
from tensornet_attn.spec import load

_LEGS = {"n": "query", "m": "key", "f": 512, "h": "head 8", "d": "f / h"}
_WEIGHTS = {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wo": "h d f"}
_STEPS = {"Q": "x[n f] Wq[f h d] -> n h d", "K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h d] -> m h d"}
_SCORES = "Q[n h d] K[m h d] -> h n m"
_OUT = "A[h n m] V[m h d] Wo[h d f] -> n f"


def design(**changes: Any) -> dict[str, Any]:
    """Plain attention; each change is merged into its section or replaces it."""
    attention = {"softmax": "m", "scale": "d ** -0.5", "of": _SCORES}
    base: dict[str, Any] = {
        "tensornet": 1,
        "name": "plain",
        "legs": _LEGS,
        "inputs": {"x": "n f"},
        "weights": _WEIGHTS,
        "diagram": {**_STEPS, "A": attention, "y": _OUT},
        "output": "y",
    }
    for key, value in changes.items():
        merged = {**base.get(key, {}), **value} if isinstance(value, dict) else value
        base[key] = {k: v for k, v in merged.items() if v is not None} if isinstance(merged, dict) else merged
    return base


def core_design() -> dict[str, Any]:
    """Scores mixed over heads by P."""
    steps = {
        "Q": "x[n f] Wq[f g d] -> n g d",
        "K": "x[m f] Wk[f g d] -> m g d",
        "A": {"softmax": "m", "scale": "d ** -0.5", "of": "P[g h] Q[n g d] K[m g d] -> h n m"},
    }
    return design(legs={"g": "head 2"}, weights={"P": "g h", "Wq": "f g d", "Wk": "f g d"}, diagram=steps)


@pytest.fixture
def plain() -> Graph:
    return build(load(design()))


@pytest.fixture
def mixed() -> Graph:
    return build(load(core_design()))


@pytest.fixture
def graph_of() -> Any:
    """Builds plain attention with changes."""
    return lambda **changes: build(load(design(**changes)))
