"""Every rule alone: outputs and gradients stay, by float64 and by proof; a second run changes nothing."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.graph import Graph, build
from tensornet_attn.nn.initial import initial
from tensornet_attn.rewrite.engine import CAP, Rule, Trace, everywhere, rewritten
from tensornet_attn.rewrite.table import RULES, SCORES
from tests.rewrite.proof import prove

from .diagrams import KINDS
from .oracle import results

BEFORE = {"one map for all": ("split",), "values side by side": ("mixed map into its reader",)}
AROUND_A = {rule.name for rule in SCORES.rules}
DRAWS = 12


def drawn(name: str, seed: int) -> Graph:
    """A random diagram in which the rule may fire, after the rules that it builds on."""
    draw = random.Random(f"{name} {seed}")
    graph = build(ta.load(draw.choice(KINDS[name])(draw)), causal=draw.random() < 0.5)
    return everywhere(graph, [RULES[other] for other in BEFORE.get(name, ())])[0]


def run(graph: Graph, rule: Rule) -> tuple[Graph, Trace]:
    return rewritten(graph, "A", (rule,)) if rule.name in AROUND_A else everywhere(graph, (rule,))


def leaves_of(graph: Graph, seed: int, lengths: dict[str, int]) -> dict[str, Tensor]:
    """Random inputs (a batch of two) and weights, as stored; `pi`-like positive values are not needed here."""
    generator = torch.Generator().manual_seed(seed)
    sizes = graph.values | lengths
    shapes = {t.name: (2, *(int(sizes[leg]) for leg in t.legs)) for t in graph.of_role("input")}
    shapes |= {t.name: initial(t, graph).shape for t in graph.of_role("weight")}
    make = {"dtype": torch.float64, "generator": generator}
    return {name: torch.randn(shape, **make).requires_grad_() for name, shape in shapes.items()}


def equal(graph: Graph, made: Graph, seed: int, n: int) -> None:
    """Outputs and gradients of all inputs and weights, to 1e-12 of the largest number."""
    lengths = {str(graph.query): n, str(graph.key): n}
    leaves = leaves_of(graph, seed, lengths)
    states = {t.name: initial(t, graph).double() for t in graph.of_role("state")}
    masks = {"key_mask": torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.8}
    for want, got in zip(
        results(graph, leaves, lengths, states, **masks), results(made, leaves, lengths, states, **masks), strict=True
    ):
        scale = max(1.0, want.detach().abs().max().item())
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_alone(name: str) -> None:
    fired = 0
    for seed in range(DRAWS):
        graph = drawn(name, seed)
        made, trace = run(graph, RULES[name])
        fired += bool(trace)
        assert run(made, RULES[name]) == (made, ())
        equal(graph, made, seed, n=seed % 4 + 1)
        assert prove(graph, made).proved
    assert fired >= DRAWS // 3


def test_a_relu_stays_in_a_sum_that_masks_act_in() -> None:
    """The sum of a causal layer leaves out later keys; a product in its place would add them."""
    design = {
        "tensornet": 1,
        "name": "rows",
        "legs": {"n": "query 8", "m": "key 8", "k": 5, "f": 3},
        "inputs": {"x": "n f", "memory": {"legs": "m f", "default": "x"}},
        "weights": {"P": "m k", "W": "k f"},
        "diagram": {
            "S": "x[n f] memory[m f] -> n m",
            "A": {"sum": "m", "of": {"map": "relu", "of": "P[m k] S[n m] -> n m k"}},
            "y": "A[n k] W[k f] -> n f",
        },
        "output": "y",
    }
    oracle, module = (make(design, causal=True, dtype=torch.float64) for make in (ta.reference, ta.compile))
    module.load_state_dict(oracle.state_dict())
    x = torch.randn(2, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(module(x), oracle(x))


def test_every_rule_has_its_diagrams_and_its_algebra() -> None:
    assert KINDS.keys() == RULES.keys()
    assert all(" -> " in rule.algebra for rule in RULES.values())


def test_rules_around_every_step_without_end_are_named() -> None:
    graph = build(ta.load("mhsa"))
    with pytest.raises(RuntimeError) as error:
        everywhere(graph, (Rule("again", "a -> a", lambda graph, place: graph if place == "K" else None),))
    assert str(error.value) == "the rewrite 'again' never stops firing at 'K' of 'mhsa'."
    assert CAP == 64
