"""Which leg is split, which weights are on it, and what stands against the others."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tensornet_attn.plan.parallel import SplitLeg, split_of
from tensornet_attn.plan.shard import shard_of
from tests.refusals import refusal

SPLITS = {
    "mhsa": ("h", {"Wq": 1, "Wk": 1, "Wv": 1, "Wo": 0}, ()),
    "gqa": ("g", {"Wq": 1, "Wk": 1, "Wv": 1, "Wo": 0}, ()),
    "mqa": ("h", {"Wq": 1, "Wo": 0}, ("Wk", "Wv")),
    "mla": ("h", {"Wq": 1, "Wuk": 1, "Wuv": 1, "Wo": 0}, ("Wc",)),
    "mgk": ("h", {"Wq": 1, "Wk": 2, "Wv": 1, "logpi": 0, "Wo": 0}, ()),
    "epa": ("h", {"Wq": 1, "Wk": 1, "Ss": 1, "Wv": 0, "Sd": 1, "Wo": 0}, ()),
    "skip_left": ("h", {"Wq": 1, "Wk": 1, "Wv": 1, "Wo": 0}, ("C2", "C3")),
    "mhsa_core": ("h", {"Wq": 1, "Wk": 1, "Wv": 1, "Wo": 0}, ()),
    "mlp": ("l", {"W1": 1, "b1": 0, "W2": 0}, ("b2",)),
    "sigma_moe": ("l", {"W1": 2, "W2": 1}, ("Ws",)),
}
MIXED = "'A.of' sums over 'g', and softmax 'A' needs the whole sum"
AGAINST = {
    "talking_heads": f"{MIXED}; 'A.of' does not have 'e', so every process would compute all of it; heads 'g' of 'Q' "
    "and 'K' are mixed into 'h' by 'Pl' in 'A.of'",
    "hard_fish": f"{MIXED}; heads 'g' of 'Q' and 'K' are mixed into 'h' by 'P' in 'A.of'",
    "thsa": "heads 's' of 'Q' and 'K' are mixed into 'r' by 'C' in 'A.of'; 'A.of' sums over 's', and softmax 'A' needs "
    "the whole sum",
    "thsa_low_rank": "'A.of' sums over 's', and softmax 'A' needs the whole sum; heads 's' of 'Q' and 'K' are mixed "
    "into 'r' by 'C2' and 'C3' in 'A.of'",
    "hard_gfish": "'L' sums over 'g', and softmax 'A' needs the whole sum; 'L.of.of' does not have 'h', so every "
    "process would compute all of it",
    "moa": "softmax 'G.of' runs over 'e'",
    "head_gated": "topk 'G' runs over 'h'",
}
LEGS = {"n": "query", "f": 8, "g": "head 4", "h": "head 4", "l": 6}


def split(design: object, processes: int | None = None, leg: str | None = None) -> SplitLeg:
    return split_of(ta.build(ta.load(design)), processes, leg)


def design(weights: dict[str, str], **diagram: object) -> dict[str, object]:
    """A design of single positions on the legs above, those that it has."""
    text = f"{weights} {diagram}"
    legs = {name: kind for name, kind in LEGS.items() if name in "nf" or f"{name} " in text or f" {name}" in text}
    head = {"tensornet": 1, "name": "own", "legs": legs, "inputs": {"x": "n f"}}
    return {**head, "weights": weights, "diagram": diagram, "output": "y"}


@pytest.mark.parametrize("name", SPLITS)
def test_the_leg_and_the_weights(name: str) -> None:
    found = split(name)
    assert (found.leg, dict(found.shards), found.whole) == SPLITS[name]
    assert found.reduce == (found.graph.output,)


@pytest.mark.parametrize("name", AGAINST)
def test_what_stands_against(name: str) -> None:
    assert refusal(split, name) == f"{name}: no leg can be split over processes: {AGAINST[name]}."


def test_the_leg_divides_by_the_processes_or_another_is_taken() -> None:
    assert split("gqa", 2).leg == "g"
    found = split("gqa", 4)
    assert (found.leg, found.whole) == ("j", ("Wk", "Wv"))
    assert refusal(split, "gqa", 3) == (
        "gqa: no leg can be split over processes: 3 processes do not divide 'g' (2); 3 processes do not divide 'j' (4)."
    )


def test_a_leg_that_is_given_need_only_be_right() -> None:
    found = split("hard_fish", leg="h")
    assert (dict(found.shards), found.whole) == ({"P": 1, "Wv": 1, "Wo": 0}, ("Wq", "Wk"))
    assert refusal(split, "hard_fish", leg="g") == f"hard_fish: no leg can be split over processes: {MIXED}."
    assert refusal(split, "mhsa", leg="hh") == "mhsa: no weight has a leg 'hh' inside the diagram; did you mean 'h'?"
    assert refusal(split, "mhsa", leg="f") == "mhsa: no weight has a leg 'f' inside the diagram; known here: d, h."


def test_legs_in_lock_step_are_split_together() -> None:
    tied = design(
        {"W": "f h", "U": "f h", "Wo": "g f"},
        Q="x[n f] W[f h] -> n h",
        K={"map": "relu", "of": "x[n f] W[f g] + U[f g] x[n f] -> n g"},
        G="Q[n g] K[n g] -> n g",
        y="G[n h] Wo[h f] -> n f",
    )
    found = split(tied)
    assert (found.leg, dict(found.shards), found.whole) == ("h", {"W": 1, "U": 1, "Wo": 0}, ())
    assert {leg.size for leg in shard_of(found, 2).graph.legs if leg.name == "h_"} == {2}


def test_every_pair_of_entries() -> None:
    pairs = design(
        {"W": "f h"}, Q="x[n f] W[f h] -> n h", P="Q[n h] Q[n g] -> n h g", y="P[n h g] W[f h] W[f g] -> n f"
    )
    assert refusal(split, pairs) == (
        "own: no leg can be split over processes: 'P' combines each entry of 'h' with each entry of 'g'."
    )


def test_a_sum_that_is_squared() -> None:
    squared = design({"W": "f h", "u": "h"}, Q="x[n f] W[f h] u[h] -> n", y="Q[n] Q[n] x[n f] -> n f")
    assert refusal(split, squared) == (
        "own: no leg can be split over processes: 'Q' sums over 'h', and 'y' needs the whole sum."
    )


def test_a_part_that_is_not_on_the_way_to_the_output_alone() -> None:
    assert refusal(split, design({"W": "f"}, y="x[n f] W[f] -> n f")) == (
        "own: no leg can be split over processes: no weight has a leg inside the diagram."
    )


def test_each_process_adds_its_share_of_what_all_have() -> None:
    text = shard_of(split("mlp"), 4).graph.to_text()
    assert "y[n f] = H[n l_] W2[l_ f] + (1 / 4) * b2[f]" in text


def test_constants_are_made_whole_and_the_own_entries_picked() -> None:
    part = shard_of(split("alibi"), 2)
    assert part.chooser == "own"
    assert part.graph.tensor["own"].legs == ("h", "h_")
    assert "slopes_own" in " ".join(part.graph.step)


def test_a_leg_that_does_not_divide() -> None:
    assert refusal(shard_of, split("mhsa"), 3) == (
        "mhsa: leg 'h' (8) cannot be split over 3 processes: use a number of processes that divides its size."
    )
