"""Every special case that a shipped design claims is one: at the weights it names both give the same, in float64."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.convert.values import Weights, fill, lifted
from tensornet_attn.special import embed, special_cases
from tests.designs.case import BOTH
from tests.designs.cases import CASES, drawn, inputs_of

EDGES = sorted(special_cases().edges)


def causals(general: str, special: str) -> list[bool | None]:
    """What both can be compiled for; only causal where the entry says so."""
    if special_cases().edges[general, special]["causal"]:
        return [True]
    allowed = [set(CASES[name].causal) for name in (general, special)]
    return sorted(allowed[0] & allowed[1], key=str)


@pytest.mark.parametrize(
    ("general", "special", "causal"), [(*edge, causal) for edge in EDGES for causal in causals(*edge)]
)
def test_a_design_is_its_special_case_at_the_weights_it_names(general, special, causal):
    case = CASES[special]
    design = ta.load(special, legs=case.legs, settings=case.settings)
    small = drawn(ta.reference(design, causal, dtype=torch.float64))
    step = embed(ta.load(general), special, design)
    big = ta.reference(step.general, causal, dtype=torch.float64).eval()
    fill(big, lifted(step, Weights(dict(small.state_dict()), {}, {})).values)
    inputs = inputs_of(special)
    needed = [tensor for tensor in big.plan.graph.of_role("input") if tensor.default is None]
    # a second input is the first again, so that self-attention can be compared with cross
    wanted, got = small(*inputs), big(*inputs, *[inputs[0]] * (len(needed) - len(inputs)))
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


def test_every_edge_is_tested():
    assert all(causals(*edge) for edge in EDGES)
    assert set(BOTH) == {True, False}
