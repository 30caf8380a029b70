"""Baselines: designs that are the same function as others at some weights."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta

from .carry import FH, D, F, H, N, mhsa_weights, run, same, tensor, variant, weights


@pytest.mark.parametrize(("name", "plain"), [("gqa", "mhsa"), ("gqa_rope", "mhsa_rope")])
def test_gqa_with_one_query_a_group_is_mhsa(name, plain, x):
    w = mhsa_weights()
    grouped = w | {"Wq": w["Wq"].unsqueeze(2), "Wo": w["Wo"].unsqueeze(1)}
    same(run(name, grouped, x, {"f": F, "g": H, "j": 1}), run(plain, w, x, FH))


def test_gqa_with_one_group_is_mqa(x):
    w = weights(Wq=(F, H, D), Wk=(F, D), Wv=(F, D), Wo=(H, D, F))
    grouped = {name: w[name].unsqueeze(1) for name in ("Wq", "Wk", "Wv")} | {"Wo": w["Wo"].unsqueeze(0)}
    same(run("gqa", grouped, x, {"f": F, "g": 1, "j": H}), run("mqa", w, x, FH))


def test_mla_with_an_invertible_latent_is_mhsa(x):
    w = mhsa_weights()
    latent = torch.linalg.qr(tensor(F, F, seed=3)).Q
    up = {"Wuk": torch.einsum("fc,fhd->chd", latent, w["Wk"]), "Wuv": torch.einsum("fc,fhd->chd", latent, w["Wv"])}
    small = {"Wq": w["Wq"], "Wo": w["Wo"], "Wc": latent} | up
    same(run("mla", small, x, FH | {"c": H * D}), run("mhsa", w, x, FH))


def test_cross_attention_to_itself_is_mhsa(x):
    w = mhsa_weights()
    module = ta.compile(ta.load("cross", legs=FH), backend="reference", dtype=torch.float64)
    module.load_state_dict(w)
    same(module(x, x), run("mhsa", w, x, FH))


def test_talking_heads_that_do_not_talk_are_mhsa(x):
    w, eye = mhsa_weights(), torch.eye(H).double()
    same(run("talking_heads", w | {"Pl": eye, "Pw": eye}, x, FH | {"g": H, "e": H}), run("mhsa", w, x, FH))


def test_talking_heads_before_the_softmax_alone_are_hard_fish(x):
    w = weights(Wq=(F, 2, D), Wk=(F, 2, D), Wv=(F, H, D), Wo=(H, D, F))
    mixing = tensor(2, H, seed=5)
    got = run("talking_heads", w | {"Pl": mixing, "Pw": torch.eye(H).double()}, x, FH | {"g": 2, "e": H})
    same(got, run("hard_fish", w | {"P": mixing}, x, FH | {"g": 2}))


def test_a_band_over_everything_is_mhsa(x):
    w = mhsa_weights()
    same(run("band", w, x, FH, k=2 * N - 1), run("mhsa", w, x, FH))


def test_transformer_xl_without_positions_is_causal_mhsa(x):
    w = mhsa_weights()
    none = {"Wr": torch.zeros(F, H, D).double(), "u": torch.zeros(H, D).double(), "v": torch.zeros(H, D).double()}
    same(run("transformer_xl", w | none, x, FH), run(variant("mhsa", {}, causal=True), w, x, FH))


def test_differential_without_its_second_map_is_mhsa_with_normalised_heads(x):
    """At lambda = exp(0) - exp(0) + 0."""
    d, e = D // 2, D
    one = weights(Wq=(F, H, d), Wk=(F, H, d), Wv=(F, H, e), Wo=(H, e, F))
    other = {"Wq2": tensor(F, H, d, seed=3), "Wk2": tensor(F, H, d, seed=4)}
    none = {name: torch.zeros(d).double() for name in ("lq1", "lk1", "lq2", "lk2")}
    two = {"Wq1": one["Wq"], "Wk1": one["Wk"], "Wv": one["Wv"], "Wo": one["Wo"]} | other | none
    steps = {
        "V": "x[m f] Wv[f h e] -> m h e",
        "O": {"rmsnorm": "e", "of": "A[h n m] V[m h e] -> n h e"},
        "y": "O[n h e] Wo[h e f] -> n f",
    }
    normalised = variant("mhsa", steps, legs={"d": d, "e": e}, weights={"Wv": "f h e", "Wo": "h e f"})
    same(run("differential", two, x, FH, lambda_init=0), run(normalised, one, x, FH))
