"""Trained attentions, read: attention written out with the weights read gives what the module gives, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tensornet_attn.convert.attentions import read_trained
from tests.convert import models
from tests.convert.by_hand import attention

CLOSE = {"rtol": 0, "atol": 1e-10}


def x_of(width: int) -> torch.Tensor:
    return torch.randn(2, 7, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention(bias: bool, batch_first: bool) -> None:
    module = nn.MultiheadAttention(12, 3, dropout=0.2, bias=bias, batch_first=batch_first, dtype=torch.float64)
    models.drawn(module).eval()
    x = x_of(12)
    given = x if batch_first else x.transpose(0, 1)
    expected = module(given, given, given)[0]
    trained = read_trained(module, "self_attn")
    torch.testing.assert_close(attention(trained, x), expected if batch_first else expected.transpose(0, 1), **CLOSE)
    assert trained.dropout == 0.2
    assert not trained.causal
    assert sorted(trained.biases) == (["bk", "bo", "bq", "bv"] if bias else [])


def test_separate_projections_of_equal_width() -> None:
    packed = models.drawn(nn.MultiheadAttention(12, 3, dtype=torch.float64))
    apart = nn.MultiheadAttention(12, 3, dtype=torch.float64)
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    for name, weight in zip(names, packed.in_proj_weight.chunk(3), strict=True):
        setattr(apart, name, nn.Parameter(weight.detach()))
    apart.in_proj_weight = None
    one, other = read_trained(packed), read_trained(apart)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in ("Wq", "Wk", "Wv"))


def whole(name: str, model: Any, module: Any, x: torch.Tensor) -> torch.Tensor:
    """The attention's own output, with the causal mask and the positions that its model would give it."""
    if name == "llama":
        return module(x, position_embeddings=model.model.rotary_emb(x, torch.arange(7)[None]))[0]
    if name == "modernbert":  # a layer with all positions, whose angles are its own
        return module(x, position_embeddings=model.rotary_emb(x, torch.arange(7)[None], "full_attention"))[0]
    return module(x)[0]


def behind(name: str, module: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What the module does after its attention: BERT and ALBERT add the input and normalise."""
    norm = {"bert": lambda: module.output.LayerNorm, "roberta": lambda: module.output.LayerNorm}
    norm["albert"] = lambda: module.LayerNorm
    return norm[name]()(x + y) if name in norm else y


@pytest.mark.parametrize("name", models.MODELS)
def test_hugging_face(name: str) -> None:
    model = models.made(name).double()
    module, x = model.get_submodule(models.ATTENTION[name]), x_of(24)
    trained = read_trained(module, models.ATTENTION[name])
    y = behind(name, module, x, attention(trained, x))
    rotary = name in ("llama", "modernbert")  # whose angles are float32 in the model
    torch.testing.assert_close(y, whole(name, model, module, x), rtol=0, atol=1e-6 if rotary else 1e-10)
    assert trained.where == f"{models.ATTENTION[name]} ({type(module).__name__})"
    assert trained.causal == (name in ("gpt2", "llama"))
    assert trained.dropout == (0.1 if name in ("bert", "roberta", "distilbert", "gpt2") else 0.0)


def test_self_attention_alone_has_the_heads_as_its_output() -> None:
    module = models.made("bert").double().encoder.layer[0].attention.self
    trained, x = read_trained(module), x_of(24)
    torch.testing.assert_close(attention(trained, x), module(x)[0], **CLOSE)
    assert "bo" not in trained.biases


def test_a_bert_decoder_is_causal() -> None:
    module = models.made("bert", is_decoder=True).double().encoder.layer[0].attention
    trained, x = read_trained(module), x_of(24)
    assert trained.causal
    torch.testing.assert_close(behind("bert", module, x, attention(trained, x)), module(x)[0], **CLOSE)


@pytest.mark.parametrize("options", [{"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False}])
def test_other_scales_of_gpt2_go_into_the_queries(options: dict[str, bool]) -> None:
    module = models.made("gpt2", **options).double().transformer.h[1].attn
    x = x_of(24)
    torch.testing.assert_close(attention(read_trained(module), x), module(x)[0], **CLOSE)


def test_heads_of_another_width_than_the_input_divides_into() -> None:
    model = models.made("llama", head_dim=4).double()
    module, x = model.model.layers[0].self_attn, x_of(24)
    trained = read_trained(module)
    assert tuple(trained.weights["Wq"].shape) == (24, 4, 4)
    assert tuple(trained.weights["Wk"].shape) == (24, 2, 4)
    torch.testing.assert_close(attention(trained, x), whole("llama", model, module, x), rtol=0, atol=1e-6)


def test_what_is_read_is_a_copy() -> None:
    module = nn.MultiheadAttention(12, 3)
    trained = read_trained(module)
    before = {name: value.clone() for name, value in trained.weights.items()}
    models.drawn(module)
    assert all(torch.equal(trained.weights[name], value) for name, value in before.items())
    assert not any(value.requires_grad for value in (*trained.weights.values(), *trained.biases.values()))
