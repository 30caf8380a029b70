"""The oracle against formulas written out by hand: contractions, leaves, lengths, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.graph import Graph, build
from tensornet_attn.reference import evaluate, slopes
from tensornet_attn.spec import load
from tests.refusals import refusal

LEGS = {"n": "query", "m": "key", "f": 6, "h": "head 2", "d": "f / h"}


def graph(diagram: dict[str, Any], legs: dict[str, Any] = LEGS, **parts: Any) -> Graph:
    parts = {"tensornet": 1, "name": "test", "legs": legs, "inputs": {"x": "n f"}, "output": "y"} | parts
    return build(load({**parts, "diagram": diagram}))


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


PROJECTIONS = {"Q": "x[n f] Wq[f h d] -> n h d", "K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h d] -> m h d"}
MHSA = {
    **PROJECTIONS,
    "A": {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"},
    "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
}
WEIGHTS = {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wo": "h d f"}


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_what_torch_computes(batch: tuple[int, ...], causal: bool) -> None:
    tensors = {"x": draw(*batch, 5, 6), **{name: draw(6, 2, 3) for name in ("Wq", "Wk", "Wv")}, "Wo": draw(2, 3, 6)}
    found = evaluate(graph(MHSA, weights=WEIGHTS, causal=causal), tensors, lengths={"n": 5, "m": 5})
    q, k, v = (torch.einsum("...nf,fhd->...hnd", tensors["x"], tensors[name]) for name in ("Wq", "Wk", "Wv"))
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(found["y"], torch.einsum("...hnd,hdf->...nf", attended, tensors["Wo"]))
    assert found["A"].shape == (*batch, 2, 5, 5)


def test_until_stops_at_a_step_or_before_all() -> None:
    tensors = {"x": draw(5, 6), **{name: draw(6, 2, 3) for name in ("Wq", "Wk", "Wv")}, "Wo": draw(2, 3, 6)}
    attention, lengths = graph(MHSA, weights=WEIGHTS), {"n": 5, "m": 5}
    assert set(evaluate(attention, tensors, lengths=lengths, until="K")) - set(tensors) == {"Q", "K"}
    assert set(evaluate(attention, tensors, lengths=lengths, until="x")) == set(tensors)


def test_a_sum_broadcasts_terms_and_takes_lengths_in_coefficients() -> None:
    g = graph(
        {
            "K": "x[m f] W[f h d] -> m h d",
            "S": "-(0.5 * m) * K[m h d] K[m h d] + b[h] + 2 -> h m",
            "s": {"sum": "m", "of": "S"},
            "y": "x[n f] s[h] u[h] -> n f",
        },
        weights={"W": "f h d", "b": "h", "u": "h"},
    )
    tensors = {"x": draw(2, 5, 6), "W": draw(6, 2, 3), "b": draw(2), "u": draw(2)}
    found = evaluate(g, tensors, lengths={"n": 5, "m": 5})
    keys = torch.einsum("bmf,fhd->bmhd", tensors["x"], tensors["W"])
    want = -2.5 * keys.square().sum(-1).mT + tensors["b"][:, None] + 2
    torch.testing.assert_close(found["S"], want)


def test_a_junction_of_many_tensors_is_one_product() -> None:
    g = graph({"y": "x[n f] a[f h] b[f h] c[h f] -> n f"}, legs={"n": "query", "f": "head 6", "h": "head 2"},
              weights={"a": "f h", "b": "f h", "c": "h f"})  # fmt: skip
    tensors = {"x": draw(2, 5, 6), "a": draw(6, 2), "b": draw(6, 2), "c": draw(2, 6)}
    found = evaluate(g, tensors, lengths={"n": 5})["y"]
    want = tensors["x"] * (tensors["a"] * tensors["b"] * tensors["c"].T).sum(-1)
    torch.testing.assert_close(found, want)


def test_an_input_falls_back_to_another_and_lengths_may_differ() -> None:
    g = graph(
        {"S": "x[n f] z[m f] -> n m", "A": {"softmax": "m", "of": "S"}, "y": "A[n m] z[m f] -> n f"},
        legs={"n": "query", "m": "key", "f": 6},
        inputs={"x": "n f", "z": {"legs": "m f", "default": "x"}},
    )
    x, z = draw(2, 3, 6), draw(2, 5, 6)
    alone = evaluate(g, {"x": x}, lengths={"n": 3, "m": 3})["y"]
    torch.testing.assert_close(alone, (x @ x.mT).softmax(-1) @ x)
    both = evaluate(g, {"x": x, "z": z}, lengths={"n": 3, "m": 5})["y"]
    torch.testing.assert_close(both, (x @ z.mT).softmax(-1) @ z)


def test_a_weight_on_a_sequence_leg_is_cut_to_the_length() -> None:
    g = graph({"y": "x[n f] + P[n f] -> n f"}, legs={"n": "query 8", "f": 6}, weights={"P": "n f"})
    x, P = draw(2, 5, 6), draw(8, 6)
    torch.testing.assert_close(evaluate(g, {"x": x, "P": P}, lengths={"n": 5})["y"], x + P[:5])
    assert refusal(evaluate, g, {"x": draw(2, 9, 6), "P": P}, lengths={"n": 9}) == (
        "leg 'n' has length 9, but 'P' has 8 entries there; use at most 8."
    )


def test_constants_are_made_at_run_time_sizes() -> None:
    constants = {
        "D": {"legs": "m n", "value": "distance"},
        "E": {"legs": "m f", "value": "sinusoid"},
        "a": {"legs": "h", "value": "alibi_slopes"},
        "C": {"legs": "f g", "value": "kron(eye(h), ones(d, d))"},
        "I": {"legs": "f g", "value": "eye"},
    }
    steps = {
        "S": "D[m n] a[h] + x[n f] E[m g] C[f g] u[h] + x[n f] E[m g] I[f g] u[h] -> h n m",
        "A": {"softmax": "m", "of": "S"},
        "y": "A[h n m] x[m f] u[h] -> n f",
    }
    g = graph(steps, legs=LEGS | {"g": 6}, weights={"u": "h"}, constants=constants)
    found = evaluate(g, {"x": draw(4, 6), "u": draw(2)}, lengths={"n": 3, "m": 4}, until="x")
    n, m = torch.arange(3)[:, None] + 1, torch.arange(4)
    torch.testing.assert_close(found["D"], (n - m).T.double())
    angles = [[p * 10000 ** (-(i // 2 * 2) / 6) for i in range(6)] for p in range(4)]
    table = [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angles]
    torch.testing.assert_close(found["E"], torch.tensor(table, dtype=torch.float64))
    torch.testing.assert_close(found["a"], torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64))
    torch.testing.assert_close(found["C"], torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).double())
    torch.testing.assert_close(found["I"], torch.eye(6).double())


def test_slopes_between_powers_of_two_are_filled_from_the_next() -> None:
    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    assert slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]
    assert slopes(1) == [2.0**-8]


def noisy(**declaration: Any) -> Graph:
    steps = {"y": "x[n f] + e[n f] -> n f"}
    return graph(steps, legs={"n": "query", "f": 6}, noise={"e": {"legs": "n f", **declaration}})


def test_noise_is_drawn_in_training_zero_in_evaluation_and_taken_unscaled_when_given() -> None:
    x, e = torch.zeros(2, 500, 6, dtype=torch.float64), draw(2, 500, 6)
    torch.manual_seed(0)
    assert evaluate(noisy(std=3), {"x": x}, lengths={"n": 500})["y"].abs().max() == 0
    drawn = evaluate(noisy(std=3), {"x": x}, lengths={"n": 500}, training=True)["y"]
    assert abs(drawn.std() - 3) < 0.1
    assert not torch.equal(drawn[0], drawn[1])
    always = evaluate(noisy(std=3, always=True), {"x": x}, lengths={"n": 500})["y"]
    assert abs(always.std() - 3) < 0.1
    assert torch.equal(evaluate(noisy(std=3), {"x": x, "e": e}, lengths={"n": 500})["y"], e)


def test_a_tensor_that_is_missing_is_named() -> None:
    assert refusal(evaluate, graph(MHSA, weights=WEIGHTS), {"x": draw(5, 6)}, lengths={"n": 5, "m": 5}) == (
        "'test': the weight 'Wq' is missing; pass it in 'tensors'."
    )


def test_values_keep_the_dtype() -> None:
    tensors = {"x": draw(5, 6), **{name: draw(6, 2, 3) for name in ("Wq", "Wk", "Wv")}, "Wo": draw(2, 3, 6)}
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    found = evaluate(graph(MHSA, weights=WEIGHTS, causal=True), tensors, lengths={"n": 5, "m": 5})
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
