"""Moves: equal to shipped designs where those exist, valid wherever they apply, finite in value and gradient."""

from __future__ import annotations

from itertools import islice, product
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.search.moves import MOVES, apply
from tensornet_attn.search.roles import maps
from tensornet_attn.search.sketch import Sketch, data_of, sketch_of
from tests.refusals import refusal
from tests.search.tiny import finite, tiny
from tests.shipped import attentions

JOINED = {"minimax": "O.of.joined", "olmo2": "q.of.joined"}  # norms along several legs
EQUAL: list[tuple[Any, ...]] = [
    ("gqa", "mhsa", ("group", {"g": 2})),
    ("mqa", "mhsa", ("group", {"g": 1})),
    ("gqa_rope", None, ("group", {"g": 2})),
    ("hard_fish", "mhsa", ("share", {"g": 4})),
    ("kernel_fish", "linear", ("share", {"g": 4})),
    ("kernel_fish", "hard_fish", ("kernel", {"map": "elu1"})),
    ("kernel_fish", "mhsa", ("kernel", {"map": "elu1"}), ("share", {"g": 4})),
    ("talking_heads", "mhsa", ("share", {"g": 8}), ("mix", {"e": 8})),
    ("talking_heads", "mhsa", ("mix", {"e": 8}), ("share", {"g": 8})),
    ("linear", "mhsa", ("kernel", {"map": "elu1"})),
    ("mgk", "mhsa", ("mixture", {"r": 2, "way": "gaussian", "keys": "own"})),
    ("mgk_hard", "mhsa", ("mixture", {"r": 2, "way": "hard", "keys": "own"})),
    ("softmax_mgk", "mhsa", ("mixture", {"r": 2, "way": "products", "keys": "own"})),
    ("smgk", "mhsa", ("mixture", {"r": 2, "way": "gaussian", "keys": "shifted"})),
    ("smgk_hard", "mhsa", ("mixture", {"r": 2, "way": "hard", "keys": "shifted"})),
    ("softmax_smgk", "mhsa", ("mixture", {"r": 2, "way": "products", "keys": "shifted"})),
    ("mlk", "linear", ("mixture", {"r": 2, "keys": "own"})),
    ("smlk", "linear", ("mixture", {"r": 2, "keys": "shifted"})),
    ("thsa", "mhsa", ("core", {"form": "full"})),
    ("thsa_low_rank", "mhsa", ("core", {"form": "low_rank", "c": 8})),
    ("skip_left", "mhsa", ("core", {"form": "left", "c": 1})),
    ("skip_right", "mhsa", ("core", {"form": "right"})),
    ("fmm1", "mhsa", ("split", {"band": 5, "maps": "elu1", "side": "both"})),
    ("fmm2", "mhsa", ("split", {"band": 5, "maps": "elu1+elu1_neg", "side": "both"})),
    ("fmm3", "mhsa", ("split", {"band": 5, "maps": "elu1+elu1_neg+tanh", "side": "both"})),
    ("fmm1_causal", "causal", ("split", {"band": 5, "maps": "elu1", "side": "past"})),
    ("fmm_fast_weight1", "window", ("delta", {"map": "elu1"})),
    ("mla", "mhsa", ("latent", {"c": 256})),
    ("head_gated", "mhsa", ("gate", {"k": 4})),
    ("epa", "mhsa", ("experts", {"of": "vo", "e": 5, "k": 2})),
    ("epa_rope", None, ("experts", {"of": "vo", "e": 5, "k": 2})),
    *(
        (f"epa_{of}", "mhsa", ("experts", {"of": of, "e": 5, "k": 2}))
        for of in "k ko kq kqo o q qo v vk vko vkq vkqo vq vqo".split()
    ),
]
BASES = {
    "causal": {"tensornet": 1, "name": "causal", "extends": "mhsa", "causal": True},
    "window": {
        "tensornet": 1,
        "name": "window",
        "extends": "mhsa",
        "settings": {"k": 5},
        "diagram": {
            "A": {
                "softmax": "m",
                "scale": "d ** -0.5",
                "mask": ["window(k - 1, 0)"],
                "of": "Q[n h d] K[m h d] -> h n m",
            }
        },
    },
    "gqa_rope": "mhsa_rope",
    "epa_rope": {
        "tensornet": 1,
        "name": "half_rope",
        "extends": "mhsa",
        "diagram": {
            "Q": {"rope": "n", "along": "d", "fraction": 0.5, "of": "x[n f] Wq[f h d] -> n h d"},
            "K": {"rope": "m", "along": "d", "fraction": 0.5, "of": "memory[m f] Wk[f h d] -> m h d"},
        },
    },
}


def moved(sketch: Sketch | None, name: str, options: dict[str, Any]) -> Sketch | None:
    assert sketch is not None
    full = {option: values[0] for option, values in MOVES[name].options.items()} | options
    return MOVES[name](sketch, maps(sketch)[0].box, full)


