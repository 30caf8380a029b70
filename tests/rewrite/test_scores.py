"""Rewrites of scores: what fires where, that nothing fires twice, and that the function stays (float64, gradients)."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.rewrite.engine import CAP, Rule, rewritten
from tensornet_attn.rewrite.scores import RULES
from tests.designs.cases import drawn, same
from tests.plan.decay_cases import FORGETTING

FIRED = {
    "mhsa": [],
    "hard_fish": ["core into the query"],
    "thsa": ["core into the query"],
    "thsa_low_rank": ["core into the query"],
    "skip_left": ["core into the query"],
    "gaussian": ["features side by side"],
    "mgk": ["joint keys", "features side by side"],
    "softmax_mgk": ["joint keys", "features side by side"],
    "transformer_xl": [],
    "gfish": [],
    "alibi": ["distance in two", "features side by side"],
}


@pytest.mark.parametrize("name", FIRED)
def test_what_fires(name: str) -> None:
    graph, trace = rewritten(build(ta.load(name)), "A", RULES)
    assert [firing.rule.name for firing in trace] == FIRED[name]
    assert rewritten(graph, "A", RULES) == (graph, ())


def variant(parent: str, of: str, **sections: object) -> dict:
    box = {"softmax": "m", "scale": "d ** -0.5", "of": of}
    return {"tensornet": 1, "name": "variant", "extends": parent, "diagram": {"A": box}, **sections}


TEMPERATURE = {"weights": {"Wt": "f h"}}
DESIGNS = {
    "gathered": variant("mhsa", "Q[n h d] K[m h d] + u[h d] K[m h d] -> h n m", weights={"u": "h d"}),
    "gathered with signs": variant(
        "mhsa", "0.5 * u[h d] K[m h d] - 2 * Q[n h d] K[m h d] -> h n m", weights={"u": "h d"}
    ),
    "core and a bias of the keys": {
        "tensornet": 1,
        "name": "variant",
        "extends": "hard_fish",
        "diagram": {
            "k2": "0.5 * K[m g d] K[m g d] P[g h] -> m h",
            "A": {"softmax": "m", "of": "P[g h] Q[n g d] K[m g d] - k2[m h] -> h n m"},
        },
    },
    "a bias of places": variant(
        "mhsa", "Q[n h d] K[m h d] + P[m h] -> h n m", legs={"m": "key 1024"}, weights={"P": "m h"}
    ),
    "keys that are weights, and a bias of tokens": variant(
        "mhsa", "Q[n h d] P[m h d] + b[m h] -> h n m", legs={"m": "key 1024"}, weights={"P": "m h d", "B": "f h"}
    ),
    "distances": variant(
        "mhsa",
        "Q[n h d] K[m h d] - u[h] gap[n m] -> h n m",
        weights={"u": "h"},
        constants={"gap": {"legs": "n m", "value": "distance"}},
    ),
    "distances, and numbers that say nothing": variant(
        "mhsa",
        "Q[n h d] K[m h d] - u[h] gap[n m] + u[h] + 3 -> h n m",
        weights={"u": "h"},
        constants={"gap": {"legs": "n m", "value": "distance"}},
    ),
    "a temperature of the key": variant("mhsa", "t[m h] Q[n h d] K[m h d] -> h n m", **TEMPERATURE),
    "a temperature of the query": variant("mhsa", "t[n h] Q[n h d] K[m h d] t[n h] -> h n m", **TEMPERATURE),
    "a metric": variant(
        "mhsa",
        "w[h d] Q[n h d] K[m h d] - 0.5 * w[h d] K[m h d] K[m h d] - 0.5 * w[h d] Q[n h d] Q[n h d] -> h n m",
        legs={"d": "head f / h"},
        weights={"w": "h d"},
    ),
    "squared distances": variant("mhsa", "2 * Q[n h d] K[m h d] - K[m h d] K[m h d] - Q[n h d] Q[n h d] -> h n m"),
    "a vector of other keys": variant(
        "mhsa", "Q[n h d] K[m h d] + u[h d] V[m h d] -> h n m", legs={"d": "head f / h"}, weights={"u": "h d"}
    ),
    "two steps": variant(
        "mhsa", "S[h n m] + 0.5 * R[h n m] -> h n m", legs={"a": 2}, weights={"Wp": "f h a", "Wr": "f a"}
    ),
    "two products": variant("mhsa", "Q[n h d] K[m h d] - 0.3 * x[n f] x[m f] -> h n m"),
}


for title in ("a temperature of the key", "a temperature of the query"):
    leg = "m" if "key" in title else "n"
    DESIGNS[title]["diagram"] = {"t": {"map": "softplus", "of": f"x[{leg} f] Wt[f h] -> {leg} h"}} | DESIGNS[title][
        "diagram"
    ]
DESIGNS["two steps"]["diagram"] = {
    "S": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m",
    "Qr": {"rope": "n", "along": "a", "of": "x[n f] Wp[f h a] -> n h a"},
    "Kr": {"rope": "m", "along": "a", "of": "x[m f] Wr[f a] -> m a"},
    "R": "Qr[n h a] Kr[m a] -> h n m",
} | DESIGNS["two steps"]["diagram"]
MORE = DESIGNS["keys that are weights, and a bias of tokens"]
MORE["diagram"] = {"b": "x[m f] B[f h] -> m h"} | MORE["diagram"] | {"K": None}
MORE["weights"]["Wk"] = None


@pytest.mark.parametrize("title", DESIGNS)
@pytest.mark.parametrize("causal", [False, True])
def test_rewritten_designs_are_the_same_function(title: str, causal: bool) -> None:
    legs = {"f": 24, "h": 3} | ({"g": 2} if "core" in title else {})
    design = ta.load(DESIGNS[title], legs=legs)
    oracle = drawn(ta.reference(design, causal, dtype=torch.float64))
    module = ta.compile(design, "torch", causal, dtype=torch.float64).eval()
    module.load_state_dict(oracle.state_dict())
    assert "attend(" in module.source
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    key_mask = torch.rand(2, 7) > 0.3
    outputs = [made(x, key_mask=key_mask) for made in (module, oracle)]
    same(*outputs, "output")
    for output in outputs:
        output.square().sum().backward()
    for (name, mine), theirs in zip(module.named_parameters(), oracle.parameters(), strict=True):
        same(mine.grad, theirs.grad, name)


def test_a_constant_of_the_query_is_dropped_where_its_weights_stay_in_use() -> None:
    own = variant("mhsa", "Q[n h d] K[m h d] + q2[n h] -> h n m")
    own["diagram"] = {"q2": "Q[n h d] Q[n h d] -> n h"} | own["diagram"]
    graph, trace = rewritten(build(ta.load(own)), "A", RULES)
    assert [firing.rule.name for firing in trace] == ["constant dropped"]
    assert "q2" not in graph.step
    own = own | {"weights": {"u": "f h"}, "diagram": own["diagram"] | {"q2": "x[n f] u[f h] -> n h"}}
    graph, trace = rewritten(build(ta.load(own)), "A", RULES)
    assert [firing.rule.name for firing in trace] == ["features side by side"]  # u would be read no more
    assert "q2" in graph.step


def test_a_rule_without_end_is_named() -> None:
    graph = build(ta.load("mhsa"))
    with pytest.raises(RuntimeError) as error:
        rewritten(graph, "A", (Rule("again", "a -> a", lambda graph, place: graph),))
    assert str(error.value) == "the rewrite 'again' never stops firing at 'A' of 'mhsa'."
    assert CAP == 64


@pytest.mark.parametrize(("more", "fired"), [({}, True), ({"scale": 0.5}, False), ({"dropout": 0.1}, False)])
def test_a_mixture_of_keys_is_one_softmax_where_nothing_stands_between(more: dict, fired: bool) -> None:
    """softmax of c logsumexp_r L is no joint softmax, and dropout would draw for every key of a position."""
    box = {"softmax": "m", **more, "of": {"logsumexp": "r", "of": "Q[n h d] K[m r h d] -> r h n m"}}
    design = ta.load(variant("mhsa", "") | {
        "legs": {"r": 2}, "weights": {"Wk": "f r h d"},
        "diagram": {"K": "x[m f] Wk[f r h d] -> m r h d", "A": box},
    })  # fmt: skip
    assert bool(rewritten(build(design), "A", RULES)[1]) is fired


@pytest.mark.parametrize("design", ["alibi", FORGETTING], ids=["positions", "sums of gates"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, "autocast"])
def test_numbers_that_grow_with_the_length_cost_no_digits(design: object, dtype: torch.dtype | str) -> None:
    """At n = 2,000 sums of gates come to 1,400: numbers of 16 bits that are so large lie 1 to 8 apart.

    In float32 the sums themselves have an error of 1e-5, the reference's too.
    """
    design = ta.load(design, legs={"f": 32, "h": 4})
    cast = dtype == "autocast"
    module = ta.compile(design, "torch", dtype=torch.float32 if cast else dtype)
    oracle = ta.compile(design, "reference", dtype=torch.float64)
    oracle.load_state_dict(module.state_dict())
    assert "exact_columns(" in module.source
    assert "attend(" in module.source
    x = torch.randn(1, 2000, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x.to(module.Wq.dtype).double()
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        found = module(x.to(module.Wq.dtype))
    wanted = oracle(x)
    allowed = {torch.float32: 3e-5, torch.float16: 2e-3}.get(dtype, 1e-2)
    assert (found.double() - wanted).norm() < allowed * wanted.norm()
