"""What padding changes: rotated rows that meet their like through products, and convolutions that read hidden rows."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.graph.padding import Padding, padding_of

ROTATED = {"rope": "n", "along": "d", "of": "x[n f] Wb[f r d] -> n r d"}
STEPS = {
    "Qb": ROTATED,
    "Qa": "x[n f] Wa[f r h] -> n r h",
    "Q": "Qa[n r h] Qb[n r d] -> n h d",
    "K": {"rope": "m", "along": "d", "of": "x[m f] Wk[f h d] -> m h d"},
    "V": "x[m f] Wv[f h d] -> m h d",
}
WEIGHTS = {"Wa": "f r h", "Wb": "f r d"}


def padding(diagram: dict[str, Any], weights: dict[str, str] | None = None, **keys: Any) -> Padding:
    design = {"tensornet": 1, "name": "rotated", "extends": "mhsa", "legs": {"f": 8, "h": "head 2", "r": "head 3"}}
    design |= {"weights": {"Wq": None, **WEIGHTS, **(weights or {})}, "diagram": STEPS | diagram, **keys}
    graph = ta.build(ta.load(design))
    return padding_of(graph, (graph.output,))


def reason(name: str) -> str:
    return f"'{name}' is rotated by its position, and is not used in a product of a query and a key"


def test_factors_of_rotated_rows_meet_their_like() -> None:
    """In a tensor product attention, queries and keys are sums of products with rotated rows."""
    assert padding({}).before is None
    assert padding({"Q": "(0.5) * Qa[n r h] Qb[n r d] - Qa[n r h] Qb[n r d] -> n h d"}).before is None


@pytest.mark.parametrize(
    ("diagram", "weights", "step"),
    [
        ({"Q": "Qa[n r h] Qb[n r d] s[d] -> n h d"}, {"s": "d"}, "Qb"),  # scaled entries no longer turn alike
        ({"Q": "Qa[n r h] Qb[n r d] + x[n f] Wc[f h d] -> n h d"}, {"Wc": "f h d"}, "Qb"),
        ({"Q": {"map": "silu", "of": "Qa[n r h] Qb[n r d] -> n h d"}}, {}, "Qb"),
        ({"K": {"rope": "m", "along": "d", "base": 9, "of": "x[m f] Wk[f h d] -> m h d"}}, {}, "Qb"),
        ({"V": "x[m f] Wv[f h d] + K[m h d] -> m h d"}, {}, "K"),
    ],
)
def test_rotated_rows_that_other_steps_read(diagram: dict[str, Any], weights: dict[str, str], step: str) -> None:
    assert padding(diagram, weights).before == reason(step)


@pytest.mark.parametrize("causal", [True, False])
def test_convolutions_of_rows_that_a_key_mask_hides(causal: bool) -> None:
    conv = {"conv": "n", "width": "w", "of": "x[n f] C[w f] -> n w f"}
    design = {"tensornet": 1, "name": "near", "causal": causal, "legs": {"n": "query", "f": 8, "w": 4}}
    design |= {"inputs": {"x": "n f"}, "weights": {"C": "w f"}, "diagram": {"y": conv}, "output": "y"}
    found = padding_of(ta.build(ta.load(design)), ("y",))
    assert (found.behind, found.before, found.alone, found.key_mask) == (None, None, False, not causal)
    assert found.between == "'y' compares the positions of queries and keys"


@pytest.mark.parametrize("causal", [True, False])
def test_convolutions_of_queries_of_another_sequence(causal: bool) -> None:
    """No key mask hides them."""
    conv = {"conv": "n", "width": "w", "of": "q[n h d] C[w h d] -> n w h d"}
    design = {"tensornet": 1, "name": "near", "extends": "cross", "causal": causal, "legs": {"w": 3}}
    design |= {"weights": {"C": "w h d"}, "diagram": {"q": "x[n f] Wq[f h d] -> n h d", "Q": conv}}
    found = padding_of(ta.build(ta.load(design)), ("y",))
    assert found.before == f"'Q' reads {'earlier' if causal else 'later'} positions"
    assert (found.behind is None) == causal
