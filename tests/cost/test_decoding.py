"""What decoding keeps of n tokens: keys and values, latents, sums, windows."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tensornet_attn.plan.decoding import decoding_state
from tensornet_attn.search import apply
from tensornet_attn.search.space import price

N = 64
KEPT = [
    ("mhsa", 2 * N * 512),
    ("mqa", 2 * N * 64),
    ("gqa", 2 * N * 128),
    ("mla", N * 256),  # the latent alone
    ("hard_fish", N * (4 * 64 + 512)),
    ("mgk", N * 3 * 512),  # two keys and a value; the norms come from the keys
    ("epa", 2 * N * 512),
    ("talking_heads", 2 * N * 512),
    ("band", 3 * 2 * 512),  # two keys back and its own
    ("linear", 8 * 64 * 64 + 8 * 64),
    ("mlk", 8 * 64 * 64 + 8 * 64),
    ("kernel_fish", 4 * 64 * (8 * 64 + 1)),  # 4 global features, read by 8 heads of values
    ("hard_lfish", 4 * 64 * 64 + 4 * 64),  # of the global heads alone
    ("lfish", 4 * 64 * 64 + 4 * 64),
    ("hard_glfish", 4 * 64 * 64 + 4 * 64),
    ("glfish", 4 * 64 * 64 + 4 * 64),
    ("thsa_elu", 512 * 512 + 512),
    ("fmm1", 3 * 2 * 512 + 8 * 64 * 64 + 8 * 64),
    ("fmm_fast_weight1", 5 * 2 * 512 + 8 * 64 * 64 + 8 * 64),
    ("mlp", 0),
]


@pytest.mark.parametrize(("name", "floats"), KEPT)
def test_what_is_kept(name: str, floats: int) -> None:
    assert decoding_state(ta.build(ta.load(name)), N) == floats


def test_two_of_eight_global_heads_keep_a_quarter_of_linear_attention() -> None:
    for name in ("hard_lfish", "lfish", "hard_glfish", "glfish"):
        report = ta.cost(ta.load(name, legs={"g": 2}), n=N)
        assert 4 * report.decoding_state == ta.cost("linear", n=N).decoding_state
    assert "\ndecoding cache, if compiled causal: 33,280 floats for 64 tokens" in ta.cost("linear", n=N).to_text()
    causal = ta.cost("linear", n=N, causal=True)
    assert "\ndecoding cache: 33,280 floats for 64 tokens" in causal.to_text()


def test_no_more_than_there_are_keys() -> None:
    assert decoding_state(ta.build(ta.load("band")), 2) == 2 * 2 * 512


def test_moves_change_what_is_kept() -> None:
    latent = apply(ta.load("mhsa"), "latent", c=64)
    fast = apply(ta.load("mhsa"), "delta")
    assert latent is not None
    assert fast is not None
    assert decoding_state(ta.build(latent), N) == N * 64
    assert decoding_state(ta.build(fast), N) == 2 * N * 512 + 8 * 64 * 64 + 8 * 64


def test_a_design_that_has_no_cache() -> None:
    design = {
        "tensornet": 1,
        "name": "laplacian",
        "legs": {"n": "query", "m": "key", "f": 4, "d": 4},
        "inputs": {"x": "n f"},
        "weights": {"Wq": "f d", "Wk": "f d", "Wv": "f d"},
        "diagram": {
            "Q": "x[n f] Wq[f d] -> n d",
            "K": "x[m f] Wk[f d] -> m d",
            "V": "x[m f] Wv[f d] -> m d",
            "S": {"map": "exp", "of": "Q[n d] K[m d] -> n m"},
            "y": "S[n m] V[m d] -> n d",
        },
        "output": "y",
    }
    assert decoding_state(ta.build(ta.load(design)), N) is None
    assert "no decoding cache: 'explain --causal --decoding' gives the reason" in ta.cost(design, n=N).to_text()
    assert price(ta.build(ta.load(design)), N).decoding_state == N * 4  # the inputs
