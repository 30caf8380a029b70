"""Layers that are shipped designs as they stand: read by name, compared with themselves, refused where they do more."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.ops.rope import attention_factor, rate
from tests.convert import models
from tests.convert.models import PLAIN
from tests.parity import LAYERS
from tests.refusals import refusal

LAYER = {layer.name: layer for layer in LAYERS if layer.package == "transformers"}


def test_the_sizes_and_numbers_are_those_of_the_config() -> None:
    layer = ta.convert(LAYER["Gemma2Attention, local"].drawn(), "gemma2_local")
    assert {leg: layer.design.legs[leg] for leg in "fgjd"} == {"f": 32, "g": 2, "j": 2, "d": 8}
    assert layer.design.settings | {"cap": 2, "scalar": 6, "window": 4, "base": 10000} == layer.design.settings


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2", "gemma3", "cohere", "olmo2"])
def test_a_model_becomes_the_design_of_its_name(name: str) -> None:
    """Local layers of Gemma are the global design and a window."""
    options = {"attention_bias": False} if name in ("llama", "qwen3") else {}
    before = models.drawn(models.model_of(name, **options)).eval().double()
    given, after = models.inputs(name), ta.convert_model(copy.deepcopy(before), name)
    assert {module.design.name for module in after.modules() if isinstance(module, CompiledDesign)} == {name}
    torch.testing.assert_close(models.outputs(after, given), models.outputs(before, given), rtol=1e-6, atol=1e-6)


def test_a_layer_that_does_more_than_the_design_is_refused() -> None:
    biased = models.made("llama")
    assert refusal(lambda: ta.convert_model(biased, "llama")) == (
        "model.layers.0.self_attn (LlamaAttention) cannot become 'llama': the design has no place for its "
        "'q_proj.bias'."
    )
    attention = models.model_of("qwen2").model.layers[0].self_attn
    attention.scaling *= 2
    message = refusal(lambda: ta.convert(models.drawn(attention), "qwen2"))
    assert message.startswith("Qwen2Attention cannot become 'qwen2': their outputs differ by ")
    lists = {"short_factor": [1.0] * 3, "long_factor": [2.0] * 3, "original_max_position_embeddings": 20, "factor": 2.0}
    longer = models.model_of("llama", attention_bias=False, rope_parameters=PLAIN | {"rope_type": "longrope"} | lists)
    assert refusal(lambda: ta.convert_model(models.drawn(longer), "llama")) == (
        "model.layers.0.self_attn (LlamaAttention) cannot be converted: its rotary positions are scaled (rope_type "
        "'longrope', by lists of factors); a design has default, linear, dynamic, llama3, yarn ones."
    )


DEEPSEEK = {  # as released, but for the length, so that some pairs turn fewer and some more times within it
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
}
GPT_OSS = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 128,
}
SCALED = {
    "DeepSeek-V3": ("deepseek_v3", DEEPSEEK),
    "scales that differ": ("deepseek_v3", DEEPSEEK | {"mscale_all_dim": 0.7}),
    "a factor of the attention": ("deepseek_v3", DEEPSEEK | {"attention_factor": 1.3}),
    "gpt-oss": ("gpt_oss", GPT_OSS),
    "whole ends": ("gpt_oss", GPT_OSS | {"truncate": True, "original_max_position_embeddings": 16}),
    "linear": ("qwen2", PLAIN | {"rope_type": "linear", "factor": 2.0}),
    "of the length": ("qwen2", PLAIN | {"rope_type": "dynamic", "factor": 2.0}),
}


@pytest.mark.parametrize(("name", "rope"), SCALED.values(), ids=SCALED)
def test_scaled_positions_are_read(name: str, rope: dict[str, Any], tmp_path: Path) -> None:
    """Logits in float64, whose angles transformers rounds to float32; texts from a cache, and what is saved."""
    before = models.made(name, rope_parameters=rope).double()
    given, after = models.inputs(name, "left"), ta.convert_model(copy.deepcopy(before), name)
    given |= {"use_cache": False} if rope["rope_type"] == "dynamic" else {}  # which takes no padding then
    assert {module.design.name for module in after.modules() if isinstance(module, CompiledDesign)} == {name}
    torch.testing.assert_close(models.outputs(after, given), models.outputs(before, given), rtol=1e-6, atol=1e-6)
    if rope["rope_type"] != "dynamic":
        told = [models.generated(model, "left") for model in (before, after)]
        torch.testing.assert_close(told[1].logits, told[0].logits, rtol=1e-6, atol=1e-6)
    after.save_pretrained(tmp_path)
    experts = {"experts_implementation": "eager"} if name == "gpt_oss" else {}
    again = type(before).from_pretrained(tmp_path, dtype=torch.float64, **experts)
    torch.testing.assert_close(models.outputs(again, given), models.outputs(after, given), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["DeepSeek-V3", "gpt-oss"])
def test_the_angles_of_released_models(name: str) -> None:
    """64 entries of a head that turn, within 4096 positions first: transformers works them out in float32."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = SCALED[name][1] | {"original_max_position_embeddings": 4096}
    length = int(4096 * rope["factor"])
    config = LlamaConfig(head_dim=64, rope_parameters=dict(rope), max_position_embeddings=length)
    rates, factor = ROPE_INIT_FUNCTIONS["yarn"](config, None)
    numbers = {key: float(value) for key, value in rope.items() if key != "rope_type"}
    own = [rate("yarn", numbers, rope["rope_theta"], pair, 64, torch.ones(())) for pair in range(32)]
    torch.testing.assert_close(torch.tensor(own), rates, rtol=2e-6, atol=0)
    assert attention_factor("yarn", numbers) == pytest.approx(factor, rel=1e-12)


