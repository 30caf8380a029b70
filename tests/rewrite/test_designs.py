"""Shipped designs through all rules: the function stays, and what is known to be one design becomes one graph."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.graph import Graph, build
from tensornet_attn.rewrite import simplified
from tensornet_attn.rewrite.table import SCORES, shown, steps_of
from tensornet_attn.rewrite.whole import gone
from tests.agreement import same_outcome
from tests.designs.cases import CASES, drawn, inputs_of
from tests.refusals import refusal

from .oracle import results


def oracle(name: str) -> ta.CompiledDesign:
    case = CASES[name]
    design = ta.load(name, legs=case.legs, settings=case.settings)
    return drawn(ta.reference(design, dtype=torch.float64), positive=case.positive)  # type: ignore[return-value]


@pytest.mark.parametrize("name", CASES)
def test_every_group_leaves_the_function_as_it_is(name: str) -> None:
    module, inputs = oracle(name), inputs_of(name)
    graph = module.plan.graph
    lengths = {}
    for tensor, x in zip(graph.of_role("input"), [*inputs, *inputs], strict=False):
        lengths |= {leg: size for leg, size in zip(tensor.legs, x.shape[1:], strict=True) if graph.leg[leg].sequence}
    lengths.setdefault(str(graph.key), lengths[str(graph.query)])  # keys that losses alone meet, of no input
    state = {key: value for key, value in module.state_dict().items() if graph.tensor[key].role == "state"}
    leaves = {t.name: x.requires_grad_() for t, x in zip(graph.of_role("input"), inputs, strict=False)}
    leaves |= {key: p.detach().requires_grad_() for key, p in module.named_parameters()}
    before: dict[Graph, list[torch.Tensor]] = {}
    for group, start, trace in steps_of(graph):
        if not trace:
            continue
        want = before.setdefault(start, results(start, leaves, lengths, state))
        for got, wanted in zip(results(trace[-1].graph, leaves, lengths, state), want, strict=True):
            scale = max(1.0, wanted.abs().max().item())
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12 * scale, msg=lambda m, g=group: f"{g.name}: {m}")


@pytest.mark.parametrize("name", CASES)
def test_a_simple_diagram_is_simple_already(name: str) -> None:
    made, trace = simplified(build(ta.load(name)))
    assert simplified(made) == (made, ())
    fired = {
        "mhsa_core": ["split", "one map for all", "identity"],
        "hard_gfish": ["relu of a weight"],
        "hard_glfish": ["relu of a weight", "another name"],  # without the weight, the relu is of KV itself
    }
    assert [firing.rule.name for firing in trace] == fired.get(name, [])


def test_mhsa_core_becomes_mhsa_and_keeps_its_weights_as_they_are_stored() -> None:
    graph = build(ta.load("mhsa_core"))
    made, trace = simplified(graph)
    assert made.hash == build(ta.load("mhsa")).hash != graph.hash
    assert [t.name for t in made.tensors] == ["x", "memory", "Wq", "Wk", "Wv", "Wo"]
    assert all(made.shape_of(t.name) == graph.shape_of(t.name) for t in made.of_role("weight"))
    assert made.tensor["Wo"].stored == (("h", "d"), ("f",))
    assert gone(graph, trace) == {}


def simple_module(name: str) -> tuple[ta.CompiledDesign, ta.CompiledDesign]:
    """A module that runs the simple form of a design, and its reference, with the same weights."""
    want, case = oracle(name), CASES[name]
    design = ta.load(name, legs=case.legs, settings=case.settings)
    made = ta.compile(design, "torch", dtype=torch.float64).eval()
    made.load_state_dict(want.state_dict())
    return made, want


def test_split_weights_run_as_they_are_stored() -> None:
    made, want = simple_module("mhsa_core")
    (x,) = inputs_of("mhsa_core")
    mask = torch.rand(2, x.shape[1], x.shape[1]) < 0.7
    for masks in ({}, {"mask": mask}, {"key_mask": mask[:, 0]}):
        same_outcome(made, want, [x], rtol=1e-10, **masks)
    assert "self.Wo.unflatten(0, (3, -1))" in made.source
    assert "attend(" in made.source


def test_a_mask_by_a_leg_that_is_apart_is_refused() -> None:
    made, want = simple_module("mhsa_core")
    (x,) = inputs_of("mhsa_core")
    n = x.shape[1]
    mask = torch.ones(2, want.design.legs["r"], n, n, dtype=torch.bool)
    assert want(x, mask=mask).isfinite().all()
    assert refusal(made, x, mask=mask) == (
        "mhsa_core: mask has 4 dimensions; 'A' is planned as one map for many entries of its legs, so give [n, m] or "
        "[batch..., n, m], or compile with backend='reference'."
    )


def test_text() -> None:
    lines = shown(build(ta.load("talking_heads"))).splitlines()
    start = lines.index("values side by side: chosen by the search for the order of a product")
    assert lines[start : start + 10] == [
        "values side by side: chosen by the search for the order of a product",
        "  y: mixed map into its reader: B = p * X..; Z = .. + c * B .. -> Z = .. + c * (B) .. if mixes maps",
        "    B = U, X = A Pw, Z = y",
        "    - U[e n m] = A[h n m] Pw[h e]",
        "    - y[n f] = U[e n m] V[m e d] Wo[e d f]",
        "    + y[n f] = A[h n m] Pw[h e] V[m e d] Wo[e d f]",
        "  y: values side by side: Z = .. + c * A[map n] V[m no n] .. -> Z = .. + c * {A V} .. if wide factor",
        "    A = A, V = V, Z = y",
        "    - y[n f] = A[h n m] Pw[h e] V[m e d] Wo[e d f]",
        "    + A.o[h n e d] = A[h n m] V[m e d]",
    ]
    assert any(line.startswith(f"{SCORES.name}: ") for line in lines)
    small = {"tensornet": 1, "name": "small", "legs": {"n": "query", "f": 2}, "inputs": {"x": "n f"}}
    small |= {"diagram": {"y": {"map": "relu", "of": "x"}}, "output": "y"}
    assert shown(build(ta.load(small))) == "small: no rewrite applies."
