"""Maps that several products read: what they read is made once for each of the values, and the result is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.devices import GENERIC
from tensornet_attn.graph import build
from tensornet_attn.plan.hoist import lower_hoists
from tensornet_attn.reference import evaluate

from .linear_cases import READ, SCORES, diagram, positive
from .test_linear import agree, draw, modules

SIZES = {"n": 1024, "m": 1024}
SOFTMAX = {"softmax": "m", "scale": "d ** -0.5", "of": SCORES}
FAR = {"normalize": "m", "of": SCORES}
TERM = "A[h n m] V[m h e] Wo[h e f]"
OTHER = "A[h n m] Vs[m e] Wo[h e f]"
READ_MORE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "in two terms": (
        {"A": SOFTMAX, "y": f"b[h] {TERM} - 0.5 * {TERM} -> n f"},
        ("A.V[h n e] = A[h n m] V[m h e]", "y[n f] = b[h] A.V[h n e] Wo[h e f] - 0.5 * A.V[h n e] Wo[h e f]"),
    ),
    "in two steps": (
        {"A": SOFTMAX, "O": "A[h n m] V[m h e] -> n h e", "y": f"q[n h] O[n h e] Wo[h e f] + {TERM} -> n f"},
        (
            "A.V[h n e] = A[h n m] V[m h e]",
            "O[n h e] = A.V[h n e]",
            "y[n f] = q[n h] O[n h e] Wo[h e f] + A.V[h n e] Wo[h e f]",
        ),
    ),
    "a blend": (
        {"near": SOFTMAX, "far": FAR, "A": "near[h n m] + b[h] far[h n m] -> h n m",
         "y": f"{TERM} + q[n h] {TERM} -> n f"},
        ("A.V[h n e] = A[h n m] V[m h e]", "y[n f] = A.V[h n e] Wo[h e f] + q[n h] A.V[h n e] Wo[h e f]"),
    ),
    "two kinds of values": (
        {"A": SOFTMAX, "y": f"{TERM} + {OTHER} -> n f"},
        (
            "A.V[h n e] = A[h n m] V[m h e]",
            "A.Vs[h n e] = A.copy[h n m] Vs[m e]",
            "y[n f] = A.V[h n e] Wo[h e f] + A.Vs[h n e] Wo[h e f]",
        ),
    ),
    "two kinds of values, one of them twice": (
        {"A": FAR, "y": f"{TERM} + {OTHER} - b[h] {TERM} -> n f"},
        (
            "A.V[h n e] = A[h n m] V[m h e]",
            "A.Vs[h n e] = A.copy[h n m] Vs[m e]",
            "y[n f] = A.V[h n e] Wo[h e f] + A.Vs[h n e] Wo[h e f] - b[h] A.V[h n e] Wo[h e f]",
        ),
    ),
}  # fmt: skip
STAYS: dict[str, dict[str, Any]] = {
    "read once": {"A": SOFTMAX, "y": READ},
    "by a box too": {"A": SOFTMAX, "T": {"max": "m", "of": "A"}, "y": f"{TERM} + T[h n] Wt[f h] -> n f"},
    "with its keys": {
        "A": SOFTMAX, "T": "A[h n m] k[m h] -> h n m", "y": f"{TERM} + T[h n m] Vs[m e] Wo[h e f] -> n f"
    },
    "values of the query": {"A": SOFTMAX, "y": f"{TERM} + A[h n m] W[n m h e] Wo[h e f] -> n f"},
    "a map that is stored": {
        "A": {"softmax": "m", "of": positive(SCORES)}, "y": f"{TERM} + {OTHER} -> n f"
    },
    "dropout": {"A": SOFTMAX | {"dropout": 0.1}, "y": f"{TERM} + {OTHER} -> n f"},
}  # fmt: skip


@pytest.mark.parametrize("name", READ_MORE)
def test_what_the_map_reads_is_made_once(name: str) -> None:
    own, wanted = READ_MORE[name]
    graph = build(ta.load(diagram(own)))
    made = lower_hoists(graph, SIZES, GENERIC).graph
    found = made.to_text().splitlines()
    assert [line for line in found if line.startswith(("A.V", "O[", "y["))] == list(wanted)
    assert lower_hoists(made, SIZES, GENERIC).graph == made
    leaves = {t.name: draw(*(graph.leg[leg].size or 5 for leg in t.legs), seed=i).requires_grad_()
              for i, t in enumerate(graph.tensors)}  # fmt: skip
    results = []
    for one in (graph, made):
        y = evaluate(one, leaves, lengths={"n": 5, "m": 5})["y"]
        results.append([y, *torch.autograd.grad(y.square().sum(), list(leaves.values()), materialize_grads=True)])
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", READ_MORE)
def test_compiled(name: str, causal: bool) -> None:
    ours, oracle = modules(diagram(READ_MORE[name][0]), causal)
    told = [region.chosen for region in ours.plan.regions]
    assert not any("rows at a time" in text or "dense softmax" in text for text in told), told
    agree(ours, oracle, [draw(2, 6, 4), draw(2, 6, 4, seed=1)], key_mask=draw(2, 6, seed=2) > -0.3)
    agree(ours, oracle, [draw(6, 4), draw(6, 4, seed=1)], mask=draw(6, 6, seed=2) > -0.3)


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name: str) -> None:
    graph = build(ta.load(diagram(STAYS[name])))
    assert lower_hoists(graph, SIZES, GENERIC).graph == graph


def test_kernels_read_several_values_of_one_map() -> None:
    """So that a map is not made apart for them."""
    graph = build(ta.load(diagram(READ_MORE["two kinds of values"][0])))
    assert lower_hoists(graph, SIZES, GENERIC, apart=False).graph == graph
