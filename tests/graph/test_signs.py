"""Which sums are known to hold no negative number."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.graph.signs import nonnegative


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
