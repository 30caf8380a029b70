"""Tuformer: designs that are the same function as others at some weights."""

from __future__ import annotations

import torch

from .carry import F, run, same, tensor, variant, weights


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