@pytest.mark.parametrize("case", EQUAL, ids=lambda case: f"{case[0]}-{case[1]}-{'-'.join(m for m, _ in case[2:])}")
def test_moves_make_shipped_designs(case: tuple[Any, ...]) -> None:
    wanted, base, *steps = case
    sketch: Sketch | None = sketch_of(ta.load(BASES.get(base or wanted, base)))
    for name, options in steps:
        sketch = moved(sketch, name, options)
    assert sketch is not None
    design = ta.load(data_of(sketch))
    assert design.hash == ta.load(wanted).hash
    assert ta.load(design.to_yaml()).hash == design.hash


@pytest.mark.parametrize("name", JOINED)
def test_joined_legs_are_refused(name: str) -> None:
    why = f"{name}: '{JOINED[name]}' joins several legs, which the search does not support; write separate legs."
    assert refusal(sketch_of, ta.load(name)) == why


@pytest.mark.parametrize("name", [name for name in ta.list_designs() if name not in JOINED])
def test_a_sketch_is_its_design(name: str) -> None:
    design = ta.load(name)
    assert ta.load(data_of(sketch_of(design))).hash == design.hash


def changes(name: str, each: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Moves at the first maps of a design, with `each` of the options spread over all that there are."""
    boxes = [at.box for at in maps(sketch_of(tiny(name)))][:2]
    found = []
    for move in MOVES.values():
        grid = [dict(zip(move.options, values, strict=True)) for values in product(*move.options.values())]
        spread = islice(grid, 0, None, max(1, len(grid) // each))
        found += [(box, move.name, options) for options in spread for box in boxes]
    return found


def try_all(name: str, each: int, run: int) -> None:
    """Every change that has a place gives a design that reads back; each `run`-th is run with gradients."""
    design = tiny(name)
    sketch = sketch_of(design)
    for place, (box, move, options) in enumerate(changes(name, each)):
        new = MOVES[move](sketch, box, options)
        if new is None:
            continue
        made = apply(design, move, box, **options)
        assert made is not None, (box, move, options)
        assert made.hash != design.hash
        if place % run == 0:
            assert ta.load(made.to_yaml()).hash == made.hash
            finite(made)


@pytest.mark.parametrize("name", ["mhsa", "gqa", "linear", "hard_fish", "mla", "epa"])
def test_moves_where_they_apply(name: str) -> None:
    try_all(name, 2, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in attentions() if name not in JOINED])
def test_every_move_on_every_design(name: str) -> None:
    try_all(name, 3, 9)


def test_the_checker_refuses_next_to_nothing_of_what_moves_make() -> None:
    refused = []
    for name in ("mhsa", "gqa", "mqa", "thsa", "mgk", "fmm2", "talking_heads", "epa_vkqo", "differential"):
        sketch = sketch_of(tiny(name))
        for box, move, options in changes(name, 1):
            new = MOVES[move](sketch, box, options)
            problems = ta.check(data_of(new)) if new is not None else []
            refused += [(name, move, p.message) for p in problems if p.severity == "error"]
    assert refused == []


NOWHERE = [
    ("share", "mlp", {}),
    ("core", "linear", {}),
    ("kernel", "linear", {}),
    ("split", "band", {}),
    ("mixture", "alibi", {}),
    ("group", "mqa", {}),
    ("experts", "mhsa", {"e": 2, "k": 2}),
    ("gate", "mhsa", {"k": 8}),
    ("latent", "mhsa", {"c": 512}),
    ("mix", "head_gated", {"e": 2}),  # each query picks 4
]


@pytest.mark.parametrize(("move", "name", "options"), NOWHERE)
def test_a_move_without_a_place_is_none(move: str, name: str, options: dict[str, Any]) -> None:
    assert apply(ta.load(name), move, **options) is None


def test_a_move_leaves_its_design_as_it_was() -> None:
    design = ta.load("mhsa")
    before = design.to_yaml()
    for name in MOVES:
        apply(design, name)
    assert design.to_yaml() == before


def test_what_a_move_writes_reads_like_a_file() -> None:
    made = apply(ta.load("mhsa"), "experts", of="v", e=5, k=2)
    assert made is not None
    text = made.to_yaml()
    assert text.partition("diagram:\n")[2] == (
        "  Q: x[n f] Wq[f h d] -> n h d\n"
        "  K: memory[m f] Wk[f h d] -> m h d\n"
        "  Gs:\n"
        "    topk: e\n"
        "    k: k\n"
        "    of:\n"
        "      map: sigmoid\n"
        "      of: memory[m f] Ss[f h e] -> m h e\n"
        "  V: Gs[m h e] memory[m f] Wv[f h d e] -> m h d\n"
        "  A:\n"
        "    softmax: m\n"
        "    scale: d ** -0.5\n"
        "    of: Q[n h d] K[m h d] -> h n m\n"
        "  y: A[h n m] V[m h d] Wo[h d f] -> n f\n"
        "output: y\n"
    )


MISTAKES = [
    (("shrae", {}), "there is no move 'shrae'; did you mean 'share'?"),
    (("share", {"h": 2}), "the move 'share' has no option 'h'; known here: g."),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_a_mistaken_call(call: tuple[str, dict[str, int]], message: str) -> None:
    name, options = call
    assert refusal(apply, ta.load("mhsa"), name, **options) == message
