"""Expert projections: designs that are the same function as others at some weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tests.designs.sizes import CHOICES

from .carry import FH, D, F, H, mhsa_weights, run, same, tensor, variant, weights

EACH = [("epa", "vo"), *((f"epa_{letters}", letters) for letters in CHOICES)]
each_choice = pytest.mark.parametrize(("name", "letters"), EACH)


def random_weights(name: str, legs: dict[str, int], settings: dict[str, float]) -> dict[str, Tensor]:
    """Of each weight of a design."""
    module = ta.compile(ta.load(name, legs=legs, settings=settings), backend="reference", dtype=torch.float64)
    return weights(**{key: tuple(value.shape) for key, value in module.state_dict().items()})


def with_experts(w: dict[str, Tensor], letters: str, e: int) -> dict[str, Tensor]:
    """The weights of mhsa, those of the projections `letters` as e equal experts."""
    return w | {f"W{z}": experts(w[f"W{z}"], z, e) for z in letters}


def experts(weight: Tensor, letter: str, e: int) -> Tensor:
    each_head = weight if letter == "o" else weight.transpose(0, 1)  # h first
    return each_head.unsqueeze(1).repeat(1, e, 1, 1)


def gates(letters: str, gate: Tensor) -> dict[str, Tensor]:
    """The same logits on each side that has experts."""
    source = {"Ss": gate} if {"v", "k"} & set(letters) else {}
    return source | ({"Sd": gate} if {"q", "o"} & set(letters) else {})


def with_one(x: Tensor) -> Tensor:
    """x with a feature that can hold the gates at 1."""
    return torch.cat((x[..., :-1], torch.ones_like(x[..., -1:])), -1)


def held_open(*shape: int) -> Tensor:
    gate = torch.zeros(shape).double()
    gate[-1] = 60
    return gate


@each_choice
def test_one_expert_with_open_gates_is_mhsa(name, letters, x):
    w, x = mhsa_weights(), with_one(x)
    open_w = with_experts(w, letters, 1) | gates(letters, held_open(F, H, 1))
    same(run(name, open_w, x, FH | {"e": 1}, k=1), run("mhsa", w, x, FH))


@each_choice
def test_every_expert_active_routes_nothing(name, letters, x):
    legs = FH | {"e": 3}
    w = random_weights(name, legs, {"k": 3})
    sides = {"Gs": "x[m f] Ss[f h e] -> m h e", "Gd": "x[n f] Sd[f h e] -> n h e"}
    present = {key: {"map": "sigmoid", "of": of} for key, of in sides.items() if f"S{key[1]}" in w}
    same(run(name, w, x, legs, k=3), run(variant(name, present, settings={"k": None}), w, x, legs))


AXES = {"Ss": 2, "Sd": 2, "Wq": 1, "Wk": 1, "Wv": 1, "Wo": 1}  # of e, where W has experts


def permuted(w: dict[str, Tensor], axes: dict[str, int], order: list[int]) -> dict[str, Tensor]:
    return w | {name: w[name].index_select(axis, torch.tensor(order)) for name, axis in axes.items()}


@pytest.mark.parametrize("name", [name for name, _ in EACH] + ["epa_rope", "epa_xl"])
def test_experts_may_be_permuted(name, x):
    legs = FH | {"e": 4}
    w = random_weights(name, legs, {"k": 2})
    axes = {key: axis for key, axis in AXES.items() if key in w and (key[0] == "S" or w[key].ndim == 4)}
    same(run(name, permuted(w, axes, [2, 0, 3, 1]), x, legs, k=2), run(name, w, x, legs, k=2))


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("moa", {"Sg": 1, "Wq": 0, "Wo": 0}),
        ("moa_sigmoid", {"Sg": 1, "Wq": 0, "Wo": 0}),
        ("sigma_moe", {"Ws": 1, "W1": 0, "W2": 0}),
    ],
)
def test_experts_of_the_other_layers_may_be_permuted(name, axes, x):
    legs = {"f": F, "e": 4} | ({"l": D} if name == "sigma_moe" else {"d": D})
    w = random_weights(name, legs, {"k": 2})
    same(run(name, permuted(w, axes, [2, 0, 3, 1]), x, legs, k=2), run(name, w, x, legs, k=2))


@pytest.mark.parametrize("name", ["mhsa", "head_gated", *(name for name, _ in EACH), "epa_rope", "epa_xl"])
def test_heads_may_be_permuted(name, x):
    routed = name not in ("mhsa", "head_gated")
    legs, settings = FH | ({"e": 4} if routed else {}), {} if name == "mhsa" else {"k": 2}
    w = random_weights(name, legs, settings)
    axes = {key: 0 if value.ndim == 4 or key in ("Wo", "u", "v") else 1 for key, value in w.items()}
    same(run(name, permuted(w, axes, [2, 0, 1]), x, legs, **settings), run(name, w, x, legs, **settings))


def test_head_gated_with_every_head_active_is_epa_o_with_one_expert(x):
    w, gate = mhsa_weights(), tensor(F, H, seed=3)
    one = with_experts(w, "o", 1) | {"Sd": gate.unsqueeze(-1)}
    same(run("epa_o", one, x, FH | {"e": 1}, k=1), run("head_gated", w | {"Sg": gate}, x, FH, k=H))


def test_head_gated_with_shared_keys_and_values_is_moa_sigmoid(x):
    w = weights(Sg=(F, H), Wq=(H, F, D), Wk=(F, D), Wv=(F, D), Wo=(H, D, F))
    shared = {key: w[key].unsqueeze(1).repeat(1, H, 1) for key in ("Wk", "Wv")}
    heads = w | shared | {"Wq": w["Wq"].transpose(0, 1)}
    same(run("head_gated", heads, x, FH, k=2), run("moa_sigmoid", w, x, {"f": F, "e": H, "d": D}, k=2))
