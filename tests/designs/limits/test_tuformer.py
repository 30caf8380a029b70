"""Tuformer: designs that are the same function as others at some weights."""

from __future__ import annotations

import pytest
import torch

from .carry import FH, D, F, H, identity_core, merged, mhsa_weights, run, same, tensor, variant, weights


def test_thsa_with_the_core_of_heads_is_mhsa(x):
    w = mhsa_weights()
    legs = {"f": F, "r": H * D, "s": H * D}
    same(run("thsa", merged(w) | {"C": H**0.5 * identity_core()}, x, legs), run("mhsa", w, x, FH))


def test_thsa_with_the_core_and_scale_of_mhsa_is_mhsa(x):
    w = mhsa_weights()
    scale = {"A": {"softmax": "m", "scale": D**-0.5, "of": "C[r s] Q[n s] K[m s] -> r n m"}}
    legs = {"f": F, "r": H * D, "s": H * D}
    want = run("mhsa", w, x, FH)
    same(run(variant("thsa", scale), merged(w) | {"C": identity_core()}, x, legs), want)
    same(run("mhsa_core", merged(w), x, FH), want)


def test_thsa_with_a_core_of_ones_is_mhsa_of_one_head(x):
    """Case (1) of proposition 1; the scale is r ** -0.5 in both, r = d."""
    w = mhsa_weights(heads=1)
    got = run("thsa", merged(w) | {"C": torch.ones(D, D).double()}, x, {"f": F, "r": D, "s": D})
    same(got, run("mhsa", w, x, {"f": F, "h": 1, "d": D}))


def test_thsa_with_an_identity_core_is_heads_only(x):
    w = weights(Wq=(F, 6), Wk=(F, 6), Wv=(F, 6), Wo=(6, F))
    got = run("thsa", w | {"C": torch.eye(6).double()}, x, {"f": F, "r": 6, "s": 6})
    same(got, run("heads_only", w, x, {"f": F, "h": 6}))


def test_trainable_heads_only_is_thsa(x):
    w = weights(Wq=(F, 4), Wk=(F, 4), Wv=(F, 6), Wo=(6, F))
    got = run("trainable_heads_only", w | {"C1": tensor(6, 4)}, x, {"f": F, "h": 6, "g": 4})
    same(got, run("thsa", w | {"C": tensor(6, 4)}, x, {"f": F, "r": 6, "s": 4}))


def test_skip_right_with_heads_of_one_component_is_trainable_heads_only(x):
    w = weights(Wq=(F, H), Wk=(F, H), Wv=(F, H)) | {"Wo": tensor(H, F)}
    split = {name: w[name].unsqueeze(-1) for name in ("Wq", "Wk", "Wv")} | {"Wo": w["Wo"].unsqueeze(1)}
    got = run("skip_right", split | {"C1": tensor(H, H)}, x, FH | {"d": 1})
    same(got, run("trainable_heads_only", w | {"C1": tensor(H, H)}, x, FH))


def test_skip_right_is_thsa_with_equal_rows_in_a_head(x):
    w = mhsa_weights() | {"C1": tensor(H, H)}
    core = torch.kron(w["C1"], torch.ones(D, D).double())
    legs = {"f": F, "r": H * D, "s": H * D}
    same(run("skip_right", w, x, FH), run("thsa", merged(w) | {"C": core}, x, legs))


def test_skip_right_with_an_identity_core_is_mhsa(x):
    w = mhsa_weights()
    same(run("skip_right", w | {"C1": H**0.5 * torch.eye(H).double()}, x, FH), run("mhsa", w, x, FH))


