"""FiSHformer: designs that are the same function as others at some weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from .carry import FH, D, F, H, merged, run, same, tensor, weights

G = 2
FGH = FH | {"g": G}
NEVER = -800.0  # its exponential, and its softplus, is 0 in float64


def fish_weights(mixtures: int = H) -> dict[str, Tensor]:
    """The weights of hard_fish, P with as many columns as there are mixtures."""
    return weights(P=(G, mixtures), Wq=(F, G, D), Wk=(F, G, D), Wv=(F, H, D), Wo=(H, D, F))


def without(w: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: value for name, value in w.items() if name not in names}


def softplus(x: Tensor) -> Tensor:
    return torch.log1p(torch.exp(x))


def unsoftplus(x: Tensor) -> Tensor:
    """The number whose softplus is x."""
    return torch.log(torch.expm1(x))


def test_fish_simplex_is_hard_fish_with_mixing_weights_of_sum_one(x):
    w, logits = fish_weights(), tensor(G, H)
    got = run("fish_simplex", without(w, "P") | {"logits": logits, "sigma": tensor(G)}, x, FGH)
    same(got, run("hard_fish", w | {"P": logits.softmax(0)}, x, FGH))


def test_mish_with_one_global_head_is_mhsa_with_equal_queries_and_keys(x):
    w = weights(Wq=(F, 1, D), Wk=(F, 1, D), Wv=(F, H, D), Wo=(H, D, F))
    shared = {name: w[name].expand(F, H, D) for name in ("Wq", "Wk")}
    got = run("mish", w | {"P": torch.ones(1).double(), "sigma": tensor(1)}, x, FH | {"g": 1})
    same(got, run("mhsa", w | shared, x, FH))


def test_hard_gfish_with_mixtures_of_both_signs_is_hard_fish(x):
    w, eye = fish_weights(), torch.eye(H).double()  # relu(a) - relu(-a) = a
    both = {"P": torch.cat((w["P"], -w["P"]), 1), "W2": torch.cat((eye, -eye), 1), "b2": tensor(H)}
    same(run("hard_gfish", w | both, x, FGH | {"k": 2 * H}), run("hard_fish", w, x, FGH))


def test_gfish_release_with_mixtures_of_both_signs_is_hard_fish(x):
    w, eye = fish_weights(), torch.eye(H).double()
    both = {"W1": torch.cat((w["P"], -w["P"]), 1).T, "b1": torch.zeros(2 * H).double()}
    both |= {"W2": torch.cat((eye, -eye), 1), "b2": tensor(H)}
    got = run("gfish_release", without(w, "P") | both, x, FGH | {"k": 2 * H})
    same(got, run("hard_fish", w, x, FGH))


def test_with_one_global_head_the_order_of_sum_and_relu_is_immaterial(x):
    w = weights(Wq=(F, 1, D), Wk=(F, 1, D), Wv=(F, H, D), Wo=(H, D, F), W2=(H, 5), b2=(H,))
    P, legs = tensor(1, 5), FH | {"g": 1, "k": 5}
    got = run("gfish_release", w | {"W1": P.T, "b1": torch.zeros(5).double()}, x, legs)
    same(got, run("hard_gfish", w | {"P": P}, x, legs))


def test_kernel_fish_is_thsa_elu_with_shared_heads_in_the_core(x):
    w = fish_weights()
    core = torch.kron(softplus(w["P"]).T.contiguous(), torch.ones(D, D).double())
    legs = {"f": F, "r": H * D, "s": G * D, "h": 1}
    same(run("kernel_fish", w, x, FGH), run("thsa_elu", merged(without(w, "P")) | {"C": core}, x, legs))


def test_kernel_gfish_without_bias_is_linear_fish(x):
    w, W2 = fish_weights(mixtures=5), tensor(H, 5)
    product = softplus(w["P"]) @ softplus(W2).T
    got = run("kernel_gfish", w | {"W2": W2, "b2": torch.full((H,), NEVER).double()}, x, FGH | {"k": 5})
    same(got, run("kernel_fish", w | {"P": unsoftplus(product)}, x, FGH))


def test_kernel_gfish_of_bias_alone_takes_the_mean_of_the_values(x):
    w = fish_weights(mixtures=5) | {"b2": tensor(H), "W2": torch.full((H, 5), NEVER).double()}
    V = torch.einsum("bmf,fhd->bmhd", x, w["Wv"]).mean(1, keepdim=True)
    mean = torch.einsum("bmhd,hdf->bmf", V, w["Wo"])
    same(run("kernel_gfish", w, x, FGH | {"k": 5}), mean.expand_as(x))


@pytest.mark.parametrize("name", ["hard_fish", "kernel_fish"])
def test_local_and_global_heads_may_be_permuted(name, x):
    w, g, h = fish_weights(), torch.tensor([1, 0]), torch.tensor([2, 0, 1])
    moved = {"P": w["P"][g][:, h], "Wq": w["Wq"][:, g], "Wk": w["Wk"][:, g], "Wv": w["Wv"][:, h], "Wo": w["Wo"][h]}
    same(run(name, moved, x, FGH), run(name, w, x, FGH))


def lfish_weights() -> dict[str, Tensor]:
    return weights(P=(G, H), Wq=(F, H, D), Wk=(F, G, D), Wv=(F, G, 5), Wo=(H, 5, F))


def test_hard_lfish_divides_what_linear_attention_of_each_global_head_sums(x):
    """Its maps are those of all global heads, their rows divided by the sum over keys and global heads together."""
    w = lfish_weights()
    Q, K = (torch.nn.functional.elu(torch.einsum("bnf,fhd->bnhd", x, w[name])) + 1 for name in ("Wq", "Wk"))
    scores = torch.einsum("gh,bnhd,bmgd->bhngm", softplus(w["P"]), Q, K)
    A = scores / scores.sum((-1, -2), keepdim=True)
    V = torch.einsum("bmf,fge->bmge", x, w["Wv"])
    want = torch.einsum("bhngm,bmge,hef->bnf", A, V, w["Wo"])
    same(run("hard_lfish", w, x, FGH | {"e": 5}), want)


def test_hard_glfish_without_relu_and_bias_mixes_as_hard_lfish(x):
    """relu(x) - relu(-x) is x: the numerators are those of a mixture without softplus."""
    w, eye = lfish_weights(), torch.eye(H).double()
    both = {"P": torch.cat((w["P"], -w["P"]), 1), "W2": torch.cat((eye, -eye), 1), "b2": torch.zeros(H).double()}
    Q, K = (torch.nn.functional.elu(torch.einsum("bnf,fhd->bnhd", x, w[name])) + 1 for name in ("Wq", "Wk"))
    V = torch.einsum("bmf,fge->bmge", x, w["Wv"])
    above = torch.einsum("gh,bnhd,bmgd,bmge->bnhe", w["P"], Q, K, V)
    mixture = softplus(both["P"]) @ softplus(both["W2"]).T  # g h
    below = torch.einsum("gh,bnhd,bmgd->bnh", mixture, Q, K) + math.log(2) * Q.sum(-1)
    want = torch.einsum("bnhe,hef->bnf", above / below[..., None], w["Wo"])
    same(run("hard_glfish", w | both, x, FGH | {"k": 2 * H, "e": 5}), want)
