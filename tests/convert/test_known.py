"""Layers that are shipped designs as they stand: read by name, compared with themselves, refused where they do more."""

from __future__ import annotations

import copy

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.parity import LAYERS
from tests.convert import models

LAYER = {layer.name: layer for layer in LAYERS if layer.package == "transformers"}


def test_the_sizes_and_numbers_are_those_of_the_config() -> None:
    layer = ta.convert(LAYER["Gemma2Attention, local"].drawn(), "gemma2_local")
    assert {leg: layer.design.legs[leg] for leg in "fgjd"} == {"f": 32, "g": 2, "j": 2, "d": 8}
    assert layer.design.settings | {"cap": 2, "scalar": 6, "window": 4, "base": 10000} == layer.design.settings


@pytest.mark.rotated
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2", "gemma3", "cohere", "olmo2"])
def test_a_model_becomes_the_design_of_its_name(name: str) -> None:
    """Local layers of Gemma are the global design and a window."""
    options = {"attention_bias": False} if name in ("llama", "qwen3") else {}
    before = models.drawn(models.ALL[name](**options)).eval().double()
    given, after = models.inputs(name), ta.convert_model(copy.deepcopy(before), name)
    assert {module.design.name for module in after.modules() if isinstance(module, CompiledDesign)} == {name}
    torch.testing.assert_close(models.outputs(after, given), models.outputs(before, given), rtol=1e-6, atol=1e-6)


def test_a_layer_that_does_more_than_the_design_is_refused() -> None:
    biased = models.made("llama")
    assert models.message(lambda: ta.convert_model(biased, "llama")) == (
        "model.layers.0.self_attn (LlamaAttention) cannot become 'llama': the design has no place for its "
        "'q_proj.bias'."
    )
    scaled = models.ALL["qwen2"](rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})
    attention = scaled.model.layers[0].self_attn
    message = models.message(lambda: ta.convert(models.drawn(attention), "qwen2"))
    assert message.startswith("Qwen2Attention cannot become 'qwen2': their outputs differ by ")


def test_a_layer_that_no_other_design_contains_says_what_it_can_become() -> None:
    attention = models.made("deepseek_v3").model.layers[0].self_attn
    assert models.message(lambda: ta.convert(attention, "mhsa")) == (
        "DeepseekV3Attention is not a multi-head attention; convert it to 'deepseek_v3'."
    )


def test_sizes_may_be_said_again_but_not_changed() -> None:
    module = LAYER["LlamaAttention"].drawn()
    assert ta.convert(module, "llama", legs={"g": 2}).design.legs["g"] == 2
    assert models.message(lambda: ta.convert(module, "llama", legs={"g": 4})) == (
        "LlamaAttention cannot become 'llama': 'g' must be 2, as in the module, not 4."
    )
    assert models.message(lambda: ta.convert(LAYER["DeepseekV3Attention"].drawn(), "deepseek_v3", memory=True)) == (
        "DeepseekV3Attention cannot become 'deepseek_v3': it takes no second input."
    )


def test_mode_dtype_and_dropout_are_the_module_s() -> None:
    module = LAYER["LlamaAttention"].make()
    module.attention_dropout = 0.25
    layer = ta.convert(module.bfloat16().train(), "llama")
    assert layer.training
    assert layer.Wq.dtype == torch.bfloat16
    assert "dropout" in layer.source