def test_sinks_are_read_into_other_designs() -> None:
    """Of gpt-oss into grouped queries: a weight of the scores' heads, in caches and on the way back."""
    before = models.made("gpt_oss", rope_parameters=GPT_OSS).double()
    given, after = models.inputs("gpt_oss", "left"), ta.convert_model(copy.deepcopy(before), "gqa")
    torch.testing.assert_close(models.outputs(after, given), models.outputs(before, given), rtol=1e-6, atol=1e-6)
    told = [models.generated(model, "left") for model in (before, after)]
    torch.testing.assert_close(told[1].logits, told[0].logits, rtol=1e-6, atol=1e-6)
    trained, back = before.model.layers[0].self_attn, models.made("gpt_oss").double().model.layers[0].self_attn
    layer = ta.convert(trained, "gqa")
    assert list(layer.sink.shape) == [2, 2]
    back.sinks.data.zero_()
    torch.testing.assert_close(ta.export_to(layer, back, "gqa").sinks, trained.sinks)
    ungrouped = models.made("gpt_oss", num_key_value_heads=4).model.layers[0].self_attn
    assert refusal(lambda: ta.convert(ungrouped, "thsa")) == (
        "GptOssAttention cannot become 'thsa': 'thsa' has no 4 heads in the scores 'C[r s] Q[n s] K[m s] -> r n m', "
        "for sinks."
    )


def test_a_layer_that_no_other_design_contains_says_what_it_can_become() -> None:
    attention = models.made("deepseek_v3").model.layers[0].self_attn
    assert refusal(lambda: ta.convert(attention, "mhsa")) == (
        "DeepseekV3Attention is not a multi-head attention; convert it to 'deepseek_v3'."
    )


def test_sizes_may_be_said_again_but_not_changed() -> None:
    module = LAYER["LlamaAttention"].drawn()
    assert ta.convert(module, "llama", legs={"g": 2}).design.legs["g"] == 2
    assert refusal(lambda: ta.convert(module, "llama", legs={"g": 4})) == (
        "LlamaAttention cannot become 'llama': 'g' must be 2, as in the module, not 4."
    )
    assert refusal(lambda: ta.convert(LAYER["DeepseekV3Attention"].drawn(), "deepseek_v3", memory=True)) == (
        "DeepseekV3Attention cannot become 'deepseek_v3': it takes no second input."
    )


def test_mode_dtype_and_dropout_are_the_module_s() -> None:
    module = LAYER["LlamaAttention"].make()
    module.attention_dropout = 0.25
    layer = ta.convert(module.bfloat16().train(), "llama")
    assert layer.training
    assert layer.Wq.dtype == torch.bfloat16
    assert "dropout" in layer.source
