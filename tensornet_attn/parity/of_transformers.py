"""Layers of transformers at small sizes, with the designs to compare them with."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tensornet_attn.convert import known
from tensornet_attn.convert.calls import eagerly
from tensornet_attn.parity.layer import Layer

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ANGLES, NORMS = "angles", "angles and norms"
SOFTMAX = "softmax"


def rope(part: float = 1.0) -> dict[str, Any]:
    """Rotary positions with a small base, for large angles at few positions; `part`: the rotary fraction of a head."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": part}}


def made(folder: str, kind: str, layer: int | None = 0, config: str = "", **options: Any) -> Callable[[], nn.Module]:
    """A constructor of a transformers class from a small config of its model."""

    def make() -> nn.Module:
        modeling = import_module(f"transformers.models.{folder}.modeling_{folder}")
        configs = import_module(f"transformers.models.{folder}.configuration_{folder}")
        names = [name for name in vars(configs) if name.endswith("Config") and name != "PreTrainedConfig"]
        stem = folder.replace("_", "")
        chosen = config or next(name for name in names if name.removesuffix("Config").lower() == stem)
        settings = configured(getattr(configs, chosen), options)
        module = getattr(modeling, kind)
        return module(settings) if layer is None else module(settings, layer)  # type: ignore[no-any-return]

    return make


def configured(kind: Any, options: dict[str, Any]) -> Any:
    """A config with the fields of SMALL that its class has, and these options."""
    fields = {name for one in kind.__mro__ for name in getattr(one, "__annotations__", {})}
    settings = kind(**{key: value for key, value in SMALL.items() if key in fields} | options)
    settings._attn_implementation = settings._experts_implementation = "eager"
    return settings


def moonshine() -> nn.Module:
    from transformers.models.moonshine import MoonshineConfig
    from transformers.models.moonshine.modeling_moonshine import MoonshineAttention

    sizes = {"encoder_num_attention_heads": 4, "encoder_num_key_value_heads": 4, "pad_head_dim_to_multiple_of": 3}
    config = configured(MoonshineConfig, sizes | rope(0.5))
    return MoonshineAttention(config, 0, False, 4, 4)  # type: ignore[no-any-return]


def perceiver() -> nn.Module:
    from transformers.models.perceiver import PerceiverConfig
    from transformers.models.perceiver.modeling_perceiver import PerceiverAttention

    config = PerceiverConfig(attention_probs_dropout_prob=0.0)
    sizes = {"qk_channels": 12, "v_channels": 12, "num_heads": 3, "q_dim": 24, "kv_dim": 24}
    return PerceiverAttention(config, is_cross_attention=True, use_query_residual=False, **sizes)  # type: ignore[no-any-return]


def biased() -> nn.Module:
    """Experts with a bias in the router, which is a buffer."""
    sizes = {"num_local_experts": 6, "n_group": 3, "topk_group": 2, "num_experts_per_tok": 2, "n_shared_experts": 1}
    module = made("deepseek_v3", "DeepseekV3MoE", None, moe_intermediate_size=10, **sizes)()
    module.gate.e_score_correction_bias.copy_(torch.linspace(-0.3, 0.4, 6))  # type: ignore[union-attr,operator]
    return module


GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 6}
CAPPED = GEMMA | {"attn_logit_softcapping": 2.0, "sliding_window": 4}
GEMMA3 = GEMMA | {"config": "Gemma3TextConfig", "sliding_window": 4}
GEMMA3_LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}
LATENT = {"q_lora_rank": 10, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
GPT2 = {"n_embd": 24, "n_head": 3}
BLOOM = {"hidden_size": 24, "n_head": 3}
BUCKETS = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
MPT = {"d_model": 24, "n_heads": 3}


def row(name: str, design: Any, make: Callable[[], nn.Module], **given: Any) -> Layer:
    """A layer of transformers. By default, `call` is that of the `Reading` in `convert`."""
    kind = name.split(",")[0]
    reading = next((one for one in known.READINGS if one.design == design and kind in one.classes), None)
    call = given.pop("call", None if reading is None else reading.call)
    return Layer("transformers", name, design, make, call=call, **given)


LAYERS = (
    row("BertSelfAttention", "mhsa", made("bert", "BertSelfAttention", None), call=eagerly),
    row("ViTAttention", "mhsa", made("vit", "ViTAttention", None), call=eagerly, single=SOFTMAX),
    row(
        "DistilBertSelfAttention",
        "mhsa",
        made("distilbert", "DistilBertSelfAttention", None, dim=24, n_heads=3),
        call=lambda m, x: eagerly(m, x, attention_mask=None),
    ),
    row("ModernBertAttention", "mhsa", made("modernbert", "ModernBertAttention", 0), single=ANGLES),
    row(
        "ModernBertAttention, local",
        "mhsa",
        made("modernbert", "ModernBertAttention", 1, local_attention=6),
        single=ANGLES,
    ),
    row("GPT2Attention, from gpt2", "gpt2", made("gpt2", "GPT2Attention", 0, **GPT2), call=known.gpt2_call),
    row("GPT2Attention, as thsa", "thsa", made("gpt2", "GPT2Attention", 0, **GPT2), call=known.gpt2_call),
    row("LlamaAttention", "llama", made("llama", "LlamaAttention", **rope()), single=ANGLES),
    row("LlamaAttention, as gqa", "gqa", made("llama", "LlamaAttention", **rope()), single=ANGLES),
    row("MistralAttention", "mistral", made("mistral", "MistralAttention", sliding_window=4), single=ANGLES),
    row("MistralAttention, as gqa", "gqa", made("mistral", "MistralAttention", sliding_window=4), single=ANGLES),
    row("Qwen2Attention", "qwen2", made("qwen2", "Qwen2Attention"), single=ANGLES),
    row("Qwen3Attention", "qwen3", made("qwen3", "Qwen3Attention", head_dim=8), single=NORMS),
    row(
        "Qwen3NextAttention",
        "qwen3_next",
        made("qwen3_next", "Qwen3NextAttention", head_dim=8, **rope(0.5)),
        single=NORMS,
    ),
    row("GemmaAttention, as gqa", "gqa", made("gemma", "GemmaAttention", head_dim=8), single=ANGLES),
    row("Gemma2Attention", "gemma2", made("gemma2", "Gemma2Attention", 1, **CAPPED), single=f"{ANGLES}, {SOFTMAX}"),
    row(
        "Gemma2Attention, local",
        "gemma2_local",
        made("gemma2", "Gemma2Attention", 0, **CAPPED),
        single=f"{ANGLES}, {SOFTMAX}",
    ),
    row("Gemma3Attention", "gemma3", made("gemma3", "Gemma3Attention", 1, **GEMMA3, **GEMMA3_LAYERS), single=NORMS),
    row("Gemma3Attention, local", "gemma3_local", made("gemma3", "Gemma3Attention", 0, **GEMMA3), single=NORMS),
    row("CohereAttention", "cohere", made("cohere", "CohereAttention", use_qk_norm=True), single=NORMS),
    row("CohereAttention, as gqa", "gqa", made("cohere", "CohereAttention"), single=ANGLES),
    row("Olmo2Attention", "olmo2", made("olmo2", "Olmo2Attention"), single=NORMS),
    row(
        "GraniteAttention, as gqa", "gqa", made("granite", "GraniteAttention", attention_multiplier=0.4), single=ANGLES
    ),
    row("Phi3Attention, as gqa", "gqa", made("phi3", "Phi3Attention", **rope(0.5)), single=ANGLES),
    row("PhiAttention", "phi", made("phi", "PhiAttention", num_key_value_heads=4, **rope(0.5)), single=ANGLES),
    row("GptOssAttention", "gpt_oss", made("gpt_oss", "GptOssAttention", 1, head_dim=8, **rope()), single=ANGLES),
    row(
        "GptOssAttention, local",
        "gpt_oss",
        made("gpt_oss", "GptOssAttention", 0, head_dim=8, sliding_window=4, **rope()),
        single=ANGLES,
    ),
    row("NemotronAttention", "nemotron", made("nemotron", "NemotronAttention", head_dim=8, **rope(0.5)), single=ANGLES),
    row("GPTNeoXAttention", "gpt_neox", made("gpt_neox", "GPTNeoXAttention", **rope(0.25)), single=ANGLES),
    row("BloomAttention", "bloom", made("bloom", "BloomAttention", 0, **BLOOM), single=SOFTMAX),
    row(
        "BloomAttention, as mhsa",
        "mhsa",
        made("bloom", "BloomAttention", 0, **BLOOM),
        call=known.bloom_call,
        single=SOFTMAX,
    ),
    row("MptAttention", "mpt", made("mpt", "MptAttention", 0, **MPT, attn_config={"clip_qkv": 0.7}), single=SOFTMAX),
    row("MptAttention, as mhsa", "mhsa", made("mpt", "MptAttention", 0, **MPT), call=known.mpt_call, single=SOFTMAX),
    row(
        "T5Attention", "t5", made("t5", "T5Attention", True, d_model=24, d_kv=6, num_heads=4, **BUCKETS), single=SOFTMAX
    ),
    row("Lfm2ShortConv", "lfm2", made("lfm2", "Lfm2ShortConv", 0, layer_types=["conv", "full_attention"])),
    row("XLNetRelativeAttention", "xlnet", made("xlnet", "XLNetRelativeAttention", None, d_model=24, n_head=3)),
    row(
        "DiffLlamaAttention",
        "diffllama",
        made("diffllama", "DiffLlamaAttention", 1, num_attention_heads=8, num_key_value_heads=4),
        single=ANGLES,
    ),
    row(
        "DeepseekV3Attention",
        "deepseek_v3",
        made("deepseek_v3", "DeepseekV3Attention", 0, num_key_value_heads=4, **LATENT),
        single=NORMS,
    ),
    row("MoonshineAttention", "moonshine", moonshine, single=ANGLES),
    row("PerceiverAttention", "perceiver", perceiver),
    row("RwkvSelfAttention", "rwkv4", made("rwkv", "RwkvSelfAttention", 0, attention_hidden_size=20), single="sums"),
    row(
        "MiniMaxLightningAttention",
        "minimax",
        made(
            "minimax",
            "MiniMaxLightningAttention",
            0,
            head_dim=8,
            block_size=4,
            layer_types=["linear_attention", "full_attention"],
        ),
        single=NORMS,
    ),
    row("LlamaMLP", "swiglu", made("llama", "LlamaMLP", None)),
    row("ModernBertMLP", "geglu", made("modernbert", "ModernBertMLP", None)),
    row("NemotronMLP", "nemotron_mlp", made("nemotron", "NemotronMLP", None)),
    row(
        "MixtralSparseMoeBlock",
        "mixtral",
        made("mixtral", "MixtralSparseMoeBlock", None, num_local_experts=4),
        single="router",
    ),
    row(
        "Qwen2MoeSparseMoeBlock",
        "qwen2_moe",
        made(
            "qwen2_moe",
            "Qwen2MoeSparseMoeBlock",
            None,
            num_experts=4,
            moe_intermediate_size=12,
            shared_expert_intermediate_size=20,
        ),
        single="router",
    ),
    row("DeepseekV3MoE", "deepseek_moe", biased, single="router"),
    row(
        "SwitchTransformersSparseMLP",
        "switch",
        made("switch_transformers", "SwitchTransformersSparseMLP", None, d_model=24, d_ff=16, num_experts=4),
        single="router",
    ),
)
