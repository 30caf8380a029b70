"""Products with tables of relative positions: the product with the table is shifted, not the table of each pair."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.agreement import in_chunks
from tests.ops.compared import F64, agree

SHIFTED = "  D: shifted after the product"
N = 11


def design(scores: str, to: str = "m", of: str = "E", reach: int = 3) -> dict[str, Any]:
    """Scores with a product of D, the entries of a table by relative position."""
    return {
        "tensornet": 1,
        "name": "near",
        "legs": {"n": "query", "m": "key", "p": f"relative {reach}", "f": 6, "h": "head 2", "d": "head 16"},
        "inputs": {"x": "n f"},
        "weights": {**dict.fromkeys(("Wq", "Wk", "Wv"), "f h d"), "E": "p h d", "C": "h d", "Wo": "h d f"},
        "diagram": {
            "Q": "x[n f] Wq[f h d] -> n h d",
            "K": "x[m f] Wk[f h d] -> m h d",
            "V": "x[m f] Wv[f h d] C[h d] -> m h d",
            "D": {"rel_shift": "p", "to": to, "of": of},
            "A": {"softmax": "m", "of": f"0.2 * Q[n h d] K[m h d] + {scores} -> h n m"},
            "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
        },
        "output": "y",
    }


PRODUCTS = {
    "of queries": design("0.2 * Q[n h d] D[n m h d]"),
    "of keys": design("0.2 * D[n m h d] K[m h d]"),
    "of keys, whose table is shifted to queries": design("D[m n h d] K[m h d] C[h d]", "n"),
    "of queries, whose table is shifted to queries": design("Q[n h d] D[m n h d]", "n"),
    "with a table of each query": design("D[h n m d] Q[n h d]", of="E[p h d] Q[n h d] -> h n p d"),
    "of weights": design("C[h d] D[n m h d]"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_the_reference(name: str) -> None:
    """Outputs and gradients, also with masks, other lengths, and without keys that a key mask hides."""
    source, made = PRODUCTS[name], torch.Generator().manual_seed(0)
    x = torch.randn(2, N, 6, dtype=F64, generator=made)
    hides = torch.ones(2, N, dtype=torch.bool)
    hides[:, 7:] = False
    for n in (256, 2048):
        layer = agree(source, x, n=n, key_mask=hides)
        assert SHIFTED in layer.explain().splitlines()
    agree(source, x[:, :3], n=2048, mask=torch.randn(2, 3, 3, dtype=F64, generator=made))
    agree(source, x, n=2048, causal=True)
    bad = x.clone()
    bad[:, 7:] = torch.nan
    torch.testing.assert_close(layer(bad, key_mask=hides)[:, :7], layer(x, key_mask=hides)[:, :7], rtol=0, atol=0)


def test_a_decoding_cache_keeps_them() -> None:
    layer = ta.compile(PRODUCTS["of keys"], causal=True, dtype=F64).eval()
    x = torch.randn(1, N, 6, dtype=F64)
    torch.testing.assert_close(in_chunks(layer, x, [4, 1, 3, 1, N - 9]), layer(x), rtol=0, atol=1e-12)


def test_a_table_wider_than_the_sequence_is_shifted_first() -> None:
    """Most entries of a product with the whole table would belong to no pair."""
    source = design("0.2 * D[n m h d] K[m h d]", reach=4000)
    for n, shifted in ((16, False), (4096, True)):
        told = ta.compile(source, "torch", n=n, m=n, device_costs="generic").explain()
        assert (SHIFTED in told.splitlines()) is shifted
        assert ("not shift after the product: it would take" in told) is not shifted


@pytest.mark.parametrize("scores", ["Q[n h d] K[m h d] D[n m h d]", "Q[n h d] D[n m h d] D[n m h d]"])
def test_a_table_whose_features_both_sides_have_stays(scores: str) -> None:
    assert SHIFTED not in agree(design(scores), torch.randn(2, N, 6, dtype=F64), n=2048).explain().splitlines()
