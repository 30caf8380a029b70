"""Baselines: designs that are the same function as others at some weights."""

from __future__ import annotations

import torch

from .carry import FH, D, F, H, run, same, tensor, variant, weights


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
