"""Blends of attention maps become blends of what the maps read, where each map can then be lowered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.cost.devices import GENERIC
from tensornet_attn.graph import build
from tensornet_attn.graph.model import Graph
from tensornet_attn.plan.distribute import lower_distribution
from tensornet_attn.plan.lowering import Lowered
from tensornet_attn.reference import evaluate

from .linear_cases import READ, SCORES, diagram
from .test_linear import agree, modules

NEAR = {"softmax": "m", "scale": "d ** -0.5", "of": SCORES}
FAR, KEPT = {"normalize": "m", "of": SCORES}, {"keep": "m", "of": "Qc[n d] Kc[m d] -> n m"}
GROUPS = {"softmax": "m", "of": "Qg[n g d] Kg[m g d] -> g n m"}
MANY = {"softmax": "m", "of": "Qj[n h j d] K[m h d] -> j h n m"}
DENSE = {"softmax": "m", "of": {"map": "tanh", "of": SCORES}}
TWO = {"near": NEAR, "far": FAR}
BLENDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "weighted": (
        TWO | {"A": "b[h] near[h n m] - 2 * far[h n m] -> h n m", "y": READ},
        (
            "A.V[h n e] = b[h] near[h n m] V[m h e] - 2 * far[h n m] V[m h e]",
            "y[n f] = A.V[h n e] Wo[h e f]",
        ),
    ),
    "weighted by the query": (
        TWO | {"A": "q[n h] near[h n m] + far[h n m] -> h n m", "y": READ},
        (
            "A.V[h n e] = q[n h] near[h n m] V[m h e] + far[h n m] V[m h e]",
            "y[n f] = A.V[h n e] Wo[h e f]",
        ),
    ),
    "a map without heads": (
        {"near": NEAR, "far": KEPT, "A": "near[h n m] + b[h] far[n m] -> h n m", "y": READ},
        (
            "A.V[h n e] = near[h n m] V[m h e] + b[h] far[n m] V[m h e]",
            "y[n f] = A.V[h n e] Wo[h e f]",
        ),
    ),
    "one map": (
        {"far": FAR, "A": "b[h] far[h n m] -> h n m", "y": READ},
        ("A.V[h n e] = b[h] far[h n m] V[m h e]", "y[n f] = A.V[h n e] Wo[h e f]"),
    ),
    "one map in two terms": (
        TWO | {"A": "near[h n m] + b[h] far[h n m] - 0.5 * far[h n m] -> h n m", "y": READ},
        (
            "A.far[h] = b[h] - 0.5",
            "A.V[h n e] = near[h n m] V[m h e] + A.far[h] far[h n m] V[m h e]",
            "y[n f] = A.V[h n e] Wo[h e f]",
        ),
    ),
    "a blend of blends": (
        TWO | {"third": KEPT, "T": "0.5 * near[h n m] + third[n m] -> h n m"}
        | {"A": "b[h] T[h n m] + far[h n m] -> h n m", "y": READ},
        (
            "A.V[h n e] = 0.5 * b[h] near[h n m] V[m h e] + b[h] third[n m] V[m h e] + far[h n m] V[m h e]",
            "y[n f] = A.V[h n e] Wo[h e f]",
        ),
    ),
    "weighted by the key": (
        {"near": NEAR, "A": "k[m h] near[h n m] - 2 * b[h] near[h n m] -> h n m", "y": READ},
        (
            "A.near[h m] = k[m h] - 2 * b[h]",
            "A.V.A_near[m h e] = A.near[h m] V[m h e]",
            "A.V[h n e] = near[h n m] A.V.A_near[m h e]",
            "y[n f] = A.V[h n e] Wo[h e f]",
        ),
    ),
    "one of two weighted by the key": (
        TWO | {"A": "q[n h] near[h n m] k[m h] + far[h n m] -> h n m", "y": READ},
        (
            "A.V.k[m h e] = k[m h] V[m h e]",
            "A.V[h n e] = q[n h] near[h n m] A.V.k[m h e] + far[h n m] V[m h e]",
            "y[n f] = A.V[h n e] Wo[h e f]",
        ),
    ),
    "maps of several heads each": (
        {"near": MANY, "A": "Qj[n h j d] u[d] near[j h n m] -> h n m", "y": READ},
        (
            "A.V[h n e] = Qj[n h j d] u[d] near[j h n m] V[m h e]",
            "y[n f] = A.V[h n e] Wo[h e f]",
        ),
    ),
    "a map in two sums": (
        {"near": MANY, "A": "Qj[n h j d] u[d] near[j h n m] + R[g j] R[g j] near[j h n m] -> h n m", "y": READ},
        (
            "A.near[h n j] = Qj[n h j d] u[d] + R[g j] R[g j]",
            "A.V[h n e] = A.near[h n j] near[j h n m] V[m h e]",
            "y[n f] = A.V[h n e] Wo[h e f]",
        ),
    ),
    "no projection after it": (
        TWO | {"A": "near[h n m] + far[h n m] -> h n m", "O": "2 * A[h n m] V[m h e] + V[n h e] -> n h e"}
        | {"y": "O[n h e] Wo[h e f] -> n f"},
        (
            "O[n h e] = 2 * near[h n m] V[m h e] + 2 * far[h n m] V[m h e] + V[n h e]",
            "y[n f] = O[n h e] Wo[h e f]",
        ),
    ),
}  # fmt: skip
WHOLE: dict[str, tuple[dict[str, Any], dict[str, tuple[str, ...]]]] = {
    "a map that no lowering takes": (
        {"near": DENSE, "far": FAR, "A": "near[h n m] + far[h n m] -> h n m", "y": READ},
        {"A": ("the map 'near' would still be made",)},
    ),
    "read twice": (
        TWO | {"A": "near[h n m] + far[h n m] -> h n m", "y": READ.replace("->", "+ A[h n m] V[m h e] Wo[h e f] ->")},
        {},
    ),
    "heads mixed": (
        {"near": GROUPS, "far": FAR, "A": "P[g h] near[g n m] + far[h n m] -> h n m", "y": READ},
        {},
    ),
    "a leg of the values inside": (
        {"near": MANY, "A": "R[g j] near[j h n m] -> g h n m", "y": "A[g h n m] Vj[m h j e] Wp[j h e f] R[g j] -> n f"},
        {},
    ),
    "pairs beside maps": ({"far": FAR, "A": "far[h n m] + S[h n m] -> h n m", "y": READ}, {}),
    "a box between": (
        TWO | {"T": "near[h n m] + far[h n m] -> h n m", "A": {"map": "relu", "of": "T"}, "y": READ},
        {},
    ),
}


def apart(source: Any) -> tuple[Graph, Lowered]:
    graph = build(ta.load(source), False)
    return graph, lower_distribution(graph, {"n": 1024, "m": 1024}, GENERIC)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", BLENDS)
def test_each_map_reads_the_values(name: str) -> None:
    _, made = apart(diagram(BLENDS[name][0]))
    wanted = BLENDS[name][1]
    assert tuple(made.graph.to_text().splitlines()[-len(wanted) - 1 : -1]) == wanted
    assert made.refused == {}
    assert not any(line.startswith(("A[", "T[")) for line in made.graph.to_text().splitlines())
    assert lower_distribution(made.graph, {"n": 1024, "m": 1024}, GENERIC).graph == made.graph


@pytest.mark.parametrize("name", BLENDS)
def test_values_and_gradients_stay(name: str) -> None:
    graph, made = apart(diagram(BLENDS[name][0]))
    sizes = graph.values | {"n": 5, "m": 5}
    leaves = {t.name: draw(*(int(sizes[leg]) for leg in t.legs), seed=i).requires_grad_()
              for i, t in enumerate(graph.tensors)}  # fmt: skip
    results = []
    for one in (graph, made.graph):
        y = evaluate(one, leaves, lengths={"n": 5, "m": 5})["y"]
        results.append([y, *torch.autograd.grad(y.square().sum(), list(leaves.values()), materialize_grads=True)])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", WHOLE)
def test_what_unlocks_nothing_stays_and_says_why(name: str) -> None:
    source, refused = WHOLE[name]
    ours, oracle = modules(diagram(source), False)
    assert all(f"\n    not distribution: {reason}" in ours.explain() for (reason,) in refused.values())
    agree(ours, oracle, [draw(2, 5, 4), draw(2, 6, 4, seed=1)])
