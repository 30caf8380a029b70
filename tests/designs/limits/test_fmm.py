"""FMMformer: designs that are the same function as others at some weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .carry import FH, D, F, H, N, mhsa_weights, run, same, variant, weights

FAR = {"fmm1": "linear", "fmm2": "linear2", "fmm3": "linear3"}  # the far field of each, alone
FAST = FH | {"e": D}
TANH = {
    "phiQ": {"map": "tanh", "of": "Q"},
    "phiK": {"map": "tanh", "of": "K"},
    "A": {"normalize": "m", "eps": 1e-6, "of": "phiQ[n h d] phiK[m h d] -> h n m"},
}
SOME = torch.sigmoid(torch.tensor(1.0).double())  # what a blend of 1 lets through


def blended(one: float, two: float) -> dict[str, Tensor]:
    """The weights of the blend, the same for all heads: logits, but for the release."""
    return {"w1": torch.full((H,), one).double(), "w2": torch.full((H,), two).double()}


def causal(name: str) -> dict:
    return variant(name, {}, causal=True)


def fast_weights() -> dict[str, Tensor]:
    return mhsa_weights() | weights(Wb=(F, H))


@pytest.mark.parametrize("name", FAR)
def test_a_band_over_everything_leaves_softmax_plus_far_field(name, x):
    w = mhsa_weights()
    got = run(name, w | blended(0, 1), x, FH, k=2 * N + 1)
    same(got, 0.5 * run("mhsa", w, x, FH) + SOME * run(FAR[name], w, x, FH))


@pytest.mark.parametrize("name", FAR)
def test_a_causal_band_over_everything_leaves_causal_softmax_plus_far_field(name, x):
    w = mhsa_weights()
    got = run(f"{name}_causal", w | blended(0, 1), x, FH, k=N)
    same(got, 0.5 * run(causal("mhsa"), w, x, FH) + SOME * run(causal(FAR[name]), w, x, FH))


@pytest.mark.parametrize(("name", "order"), [("fmm2", (2, 1)), ("fmm3", (3, 1, 2)), ("linear3", (2, 3, 1))])
def test_the_order_of_kernels_is_immaterial(name, order, x):
    w = mhsa_weights() | (blended(0.3, -0.2) if name.startswith("fmm") else {})
    settings = {"k": 3} if name.startswith("fmm") else {}
    kernels = {1: "elu1", 2: "elu1_neg", 3: "tanh"}
    steps = {}
    for place, kernel in enumerate(order, start=1):
        steps |= {f"phi{c}{place}": {"map": kernels[kernel], "of": c} for c in "QK"}
        eps = 1e-6 if kernel == 3 else 0
        of = f"phiQ{place}[n h d] phiK{place}[m h d] -> h n m"
        steps[f"far{place}"] = {"normalize": "m", "eps": eps, "of": of}
    same(run(variant(name, steps), w, x, FH, **settings), run(name, w, x, FH, **settings))


@pytest.mark.parametrize("masked", [False, True])
def test_linear2_is_linear_attention_twice(masked, x):
    """The second kernel is the first of the other sign."""
    w = mhsa_weights()
    linear, linear2 = (causal("linear"), causal("linear2")) if masked else ("linear", "linear2")
    flipped = w | {"Wq": -w["Wq"], "Wk": -w["Wk"]}
    same(run(linear2, w, x, FH), run(linear, w, x, FH) + run(linear, flipped, x, FH))


def test_linear3_is_linear2_and_tanh(x):
    w = mhsa_weights()
    same(run("linear3", w, x, FH), run("linear2", w, x, FH) + run(variant("linear", TANH), w, x, FH))


def test_the_signs_of_queries_and_keys_are_immaterial_to_the_far_field_of_two_kernels(x):
    w = mhsa_weights()
    same(run("linear2", w | {"Wq": -w["Wq"], "Wk": -w["Wk"]}, x, FH), run("linear2", w, x, FH))


def test_fast_weights_that_nothing_writes_leave_fmm1_causal(x):
    w = fast_weights() | blended(0.3, -0.2)
    silent = {"rate": {"map": "sigmoid", "of": "x[m f] Wb[f h] - 1000 -> m h"}}
    got = run(variant("fmm_fast_weight2", silent), w, x, FAST, k=3)
    same(got, run("fmm1_causal", mhsa_weights() | blended(0.3, -0.2), x, FH, k=3))


def test_fast_weights_beside_a_kernel_are_both(x):
    w = fast_weights() | blended(0.3, 1)
    both = run("fmm_fast_weight2", w, x, FAST, k=3)
    same(both, run("fmm_fast_weight1", w, x, FAST, k=3) + SOME * run(causal("linear"), mhsa_weights(), x, FH))


def test_the_far_field_of_the_release_is_linear_attention_times_its_row_sums(x):
    w = mhsa_weights()
    got = run("fmm_lra_release", w | blended(0, 1), x, FH)
    sums = {
        "A": "z[h n] share[h n m] -> h n m",
        "share": {"normalize": "m", "of": "phiQ[n h d] phiK[m h d] -> h n m"},
        "z": {"sum": "m", "of": "(m ** -0.5) * phiQ[n h d] phiK[m h d] -> h n m"},
    }
    steps = {name: sums[name] for name in ("share", "z", "A")}
    same(got, run(variant("linear", steps), w, x, FH))
