"""From trained weights to every design that contains multi-head attention: biases, rotary positions, shared keys."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tensornet_attn.convert.make import made_from
from tensornet_attn.convert.trained import TrainedAttention
from tests.convert.by_hand import attention
from tests.refusals import refusal

F, H, D, N = 24, 4, 6, 7
LATTICE = ta.special_cases()
GENERAL = sorted(nx.ancestors(LATTICE, "mhsa") | {"mhsa"})
CAUSAL = ("fmm1_causal", "fmm2_causal", "fmm3_causal", "fmm_fast_weight1", "fmm_fast_weight2")


def draw(*shape: int) -> Tensor:
    return 0.2 * torch.randn(*shape)


def trained(g: int = H, bias: bool = True, causal: bool = False, **more: float) -> TrainedAttention:
    torch.manual_seed(g)
    weights = {"Wq": draw(F, H, D), "Wk": draw(F, g, D), "Wv": draw(F, g, D), "Wo": draw(H, D, F)}
    biases = {"bq": draw(H, D), "bk": draw(g, D), "bv": draw(g, D), "bo": draw(F)} if bias else {}
    return TrainedAttention("layer (Test)", weights, biases, causal, **more)


def close(module: nn.Module, t: TrainedAttention, tolerance: float = 1e-5) -> None:
    x = torch.randn(2, N, F)
    needed = [tensor for tensor in module.plan.graph.of_role("input") if tensor.default is None]
    difference = (module.eval()(*[x] * len(needed)) - attention(t, x)).abs().max()
    assert difference < tolerance


KINDS = {
    "plain": {"bias": False},
    "biases": {},
    "causal": {"causal": True},
    "shared keys": {"g": 2},
    "rotary": {"causal": True, "rope_base": 500.0, "g": 2},
    "rotary in part": {"causal": True, "rope_base": 10000.0, "rope_fraction": 1 / 3},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GENERAL)
def test_every_design_that_contains_attention_starts_from_it(name: str, kind: str) -> None:
    layer = trained(**KINDS[kind])
    if name in CAUSAL and not layer.causal:
        with pytest.raises(ta.InputError, match="only if both are causal"):
            made_from(layer, name)
        return
    close(made_from(layer, name), layer)


@pytest.mark.parametrize("name", ["mhsa_rope", "gqa_rope", "epa_rope"])
def test_designs_with_rotary_positions_of_their_own(name: str) -> None:
    layer = trained(rope_base=10000.0, causal=True)
    module = made_from(layer, name)
    assert module.source.count("rotate(") == made_from(layer, "mhsa").source.count("rotate(")
    close(module, layer)


def test_multihead_attention_of_torch() -> None:
    layer, x = nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 5, 16)
    nn.init.normal_(layer.in_proj_bias)
    nn.init.normal_(layer.out_proj.bias)
    for name, options in (
        ("epa", {"legs": {"e": 1}, "settings": {"k": 1}}),
        ("epa", {"legs": {"e": 3}, "settings": {"k": 2}}),
        ("gqa", {}),
        ("fish", {}),
        ("mgk", {"legs": {"r": 3}}),
        ("skip_left", {"legs": {"c": 2}}),
    ):
        module = ta.convert(layer, name, **options)
        assert (module(x) - layer(x, x, x)[0]).abs().max() < 1e-5
    assert module.training == layer.training
    assert not ta.convert(layer.eval(), "thsa").training


def test_trained_layers_can_be_trained_on() -> None:
    layer = nn.MultiheadAttention(16, 4, dropout=0.1)
    module = ta.convert(layer, "thsa")
    assert "dropout" in module.source
    module(torch.randn(2, 5, 16)).square().sum().backward()
    assert all(weight.grad is not None for weight in module.parameters())
    again = ta.compile(module.design, causal=False)
    again.load_state_dict(module.state_dict())


def test_a_second_input_for_keys_and_values() -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 9, 16)
    for name in ("thsa", "mgk", "epa", "gqa", "fish"):
        module = ta.convert(layer, name, memory=True)
        assert (module(x, memory) - layer(x, memory, memory)[0]).abs().max() < 1e-5
        assert (module(x) - layer(x, x, x)[0]).abs().max() < 1e-5


def test_jitter_parts_what_starts_equal() -> None:
    layer = nn.MultiheadAttention(16, 4)
    equal, separated = ta.convert(layer, "mgk"), ta.convert(layer, "mgk", jitter=0.01)
    assert torch.equal(equal.Wk[:, 0], equal.Wk[:, 1])
    assert not torch.equal(separated.Wk[:, 0], separated.Wk[:, 1])
    assert (separated.Wv - equal.Wv).abs().max() < 0.1 * equal.Wv.abs().max()


OWN = """
tensornet: 1
name: two_scales
extends: mhsa
weights:
  t: {legs: h, init: ones}
diagram:
  A:
    softmax: m
    scale: d ** -0.5
    of: t[h] Q[n h d] K[m h d] -> h n m
contains:
  mhsa: {weights: {t: ones}}
"""


def test_a_design_of_ones_own() -> None:
    layer = trained()
    close(made_from(layer, OWN), layer)


@pytest.mark.parametrize(
    ("design", "options", "message"),
    [
        (
            "mlp",
            {},
            "self_attn (MultiheadAttention) cannot become 'mlp': no weights are known at which 'mlp' equals 'mhsa'; "
            "the nearest designs that contain it: band, cross, epa.",
        ),
        (
            "thsa",
            {"legs": {"r": 8}},
            "self_attn (MultiheadAttention) cannot become 'thsa': the requested 'r' is 8, but the trained weights need "
            "16.",
        ),
        (
            "band",
            {"settings": {"k": 5}},
            "self_attn (MultiheadAttention) cannot become 'band': the requested 'k' is 5, but the trained weights need "
            "1073741824.",
        ),
        (
            OWN.replace("{t: ones}", "{t: 2 * ones}"),
            {},
            "self_attn (MultiheadAttention) cannot become this design: its outputs differ by ",
        ),
    ],
)
def test_what_cannot_be_had(design: str, options: dict, message: str) -> None:
    assert refusal(ta.convert, nn.MultiheadAttention(16, 4), design, where="self_attn", **options).startswith(message)