@pytest.mark.parametrize(("name", "over_heads"), [("skip_left", {}), ("thsa_kron", {"C1": tensor(H, H)})])
def test_thsa_with_a_kronecker_product_as_its_core(name, over_heads, x):
    """In skip_left, the core is the same in each head."""
    w = mhsa_weights() | {"C2": tensor(2, D, seed=3), "C3": tensor(2, D, seed=4)}
    core = torch.kron(over_heads.get("C1", torch.eye(H).double()), w["C2"].T @ w["C3"])
    want = run("thsa", merged(w) | {"C": core}, x, {"f": F, "r": H * D, "s": H * D})
    same(run(name, w | over_heads, x, FH | {"c": 2}), want)


def test_skip_left_with_factors_of_ones_is_mhsa(x):
    w, ones = mhsa_weights(), torch.ones(1, D).double()
    same(run("skip_left", w | {"C2": H**0.5 * ones, "C3": ones}, x, FH), run("mhsa", w, x, FH))


def test_thsa_kron_with_an_identity_over_heads_is_skip_left(x):
    w = mhsa_weights() | {"C2": tensor(2, D, seed=3), "C3": tensor(2, D, seed=4)}
    got = run("thsa_kron", w | {"C1": torch.eye(H).double()}, x, FH | {"c": 2})
    same(got, run("skip_left", w, x, FH | {"c": 2}))


def test_thsa_kron_with_factors_of_ones_is_skip_right(x):
    w, ones = mhsa_weights() | {"C1": tensor(H, H)}, torch.ones(1, D).double()
    same(run("thsa_kron", w | {"C2": ones, "C3": ones}, x, FH), run("skip_right", w, x, FH))


def test_thsa_low_rank_of_full_rank_is_thsa(x):
    w = weights(Wq=(F, 4), Wk=(F, 4), Wv=(F, 6), Wo=(6, F))
    C, legs = tensor(6, 4), {"f": F, "r": 6, "s": 4}
    got = run("thsa_low_rank", w | {"C2": C.T.contiguous(), "C3": torch.eye(4).double()}, x, legs | {"c": 4})
    same(got, run("thsa", w | {"C": C}, x, legs))


def test_thsa_low_rank_of_as_many_ranks_as_heads_is_mhsa(x):
    w = mhsa_weights()
    member = torch.eye(H).double().repeat_interleave(D, 1)  # [head, component]
    legs = {"f": F, "r": H * D, "s": H * D, "c": H}
    got = run("thsa_low_rank", merged(w) | {"C2": H**0.5 * member, "C3": member}, x, legs)
    same(got, run("mhsa", w, x, FH))


def test_thsa_elu_with_the_core_of_heads_is_linear_attention(x):
    w, legs = mhsa_weights(), {"f": F, "r": H * D, "s": H * D, "h": H}
    same(run("thsa_elu", merged(w) | {"C": identity_core()}, x, legs), run("linear", w, x, FH))


def test_thsa_square_squares_each_component(x):
    w = weights(Wq=(F, 4), Wk=(F, 4), Wv=(F, 6), Wo=(6, F)) | {"C": tensor(6, 4).abs()}
    diagram = {"squares": {"map": "square", "of": "Q[n s] K[m s] -> s n m"}}
    diagram |= {"A": {"normalize": "m", "of": "C[r s] squares[s n m] -> r n m"}}
    legs = {"f": F, "r": 6, "s": 4}
    same(run("thsa_square", w, x, legs | {"h": 2}), run(variant("thsa", diagram), w, x, legs))


def test_heads_and_components_of_thsa_may_be_permuted(x):
    w = weights(C=(6, 4), Wq=(F, 4), Wk=(F, 4), Wv=(F, 6), Wo=(6, F))
    r, s = torch.tensor([3, 0, 5, 1, 4, 2]), torch.tensor([2, 0, 3, 1])
    moved = {"C": w["C"][r][:, s], "Wq": w["Wq"][:, s], "Wk": w["Wk"][:, s], "Wv": w["Wv"][:, r], "Wo": w["Wo"][r]}
    legs = {"f": F, "r": 6, "s": 4}
    same(run("thsa", moved, x, legs), run("thsa", w, x, legs))
