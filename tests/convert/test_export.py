"""Weights of a design go back into a module of the kind that they came from: all that it can hold, or none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tensornet_attn as ta
from tests.convert import models
from tests.refusals import refusal


def changed(layer: nn.Module) -> nn.Module:
    """After a step of training."""
    with torch.no_grad():
        for weight in layer.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return layer


def test_a_trained_layer_goes_back_to_pytorch() -> None:
    theirs, x = nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 5, 16)
    ours = changed(ta.convert(theirs, "mhsa"))
    assert ta.export_to(ours, theirs) is theirs
    torch.testing.assert_close(theirs(x, x, x)[0], ours(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["gemma3", "cohere", "gpt2", "gpt_neox", "phi3", "bloom", "deepseek_v3"])
def test_a_trained_layer_goes_back_to_transformers(name: str) -> None:
    """Norms stored less 1, neighbours that turn together, fused and transposed projections, absorbed scales."""
    module = models.made(name).get_submodule(models.ATTENTION[name]).double()
    ours = changed(ta.convert(module, models.design_of(name)))
    back = ta.export_to(ours, copy.deepcopy(module))
    again = ta.convert(back, models.design_of(name))
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(models.ALL))
def test_a_trained_model_goes_back(name: str) -> None:
    """All that lies around the attentions too; a new model, of the config, and one that is given."""
    before = models.made(name).double()
    model = changed(ta.convert_model(copy.deepcopy(before), models.design_of(name)))
    given = models.inputs(name)
    back = ta.export_to(model.eval())
    assert type(back) is type(before)
    assert back.state_dict().keys() == before.state_dict().keys()
    torch.testing.assert_close(models.outputs(back.eval(), given), models.outputs(model, given), rtol=1e-5, atol=1e-5)
    other = copy.deepcopy(before)
    assert ta.export_to(model, other) is other
    for key, value in back.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], value, rtol=1e-12, atol=1e-12)


def test_a_model_that_cannot_hold_it_stays() -> None:
    before = models.made("bert")
    model, kept = ta.convert_model(copy.deepcopy(before), "thsa"), copy.deepcopy(before.state_dict())
    model.encoder.layer[1].attention.design.C.data += 1
    assert refusal(lambda: ta.export_to(model, before)) == (
        "encoder.layer.1.attention (BertAttention) cannot take 'thsa': a BertAttention cannot represent its 'C' "
        "(difference 1.0e+00)."
    )
    assert all(torch.equal(value, kept[key]) for key, value in before.state_dict().items())
    assert refusal(lambda: ta.export_to(before)) == "BertModel has no attention that convert_model swapped."
    assert refusal(lambda: ta.export_to(model, models.made("vit"))).startswith(
        "ViTModel cannot take the weights of BertModel: "
    )


def test_a_model_of_pytorch_goes_back_into_one_that_is_given() -> None:
    def made() -> nn.Module:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()

    before, back, x = made(), made(), torch.randn(2, 5, 16)
    model = changed(ta.convert_model(copy.deepcopy(before), "mhsa"))
    torch.testing.assert_close(ta.export_to(model, back)(x), model(x), rtol=0, atol=1e-5)
    assert refusal(lambda: ta.export_to(model)) == (
        "TransformerEncoder is no model of transformers, which its config makes again: give the model to write into, "
        "of the class that convert_model was given."
    )
    assert refusal(lambda: ta.export_to(ta.compile("mhsa"))) == (
        "give the module to write into, of the kind that convert was given."
    )


def test_what_the_module_cannot_hold_is_refused_and_the_module_stays() -> None:
    theirs = nn.MultiheadAttention(16, 4)
    ours, before = ta.convert(theirs, "thsa"), copy.deepcopy(theirs.state_dict())
    ta.export_to(ours, theirs)
    for key, value in before.items():
        assert torch.equal(theirs.state_dict()[key], value)
    with torch.no_grad():
        ours.C += 1
    assert refusal(lambda: ta.export_to(ours, theirs)) == (
        "MultiheadAttention cannot take 'thsa': a MultiheadAttention cannot represent its 'C' (difference 1.0e+00)."
    )
    for key, value in before.items():
        assert torch.equal(theirs.state_dict()[key], value)


def test_other_sizes_are_refused() -> None:
    ours = ta.convert(nn.MultiheadAttention(16, 4, bias=False), "mhsa")
    assert refusal(lambda: ta.export_to(ours, nn.MultiheadAttention(16, 2, bias=False))) == (
        "MultiheadAttention cannot take 'mhsa': its 'Wq' is [16, 4, 4], but that of a MultiheadAttention is [16, 2, 8]."
    )
    biased = ta.convert(nn.MultiheadAttention(16, 4), "mhsa")
    assert refusal(lambda: ta.export_to(ours, nn.MultiheadAttention(16, 4))) == (
        "MultiheadAttention cannot take 'mhsa': it has no 'bq', which a MultiheadAttention has."
    )
    assert refusal(lambda: ta.export_to(biased, nn.MultiheadAttention(16, 4, bias=False))) == (
        "MultiheadAttention cannot take 'mhsa': a MultiheadAttention has no weight for its 'bq'."
    )


def test_a_design_of_ones_own_is_given_again() -> None:
    own = {
        "tensornet": 1,
        "name": "two_scales",
        "extends": "mhsa",
        "weights": {"t": {"legs": "h", "init": "ones"}},
        "diagram": {"A": {"softmax": "m", "scale": "d ** -0.5", "of": "t[h] Q[n h d] K[m h d] -> h n m"}},
        "contains": {"mhsa": {"weights": {"t": "ones"}}},
    }
    theirs, other = nn.MultiheadAttention(16, 4), nn.MultiheadAttention(16, 4)
    ours = ta.convert(theirs, own)
    assert refusal(lambda: ta.export_to(ours, other)) == (
        "'two_scales' is not a shipped design; give the design of the conversion as design=..."
    )
    ta.export_to(ours, other, own)
    assert torch.equal(other.in_proj_weight, theirs.in_proj_weight)
