"""Which softmax boxes become fused attention, why others do not, and that the result is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.target import Target
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Contraction
from tensornet_attn.graph.pairs import primitive, split_products
from tensornet_attn.plan.make import make_plan
from tests.agreement import modules, same_outcome

FUSED = "\n  A: fused attention: scaled_dot_product_attention, the scores are never stored"
Q, K, V = "x[n f] Wq[f h d] -> n h d", "x[m f] Wk[f h d] -> m h d", "x[m f] Wv[f h e] -> m h e"
SCORES, READ = "Q[n h d] K[m h d] -> h n m", "A[h n m] V[m h e] Wo[h e f] -> n f"
A = {"softmax": "m", "scale": "d ** -0.5", "of": SCORES}
DESIGN: dict[str, Any] = {
    "tensornet": 1,
    "name": "one",
    "legs": {"n": "query", "m": "key", "f": 4, "h": "head 2", "g": "head 2", "d": "head 5", "e": 3},
    "inputs": {"x": "n f"},
    "weights": {"Wq": "f h d", "Wk": "f h d", "Wv": "f h e", "Wo": "h e f", "u": "d", "r": "h f", "t": "h", "w": "f h"},
    "output": "y",
}
VARIANTS: dict[str, tuple[dict[str, Any], str | None]] = {  # why not fused; None where rewriting makes it fit
    "map used twice": (
        {"Q": Q, "K": K, "V": V, "A": A, "y": READ.replace("->", "+ A[h n m] V[m h e] Wo[h e f] ->")},
        None,
    ),
    "scores used elsewhere": (
        {
            "Q": Q,
            "K": K,
            "V": V,
            "S": SCORES,
            "A": {"softmax": "m", "of": "S"},
            "B": {"max": "m", "of": "S"},
            "y": READ.replace("->", "+ B[h n] r[h f] ->"),
        },
        None,
    ),
    "scores of three": ({"Q": Q, "K": K, "V": V, "A": A | {"of": SCORES.replace("->", "u[d] ->")}, "y": READ}, None),
    "sum of products": (
        {"Q": Q, "K": K, "V": V, "A": A | {"of": SCORES.replace("->", "+ t[h] ->")}, "y": READ},
        "the scores sum 2 products",
    ),
    "box between": (
        {"Q": Q, "K": K, "V": V, "A": A, "B": {"map": "relu", "of": "A"}, "y": READ.replace("A[", "B[")},
        "a box is between the attention map and the values",
    ),
    "box inside": (
        {"Q": Q, "K": K, "V": V, "A": A | {"of": {"map": "tanh", "of": SCORES}}, "y": READ},
        "the scores are a 'map' box, not a product of a query and a key tensor",
    ),
    "nothing contracted": (
        {"q": "x[n f] w[f h] -> n h", "V": V, "A": {"softmax": "m", "of": "q[n h] q[m h] -> h n m"}, "y": READ},
        "no leg is contracted between query and key",
    ),
    "key leg kept": (
        {
            "Q": Q,
            "K": K,
            "V": V,
            "A": A,
            "B": "A[h n m] V[m h e] -> h n m e",
            "y": {"sum": "m", "of": "B[h n m e] Wo[h e f] -> m n f"},
        },
        "the product with the attention map keeps the key leg",
    ),
    "other names": ({"Q": Q, "K": K, "V": V, "A": A, "y": "A[g n m] V[m g e] Wo[g e f] -> n f"}, None),
    "transposed": (
        {
            "Q": Q,
            "K": K,
            "V": V,
            "T": SCORES,
            "A": {"softmax": "m", "of": "T[g n m]"},
            "y": READ.replace("A[h", "A[g").replace("[m h", "[m g").replace("[h e", "[g e"),
        },
        None,
    ),
}


def design_of(diagram: dict[str, Any]) -> dict[str, Any]:
    """The design with this diagram, without the weights and legs that it does not use."""
    data = DESIGN | {"diagram": diagram}
    for _ in range(2):
        unused = {p.message.split("'")[1] for p in ta.check(data) if p.code == "unused"}
        data |= {part: {k: v for k, v in data[part].items() if k not in unused} for part in ("weights", "legs")}
    return data


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_fused_and_why_not(name: str) -> None:
    diagram, reason = VARIANTS[name]
    told = ta.explain(design_of(diagram), "torch", device_costs="generic")
    assert (FUSED in told) == (reason is None)
    assert reason is None or f"\n    not fused attention: {reason}" in told


@pytest.mark.parametrize("name", ta.list_designs())
def test_schedules_are_primitive_and_a_second_run_changes_nothing(name: str) -> None:
    plan = make_plan(build(ta.load(name)))
    assert all(primitive(step) for step in plan.schedule.steps)
    for step in plan.schedule.steps:
        if isinstance(step.op, Contraction):
            assert all(len(term.factors) <= 2 for term in step.op.terms)
    assert split_products(plan.schedule) == plan.schedule


@pytest.mark.parametrize("reader", ["A[h n m] V[m h e] -> n h e", "2 * A[h n m] V[m h e] - x[n h] u[e] -> n e h"])
@pytest.mark.parametrize("scores", ["h n m", "m h n", "n m h"])
def test_any_layout_and_any_reader(scores: str, reader: str) -> None:
    data = DESIGN | {
        "legs": {"n": "query", "m": "key", "h": "head 2", "d": 5, "e": 3},
        "inputs": {"x": "n h"},
        "weights": {"Wq": "h d", "Wk": "h d", "Wv": "h e"} | ({"u": "e"} if "u" in reader else {}),
        "diagram": {
            "Q": "x[n h] Wq[h d] -> n h d",
            "K": "x[m h] Wk[h d] -> m h d",
            "V": "x[m h] Wv[h e] -> m h e",
            "A": {"softmax": "m", "scale": "d ** -0.5", "of": f"-(0.5) * K[m h d] Q[n h d] -> {scores}"},
            "y": reader.replace("A[h n m]", f"A[{scores}]"),
        },
    }
    oracle, module = modules(data)
    assert "attend(" in module.source
    x = torch.randn(2, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(module(x), oracle(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "legs", "fused"),
    [
        ("hard_fish", {"g": 2, "h": 4, "d": 21}, {16: True, 64: True, 1024: True}),
        ("mgk", {"h": 2, "r": 2, "d": 25}, {32: True, 128: True, 1024: True}),
    ],
)
def test_queries_that_a_rewriting_makes_are_paid_by_all_keys(
    name: str, legs: dict[str, int], fused: dict[int, bool]
) -> None:
    """As measured on one core: they cost less than fused attention gains, also at lengths with few blocks."""
    design = ta.load(name, legs={"f": 64, **legs})
    for n, wanted in fused.items():
        assert (FUSED in ta.explain(design, "torch", True, n=n, device_costs="generic")) == wanted, n


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ("g j", "g", "g j"),
        ("g j", "g", "j"),
        ("g j", "j", "g"),
        ("g j", "j", ""),
        ("g", "j", "g"),
        ("g", "g j", "j"),
        ("", "g j", "g j"),
        ("", "g j", ""),
        ("g j", "g r", "g j"),
        ("j", "g r", "g"),
    ],
)
def test_query_key_and_value_on_head_legs_of_their_own(query: str, key: str, value: str, causal: bool) -> None:
    legs = {"n": "query", "m": "key", "f": 6, "g": "head 2", "j": "head 3", "d": "head 4", "e": 5, "r": 2}
    scores = f"Q[n {query} d] K[m {key} d] -> g j n m"
    of = {"logsumexp": "r", "of": scores.replace("-> g j", "-> r g j")} if "r" in key else scores
    design = {
        "tensornet": 1,
        "name": "own_heads",
        "legs": {leg: size for leg, size in legs.items() if leg != "r" or "r" in key},
        "inputs": {"x": "n f"},
        "weights": {"Wq": f"f {query} d", "Wk": f"f {key} d", "Wv": f"f {value} e", "Wo": "g j e f"},
        "diagram": {
            "Q": f"x[n f] Wq[f {query} d] -> n {query} d",
            "K": f"x[m f] Wk[f {key} d] -> m {key} d",
            "V": f"x[m f] Wv[f {value} e] -> m {value} e",
            "A": {"softmax": "m", "of": of},
            "y": f"A[g j n m] V[m {value} e] Wo[g j e f] -> n f",
        },
        "output": "y",
    }
    oracle, module = modules(design, causal=causal, n=64)  # so short that blocks of queries do not pay off
    assert "attend(" in module.source
    for shape in ((2, 7, 6), (7, 6), (0, 7, 6)):
        same_outcome(module, oracle, [torch.randn(*shape, dtype=torch.float64)], 1e-10, 1e-12)


def test_keys_that_are_spread_over_heads_are_paid_by_all_queries() -> None:
    """As measured on one core: wide keys of few positions, repeated for every value head, cost more than they gain."""
    for legs, fused in (
        ({"f": 512, "h": 8}, {128: False, 512: False}),
        ({"f": 256, "h": 8}, {512: False}),
        ({"f": 64, "h": 4, "d": 4, "e": 27}, {128: True}),
    ):
        design = ta.load("skip_left", legs=legs)
        for n, wanted in fused.items():
            assert (FUSED in ta.explain(design, "torch", True, n=n, device_costs="generic")) == wanted, (legs, n)


WIDE: dict[str, tuple[dict[str, Any], bool]] = {
    "two products": (
        {
            "legs": {"e": 64},
            "weights": {"Wp": "f h e", "Wr": "f h e"},
            "diagram": {
                "P": "x[n f] Wp[f h e] -> n h e",
                "R": "x[m f] Wr[f h e] -> m h e",
                "A": {"softmax": "m", "of": "Q[n h d] K[m h d] + P[n h e] R[m h e] -> h n m"},
            },
        },
        True,
    ),
    "a temperature of the keys": (
        {
            "legs": {},
            "weights": {"Wt": "f h"},
            "diagram": {"t": "x[m f] Wt[f h] -> m h", "A": {"softmax": "m", "of": "t[m h] Q[n h d] K[m h d] -> h n m"}},
        },
        True,
    ),
    "a core": (
        {
            "legs": {"g": "head 8"},
            "weights": {"C": "h g", "Wq": "f g d", "Wk": "f g d"},
            "diagram": {
                "Q": "x[n f] Wq[f g d] -> n g d",
                "K": "x[m f] Wk[f g d] -> m g d",
                "A": {"softmax": "m", "of": "C[h g] Q[n g d] K[m g d] -> h n m"},
            },
        },
        False,
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_wide_scores_are_priced_as_measured(name: str) -> None:
    """d 128, e 64, n 1,024 on one core: fused attention takes half of the time of the first two, twice the last's."""
    own, fused = WIDE[name]
    legs = {"f": 1024, "h": "head 8", **own["legs"]}
    told = ta.compile(
        {"tensornet": 1, "name": "wide", "extends": "mhsa", **own, "legs": legs}, device_costs="generic"
    ).explain()
    assert (FUSED in told) == fused


def test_values_much_narrower_than_keys_have_a_price() -> None:
    graph = build(ta.load("thsa", legs={"f": 256, "r": 64, "s": 512}))
    plan = make_plan(graph)
    assert plan.region_of("K") == "K"
    text = plan.explain()
    assert "K: absorbed weights: with 'Wk' on the query side and 'memory' as keys" in text
    (told,) = [line for line in text.splitlines() if "with values padded to the width 256 of keys, attention" in line]
    assert told.endswith(" times as long at the rates of cpu")  # the other lines have times of the target's device
    measured = make_plan(graph, target=Target(device=DEVICES["cpu"]))
    assert "rates of cpu" not in measured.explain()
