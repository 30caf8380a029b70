"""Transformer-MGK: designs that are the same function as others at some weights."""

from __future__ import annotations

import pytest
import torch

from .carry import FH, D, F, H, mhsa_weights, run, same, tensor, variant

LENGTH_ONE = {
    "Q": {"l2norm": "d", "of": "x[n f] Wq[f h d] -> n h d"},
    "K": {"l2norm": "d", "of": "x[m f] Wk[f h d] -> m h d"},
}
OF_QUERY = "(0.5 * d ** -0.5) * Q[n h d] Q[n h d] -> n h"
PRIOR = {"logpi": tensor(H, 2)}
STATE = {"pi": tensor(H, 2, seed=6).softmax(-1)}


def test_a_component_without_prior_does_not_count(x):
    w, other = mhsa_weights(), tensor(F, H, D, seed=3)
    logpi = torch.tensor([0.0, -1e3]).double().expand(H, 2)
    mixture = w | {"Wk": torch.stack((w["Wk"], other), 1), "logpi": logpi}
    same(run("mgk", mixture, x, FH | {"r": 2}), run("gaussian", w, x, FH))


def test_a_sharp_mixture_is_the_nearest_key(x):
    """Queries and keys 100 times as long: the nearer of two keys outweighs the other."""
    w = mhsa_weights() | {"Wq": 100 * tensor(F, H, D), "Wk": 100 * tensor(F, 2, H, D, seed=4)}
    got = run("mgk", w | {"logpi": torch.zeros(H, 2).double()}, x, FH | {"r": 2})
    same(got, run("mgk_hard", w, x, FH | {"r": 2}))


def test_gaussian_with_queries_and_keys_of_length_one_is_softmax(x):
    w = mhsa_weights()
    same(run(variant("gaussian", LENGTH_ONE), w, x, FH), run(variant("mhsa", LENGTH_ONE), w, x, FH))


def test_mgk_with_keys_of_length_one_is_softmax_mgk(x):
    w = mhsa_weights() | {"Wk": tensor(F, 2, H, D)} | PRIOR
    unit = {"K": {"l2norm": "d", "of": "x[m f] Wk[f r h d] -> m r h d"}}
    legs = FH | {"r": 2}
    same(run(variant("mgk", unit), w, x, legs), run(variant("softmax_mgk", unit), w, x, legs))


def test_the_norm_of_the_query_cancels(x):
    w = mhsa_weights()
    scores = "(d ** -0.5) * Q[n h d] K[m h d] - q2[n h] - k2[m h] -> h n m"
    spelt_out = variant("gaussian", {"q2": OF_QUERY, "A": {"softmax": "m", "of": scores}})
    same(run(spelt_out, w, x, FH), run("gaussian", w, x, FH))


@pytest.mark.parametrize("name", ["mgk", "mgk_hard", "mgk_em"])
def test_the_norm_of_the_query_cancels_in_mixtures(name, x):
    prior = {"mgk": "logpi[h r] +", "mgk_hard": "", "mgk_em": "logprior[h r] +"}[name]
    weights = {"mgk": PRIOR, "mgk_hard": {}, "mgk_em": STATE}[name]
    scores = f"{prior} (d ** -0.5) * Q[n h d] K[m r h d] - q2[n h] - k2[m r h] -> h r n m"
    spelt_out = variant(name, {"q2": OF_QUERY, "L": scores})
    w = mhsa_weights() | {"Wk": tensor(F, 2, H, D)} | weights
    same(run(spelt_out, w, x, FH | {"r": 2}), run(name, w, x, FH | {"r": 2}))


def test_mgk_em_with_the_same_prior_is_mgk(x):
    w = mhsa_weights() | {"Wk": tensor(F, 2, H, D)}
    logpi = tensor(H, 2).log_softmax(-1)
    got = run("mgk_em", w | {"pi": logpi.exp()}, x, FH | {"r": 2})
    same(got, run("mgk", w | {"logpi": logpi}, x, FH | {"r": 2}))


MIXTURES = [("mgk", "logpi"), ("softmax_mgk", "logpi"), ("mgk_em", "pi"), ("mgk_hard", None), ("mlk", "logits")]
SHIFTED = [("smgk", "logpi"), ("smgk_hard", None), ("smlk", "logits")]


@pytest.mark.parametrize(("name", "prior"), MIXTURES + SHIFTED)
def test_mixture_components_may_be_permuted(name, prior, x):
    keys = {"b": tensor(3, H, D)} if (name, prior) in SHIFTED else {"Wk": tensor(F, 3, H, D)}
    w = mhsa_weights() | keys | ({prior: tensor(H, 3).exp()} if prior else {})
    order = [2, 0, 1]
    permuted = {key: w[key][order] if key == "b" else w[key][:, order] for key in (*keys, *([prior] if prior else []))}
    same(run(name, w | permuted, x, FH | {"r": 3}), run(name, w, x, FH | {"r": 3}))


def test_the_error_of_short_keys_is_of_second_order(x):
    w = mhsa_weights()

    def error(c: float) -> float:
        got = run("gaussian", w | {"Wq": w["Wq"] / c, "Wk": w["Wk"] * c}, x, FH)
        return (got - run("mhsa", w, x, FH)).abs().max().item()

    assert error(2**-6) / error(2**-7) == pytest.approx(4, rel=0.01)
