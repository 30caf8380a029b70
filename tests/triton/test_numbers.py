"""Programs with many numbers and tiles: kernels of their own for gradients of numbers, and what is made again."""

from __future__ import annotations

import re

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.compiler import emit_source
from tensornet_attn.emit.triton import backward, region
from tests.plan.blockwise_cases import design
from tests.triton.regions import draw, pair, same

HEADS = {"f": 24, "h": 8, "d": 3}
MANY = {
    "talking_heads": HEADS | {"g": 8, "e": 8},
    "gfish": HEADS | {"g": 4, "k": 8},
    "gfish_release": HEADS | {"g": 4, "k": 8},
}
FEW = {"talking_heads": {"f": 6, "g": 2, "h": 2, "d": 3, "e": 2}, "gfish": {"f": 6, "g": 2, "h": 2, "k": 3, "d": 3}}


def check(name: str, legs: dict[str, int]) -> str:
    """Compares outputs and gradients, with noise and masks; the source."""
    ours, oracle = pair(name, legs=legs)
    graph = ours.plan.graph
    sizes = {leg.name: leg.size or 19 for leg in graph.legs}
    noise = {t.name: draw(2, *(sizes[leg] for leg in t.legs), seed=9) for t in graph.of_role("noise")}
    mask = torch.where(draw(2, 19, 19, seed=3) < 0.8, draw(2, 19, 19, seed=4), -torch.inf)
    same(ours, oracle, [draw(2, 19, legs["f"])], mask=mask, **({"noise": noise} if noise else {}))
    return ours.source


@pytest.mark.parametrize(
    ("name", "together", "kernel"),
    [
        ("talking_heads", 5, "sums"),
        ("talking_heads", 3, "numbers_2"),
        pytest.param("gfish", 5, "numbers_2", marks=pytest.mark.slow),
    ],
)
def test_where_few_are_many(name: str, together: int, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region, "MOST_NUMBERS", 5)
    monkeypatch.setattr(backward, "TOGETHER", together)
    source = check(name, FEW[name] | {"f": 6 + together})  # sizes of its own, because emitted modules are cached
    found = dict(re.findall(r"def y_1_tiles_(\w+)\((.*?)\):", source, re.DOTALL))
    assert "_grad" in found[kernel]


def test_numbers_that_are_read_after_the_loop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query of a head, c q, is made in the program: the gradient of q is a total times c."""
    monkeypatch.setattr(region, "MOST_NUMBERS", 1)
    monkeypatch.setattr(backward, "TOGETHER", 1)
    scores = {"map": "tanh", "of": "P[h g] U[h n d] K[m h d] -> g n m"}
    source = design(scores, "A[g n m] P[h g] V[m h d] Wo[h d f] -> n f", U="c[h] q[n d] -> h n d")
    source["weights"] |= {"c": "h", "Wq": "f d"}
    source["diagram"] = {"q": "x[n f] Wq[f d] -> n d", **source["diagram"]}
    ours, oracle = pair(source)
    same(ours, oracle, [draw(2, 18, 6), draw(2, 20, 6, seed=1)])


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_many(name: str) -> None:
    check(name, MANY[name])


def test_a_loop_that_is_not_unrolled() -> None:
    """Forward, the loop over k is the only one: nothing is made twice. Of noise, rows hold what is drawn, not more."""
    source = emit_source(ta.load("gfish", legs=MANY["gfish"]), backend="triton")
    kernels = dict(re.findall(r"def y_1_tiles_(\w+)\((.*?)(?=@triton|y_1_tiles = )", source, re.DOTALL))
    assert {kind for kind, text in kernels.items() if "for k_four in range(2):" in text} == {"forward"}
    again = "tl.debug_barrier()  # recompute instead of keeping values in registers"
    assert {kind for kind, text in kernels.items() if again in text} == {"numbers", "rows", "keys"}
    assert [kernels[kind].count("noise_2d(") for kind in ("numbers", "rows", "keys")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("talking_heads", {"sums": {"Pw"}, "rows": {"mask", "Q", "Pl"}, "keys": {"V", "K"}}),
        ("gfish", {"rows": {"mask", "eps", "Q", "b2", "P", "L_of_of_p3"}, "numbers": {"W2"}, "keys": {"V", "K"}}),
        ("gfish_release", {"rows": {"mask", "Q", "b1", "b2", "W1"}, "numbers": {"W2"}, "keys": {"V", "K"}}),
    ],
)
def test_gradients_of_numbers_are_in_kernels_that_have_their_factors(name: str, expected: dict[str, set[str]]) -> None:
    """As many as fit; what is read after the softmax needs no rows of A dA."""
    source = emit_source(ta.load(name, legs=MANY[name]), backend="triton")
    found = dict(re.findall(r"def y_1_tiles_(\w+)\((.*?)\):", source, re.DOTALL))
    by_kernel = {kind: {*re.findall(r"(\w+)_grad\b", text)} for kind, text in found.items()}
    assert {kind: names for kind, names in by_kernel.items() if names} == expected


def test_few_numbers_are_held() -> None:
    source = emit_source(ta.load("hard_fish"), backend="triton")
    assert "tiles_numbers" not in source
    assert "tl.debug_barrier" not in source


def test_a_core_stands_beside_what_a_program_has_one_block_of() -> None:
    """c q k, summed over d: programs of keys make c k once, and multiply the gradient of k by c after the loop."""
    scores = {"map": "tanh", "of": "c[h d] q[n d] k[m d] -> h n m"}
    source = design(scores, "A[h n m] V[m h d] Wo[h d f] -> n f")
    source["weights"] |= {"c": "h d", "Wq": "f d", "Wk": "f d"}
    source["diagram"] = {"q": "x[n f] Wq[f d] -> n d", "k": "z[m f] Wk[f d] -> m d", **source["diagram"]}
    ours, oracle = pair(source)
    same(ours, oracle, [draw(2, 19, 6), draw(2, 23, 6, seed=1)])
    kernel = ours.source[ours.source.index("def y_1_tiles_keys(") :]
    before, inside = kernel[: kernel.index("region(")].split("for start in range(", 1)
    assert "c_tile[None, :] * k_tile.to(SUMS)" in before
    assert "q_tile.to(SUMS)" not in inside
