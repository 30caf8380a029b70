"""Which sums are known to hold no negative number, and which of these grow with the length."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.graph.signs import growing_sums, nonnegative
from tests.shipped import graph_of


@pytest.mark.parametrize(
    ("scores", "sure"),
    [
        ("1 + S[h n m] + 0.5 * S[h n m] S[h n m]", True),
        ("(1 / 2) * S[h n m] S[h n m] - 1 * S[h n m] + 0.6", True),
        ("S[h n m] S[h n m] + 0.01 * S[h n m] + 0.2 * S[h n m] + 0.1", True),
        ("S[h n m] S[h n m] + 2 * S[h n m] + 1", False),  # zero at -1: rounding may go below
        ("S[h n m] S[h n m] + 3 * S[h n m] + 1", False),
        ("1 + S[h n m] - S[h n m] S[h n m]", False),
        ("1 + S[h n m]", False),
        ("1 + S[h n m] + S[h n m] S[h n m] S[h n m]", False),
        ("1 + S[h n m] + 0.5 * S[h n m] T[h n m]", False),
        ("S[h n m] S[h n m]", True),
        ("1 + 0.2 * S[h n m] + S[h n m] S[h n m] + T[h n m]", False),
    ],
)
def test_a_polynomial(scores: str, sure: bool) -> None:
    qk = "Q[n h d] K[m h d] -> h n m"
    steps = {"S": qk, "T": qk, "used": {"mean": "m", "of": "S[h n m] T[h n m] -> h n m"}}
    own = {"A": {"normalize": "m", "of": f"{scores} -> h n m"}}
    read = {"y": "A[h n m] V[m h d] Wo[h d f] used[h n] -> n f"}
    source = ta.load("mhsa").as_dict()
    kept = {name: source["diagram"][name] for name in ("Q", "K", "V")}
    design = source | {"diagram": kept | steps | own | read}
    assert nonnegative(build(ta.load(design)))["A.of"] == sure
    assert ("negative-normalize" in {problem.code for problem in ta.check(design)}) != sure


def test_sums_that_grow_with_the_length() -> None:
    """Designs whose outputs were zeros in float16 at 4,096 positions, and no others."""
    growing = {name: [*growing_sums(graph_of(name))] for name in ta.list_designs()}
    fish = ("lfish", "glfish", "hard_lfish", "hard_glfish")
    assert {name: sums for name, sums in growing.items() if sums} == {name: [("z", "m")] for name in fish}


@pytest.mark.parametrize(
    ("step", "growing"),
    [
        ({"z": "k[m g d] k[m g d] -> g d"}, True),
        ({"z": {"sum": "m", "of": "k"}}, True),
        ({"z": "(1 / m) * k[m g d] k[m g d] -> g d"}, False),
        ({"z": {"mean": "m", "of": "k"}}, False),
        ({"z": "k[m g d] K[m g d] -> g d"}, False),
        ({"a": {"softmax": "m", "of": "k"}, "z": "a[m g d] k[m g d] -> g d"}, False),
    ],
)
def test_a_sum_of_features(step: dict[str, object], growing: bool) -> None:
    features = {"K": "x[m g d] -> m g d", "k": {"map": "elu1", "of": "K"}}
    design = {
        "tensornet": 1,
        "name": "sums",
        "legs": {"n": "query", "m": "key", "g": "shared 2", "d": "shared 3"},
        "inputs": {"x": "n g d"},
        "weights": {"W": "g d"},
        "diagram": features | step | {"y": "x[n g d] z[g d] W[g d] -> n g"},
        "output": "y",
    }
    assert [*growing_sums(build(ta.load(design)))] == [("z", "m")] * growing


def test_a_warning_in_float16() -> None:
    what = "lfish: 'z' sums values that are never negative over 'm', and nothing divides the sum"
    why = "products with it overflow float16 after some thousand positions"
    hint = "use bfloat16, or divide by the length, e.g. by the factor '1 / m' in the sum."
    with pytest.warns(UserWarning, match="overflow float16") as warned:
        ta.compile("lfish", dtype=torch.float16)
    assert [str(warning.message) for warning in warned] == [f"{what}, so {why}; {hint}"]


def test_a_warning_of_sums_that_a_plan_divides_last() -> None:
    what = "abc: 'P' is normalised after products with it are summed over 'm'"
    why = "the sums may overflow float16 after some thousand positions"
    with pytest.warns(UserWarning, match="overflow float16") as warned:
        ta.compile("abc", dtype=torch.float16)
    assert [str(warning.message) for warning in warned] == [f"{what}, so {why}; use bfloat16."]
