"""Stable ranks of cores: exact values, hand-made cores of small designs, and what has no core."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.analyse.core import core_matrix
from tensornet_attn.analyse.maps import attention_steps
from tests.refusals import refusal

F = {"f": 12, "h": 3}  # d is 4


def module(source, legs=None, seed: int = 0):
    torch.manual_seed(seed)
    return ta.compile(ta.load(source, legs=legs or {}), dtype=torch.float64)


def stable_rank(matrix: np.ndarray) -> float:
    return float((matrix**2).sum() / np.linalg.norm(matrix, 2) ** 2)


def mhsa(**changed):
    """mhsa with other steps, weights, legs or constants."""
    return {"tensornet": 1, "name": "own", "extends": "mhsa", **changed}


def scores(of, **more):
    return {**more, "A": {"softmax": "m", "of": of}}


@pytest.mark.parametrize(("h", "d"), [(1, 1), (3, 5), (8, 64)])
def test_the_core_of_mhsa_as_a_matrix_has_h_heads(h: int, d: int) -> None:
    core = torch.kron(torch.eye(h), torch.ones(d, d))
    assert ta.effective_heads(core) == pytest.approx(h, abs=1e-9)
    assert ta.effective_heads(core.double() * 1e200) == pytest.approx(h, abs=1e-9)


def test_the_stable_rank_of_a_matrix_by_hand() -> None:
    assert ta.effective_heads(torch.diag(torch.tensor([2.0, 1.0, 1.0]))) == pytest.approx(1.5)
    assert ta.effective_heads(torch.ones(4, 7)) == pytest.approx(1)
    assert ta.effective_heads(torch.zeros(4, 7)) == 0
    assert ta.effective_heads(torch.zeros(0, 7)) == 0
    core = torch.randn(6, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert ta.effective_heads(core) == pytest.approx(stable_rank(core.numpy()))


HEADS = {
    "mhsa": 8, "mqa": 8, "gqa": 8, "mla": 8, "cross": 8, "mhsa_rope": 8, "alibi": 8, "transformer_xl": 8, "linear": 8,
    "band": 8, "epa": 8, "moa": 16, "mgk": 8, "smgk": 8, "mgk_em": 8, "mlk": 8, "gaussian": 8, "mhsa_core": 8,
    "fmm_fast_weight1": 8,
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_designs_that_mix_no_heads_have_all_of_them(name: str) -> None:
    assert ta.effective_heads(module(name)) == pytest.approx(HEADS[name], abs=1e-12)


def test_fish_has_the_stable_rank_of_its_mixing() -> None:
    for name in ("hard_fish", "fish"):
        layer = module(name, F | {"g": 2})
        whole = np.kron(layer.P.detach().numpy().T, np.ones((1, 4)))  # h, (g d)
        assert ta.effective_heads(layer) == pytest.approx(stable_rank(whole))
        assert torch.equal(core_matrix(layer), layer.P.detach().T)


def test_thsa_and_skip_right_and_talking_heads() -> None:
    layer = module("thsa", {"f": 12, "r": 6, "s": 4})
    assert torch.equal(core_matrix(layer), layer.C.detach())
    layer = module("skip_right", {"f": 12, "h": 3, "g": 2})
    assert ta.effective_heads(layer) == pytest.approx(stable_rank(layer.C1.detach().numpy()))
    layer = module("talking_heads", {"f": 12, "g": 2, "h": 3, "e": 4})
    assert ta.effective_heads(layer) == pytest.approx(stable_rank(layer.Pl.detach().numpy()))


def test_a_core_of_two_weights_and_a_head_leg() -> None:
    """I_h (x) C2^T C3 against the whole matrix: rows h d, columns h e."""
    legs = {"n": "query", "m": "key", "f": 12, "h": "head 3", "d": "head 4", "e": "head 5", "c": "head 2"}
    weights = {"Wq": "f h e", "Wk": "f h e", "Wv": "f h d", "C2": "c d", "C3": "c e", "Wo": "h d f"}
    diagram = {
        "Q": "x[n f] Wq[f h e] -> n h e",
        "K": "x[m f] Wk[f h e] -> m h e",
        "V": "x[m f] Wv[f h d] -> m h d",
        **scores("C2[c d] C3[c e] Q[n h e] K[m h e] -> h d n m"),
        "y": "A[h d n m] V[m h d] Wo[h d f] -> n f",
    }
    design = {"tensornet": 1, "name": "own", "legs": legs, "inputs": {"x": "n f"}, "weights": weights}
    layer = module(design | {"diagram": diagram, "output": "y"})
    inner = layer.C2.detach().numpy().T @ layer.C3.detach().numpy()
    assert ta.effective_heads(layer) == pytest.approx(stable_rank(np.kron(np.eye(3), inner)))


PQK = "P[g h] Q[n g d] K[m g d]"
MIXED = {
    "in a step of its own": scores("P[g h] G[g n m] -> h n m", G="Q[n g d] K[m g d] -> g n m"),
    "by name, capped": {"S": {"map": "softcap(3)", "of": f"{PQK} -> h n m"}, "A": {"softmax": "m", "of": "S"}},
    "with a bias and a query's own term": scores(f"2 * {PQK} - Q[n h d] Q[n h d] + b[h] -> h n m"),
    "twice": scores("P[g h] G[g n m] -> h n m", G="R[h g] Q[n h d] K[m h d] -> g n m"),
    "over mixture components": scores({"logsumexp": "u", "of": f"{PQK} + c[h u] -> h u n m"}),
    "by weights that a box makes": scores("N[g h] Q[n g d] K[m g d] -> h n m", N={"softmax": "g", "of": "P"}),
}


@pytest.mark.parametrize("how", MIXED)
def test_steps_between_the_product_and_the_box_are_followed(how: str) -> None:
    weights = {"P": "g h", "R": "h g", "b": {"legs": "h", "init": "ones"}, "c": {"legs": "h u", "init": "ones"}}
    used = {name: legs for name, legs in weights.items() if name == "P" or f"{name}[" in str(MIXED[how])}
    legs = {"g": "head h"} | ({"u": 2} if "c" in used else {})
    layer = module(mhsa(legs=legs, weights=used, diagram=MIXED[how]), F)
    core = layer.P.detach().numpy()
    core = {"twice": lambda: layer.R.detach().numpy() @ core}.get(how, lambda: core)()
    if how == "by weights that a box makes":
        core = layer.P.detach().softmax(0).numpy()
    assert ta.effective_heads(layer) == pytest.approx(stable_rank(core))


def test_a_design_with_several_boxes_needs_the_name_of_one() -> None:
    layer = module("fmm2", F)
    for step in ("near", "far1", "far2"):
        assert ta.effective_heads(layer, step) == pytest.approx(3)
    wanted = "fmm2: there are 3 attention boxes, 'near', 'far1', 'far2'; choose one with step=."
    assert refusal(ta.effective_heads, layer) == wanted
    wanted = "fmm2: there is no attention box 'far'; did you mean 'far2'?"
    assert refusal(ta.effective_heads, layer, step="far") == wanted


QK = "Q[n h d] K[m h d]"
RELU = {"map": "relu", "of": "Q[n g d] K[m g d] -> g n m"}
NO_CORE = {
    "its scores add 2 products of a query and a key side.": mhsa(diagram=scores(f"{QK} + x[n f] x[m f] -> h n m")),
    "'A.of' mixes scores after 'G', which is not linear.": mhsa(
        legs={"g": "head h"}, weights={"P": "g h"}, diagram=scores("P[g h] G[g n m] -> h n m", G=RELU)
    ),
    "'A.of' mixes scores after 'G', which is not linear. ": mhsa(
        legs={"g": "head h"},
        weights={"P": "g h"},
        diagram=scores({"sum": "g", "of": "G"}, G={"map": "relu", "of": f"{PQK} -> g h n m"}),
    ),
    "its scores are not a product of a query and a key side.": mhsa(
        weights={"Wk": "h m", "Wv": "f h d"},
        legs={"m": "key 9"},
        diagram={"K": None} | scores("Q[n h d] Q[n h d] + Wk[h m] -> h n m"),
    ),
    "'G' is computed from inputs or noise, so the core differs between calls.": mhsa(
        diagram=scores(f"G[h] {QK} -> h n m", G={"mean": "n", "of": "Q[n h d] Q[n h d] -> n h"})
    ),
    "'A.of' multiplies scores with scores.": mhsa(diagram=scores("S[h n m] S[h n m] -> h n m", S=f"{QK} -> h n m")),
}


@pytest.mark.parametrize("reason", NO_CORE)
def test_scores_without_a_core(reason: str) -> None:
    wanted = f"own: the core of 'A' is not defined: {reason.strip()}"
    assert refusal(ta.effective_heads, module(NO_CORE[reason], F)) == wanted


def test_what_is_neither_a_matrix_nor_a_compiled_design() -> None:
    wrong = [
        (torch.ones(3), "a core is a matrix [heads, components], not a tensor of shape [3]."),
        (torch.full((2, 2), torch.nan), "the core has entries that are not finite, so it has no singular values."),
        (torch.nn.Linear(2, 2), "effective_heads takes a compiled design, as ta.compile returns it, not a Linear."),
        (module("mlp", {"f": 4}), "mlp: there is no attention box (softmax, normalize or keep over the key leg)."),
    ]
    for value, message in wrong:
        assert refusal(ta.effective_heads, value) == message


@pytest.mark.parametrize("name", ta.list_designs())
def test_every_shipped_attention_has_a_rank_or_a_reason(name: str) -> None:
    layer = ta.compile(name)
    graph = layer.plan.graph
    for step in attention_steps(graph):
        heads = prod(layer.design.legs[leg] for leg in step.legs if leg not in (graph.query, graph.key))
        try:
            found = ta.effective_heads(layer, step.name)
        except ta.InputError as error:
            reason = str(error)
            found = 1 if reason.startswith(f"{name}: the core of '{step.name}' is not defined: ") else 0
        assert 1 - 1e-9 <= found <= heads + 1e-9
