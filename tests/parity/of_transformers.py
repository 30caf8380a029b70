"""Layers of transformers at small sizes, with the designs to compare them with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.convert import known
from tensornet_attn.convert.calls import eagerly
from tests.parity.layer import ParityLayer

Options = dict[str, Any]  # of a config
SMALL: Options = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ANGLES, NORMS = "angles", "angles and norms"
SOFTMAX = "softmax"


def rope(fraction: float = 1.0) -> Options:
    """Rotary positions with a small base, for large angles at few positions; `fraction`: the rotary part of a head."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": fraction}}


def made(folder: str, kind: str, *arguments: Any, config: str = "", **options: Any) -> nn.Module:
    """A module of a transformers class, from a small config of its model and further arguments, e.g. its layer."""
    modeling = import_module(f"transformers.models.{folder}.modeling_{folder}")
    configs = import_module(f"transformers.models.{folder}.configuration_{folder}")
    names = [name for name in vars(configs) if name.endswith("Config") and name != "PreTrainedConfig"]
    stem = folder.replace("_", "")
    chosen = config or next(name for name in names if name.removesuffix("Config").lower() == stem)
    fields = {name for base in getattr(configs, chosen).__mro__ for name in getattr(base, "__annotations__", {})}
    settings = getattr(configs, chosen)(**{key: value for key, value in SMALL.items() if key in fields} | options)
    settings._attn_implementation = settings._experts_implementation = "eager"
    return getattr(modeling, kind)(settings, *arguments)


def biased() -> nn.Module:
    """Experts with a bias in the router, which is a buffer."""
    sizes = Options(num_local_experts=6, n_group=3, topk_group=2, num_experts_per_tok=2, n_shared_experts=1)
    module = made("deepseek_v3", "DeepseekV3MoE", moe_intermediate_size=10, **sizes)
    module.gate.e_score_correction_bias.copy_(torch.linspace(-0.3, 0.4, 6))  # type: ignore[union-attr,operator]
    return module


GEMMA: Options = {"head_dim": 8, "query_pre_attn_scalar": 6}
CAPPED: Options = GEMMA | {"attn_logit_softcapping": 2.0, "sliding_window": 4}
GEMMA3: Options = GEMMA | {"config": "Gemma3TextConfig", "sliding_window": 4}
GEMMA3_LAYERS: Options = {"layer_types": ["sliding_attention", "full_attention"]}
LATENT: Options = {"q_lora_rank": 10, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
GPT2: Options = {"n_embd": 24, "n_head": 3}
BLOOM: Options = {"hidden_size": 24, "n_head": 3}
BUCKETS: Options = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
PADDED: Options = {"encoder_num_attention_heads": 4, "encoder_num_key_value_heads": 4, "pad_head_dim_to_multiple_of": 3}
CROSS = (True, 12, 12, 3, 24, 24, False)  # of 3 heads, with 12 channels, without the residual connection
PAIRS: Options = {"num_attention_heads": 8, "num_key_value_heads": 4}
MPT: Options = {"d_model": 24, "n_heads": 3}
LIGHTNING: Options = {"head_dim": 8, "block_size": 4, "layer_types": ["linear_attention", "full_attention"]}
SHARED: Options = {"num_experts": 4, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20}
SWITCH: Options = {"d_model": 24, "d_ff": 16, "num_experts": 4}
unmasked = partial(eagerly, attention_mask=None)


def row(
    name: str,
    design: str,
    folder: str | Callable[[], nn.Module],
    arguments: tuple[Any, ...] = (0,),
    call: Callable[[Any, Tensor], Tensor] | None = None,
    single: str = "",
    **options: Any,
) -> ParityLayer:
    """A layer of transformers: the class of this name in the `folder` of its model, or the result of a function.

    By default, `call` is that of the `Reading` in `convert`. `options`: as of `made`.
    """
    kind = name.split(",")[0]
    make = partial(made, folder, kind, *arguments, **options) if isinstance(folder, str) else folder
    reading = next(
        (candidate for candidate in known.READINGS if candidate.design == design and kind in candidate.classes), None
    )
    call = call or (None if reading is None else reading.call)
    return ParityLayer("transformers", name, design, make, call=call, single=single)


LAYERS = (
    row("BertSelfAttention", "mhsa", "bert", (), call=eagerly),
    row("ViTAttention", "mhsa", "vit", (), call=eagerly, single=SOFTMAX),
    row("DistilBertSelfAttention", "mhsa", "distilbert", (), call=unmasked, dim=24, n_heads=3),
    row("ModernBertAttention", "mhsa", "modernbert", single=ANGLES),
    row("ModernBertAttention, local", "mhsa", "modernbert", (1,), single=ANGLES, local_attention=6),
    row("GPT2Attention, from gpt2", "gpt2", "gpt2", call=known.gpt2_call, **GPT2),
    row("GPT2Attention, as thsa", "thsa", "gpt2", call=known.gpt2_call, **GPT2),
    row("LlamaAttention", "llama", "llama", single=ANGLES, **rope()),
    row("LlamaAttention, as gqa", "gqa", "llama", single=ANGLES, **rope()),
    row("MistralAttention", "mistral", "mistral", single=ANGLES, sliding_window=4),
    row("MistralAttention, as gqa", "gqa", "mistral", single=ANGLES, sliding_window=4),
    row("Qwen2Attention", "qwen2", "qwen2", single=ANGLES),
    row("Qwen3Attention", "qwen3", "qwen3", single=NORMS, head_dim=8),
    row("Qwen3NextAttention", "qwen3_next", "qwen3_next", single=NORMS, head_dim=8, **rope(0.5)),
    row("GemmaAttention, as gqa", "gqa", "gemma", single=ANGLES, head_dim=8),
    row("Gemma2Attention", "gemma2", "gemma2", (1,), single=f"{ANGLES}, {SOFTMAX}", **CAPPED),
    row("Gemma2Attention, local", "gemma2_local", "gemma2", single=f"{ANGLES}, {SOFTMAX}", **CAPPED),
    row("Gemma3Attention", "gemma3", "gemma3", (1,), single=NORMS, **GEMMA3, **GEMMA3_LAYERS),
    row("Gemma3Attention, local", "gemma3_local", "gemma3", single=NORMS, **GEMMA3),
    row("CohereAttention", "cohere", "cohere", single=NORMS, use_qk_norm=True),
    row("CohereAttention, as gqa", "gqa", "cohere", single=ANGLES),
    row("Olmo2Attention", "olmo2", "olmo2", single=NORMS),
    row("GraniteAttention, as gqa", "gqa", "granite", single=ANGLES, attention_multiplier=0.4),
    row("Phi3Attention, as gqa", "gqa", "phi3", single=ANGLES, **rope(0.5)),
    row("PhiAttention", "phi", "phi", single=ANGLES, num_key_value_heads=4, **rope(0.5)),
    row("GptOssAttention", "gpt_oss", "gpt_oss", (1,), single=ANGLES, head_dim=8, **rope()),
    row("GptOssAttention, local", "gpt_oss", "gpt_oss", single=ANGLES, head_dim=8, sliding_window=4, **rope()),
    row("NemotronAttention", "nemotron", "nemotron", single=ANGLES, head_dim=8, **rope(0.5)),
    row("GPTNeoXAttention", "gpt_neox", "gpt_neox", single=ANGLES, **rope(0.25)),
    row("BloomAttention", "bloom", "bloom", single=SOFTMAX, **BLOOM),
    row("BloomAttention, as mhsa", "mhsa", "bloom", call=known.bloom_call, single=SOFTMAX, **BLOOM),
    row("MptAttention", "mpt", "mpt", single=SOFTMAX, **MPT, attn_config={"clip_qkv": 0.7}),
    row("MptAttention, as mhsa", "mhsa", "mpt", call=known.mpt_call, single=SOFTMAX, **MPT),
    row("T5Attention", "t5", "t5", (True,), single=SOFTMAX, d_model=24, d_kv=6, num_heads=4, **BUCKETS),
    row("Lfm2ShortConv", "lfm2", "lfm2", layer_types=["conv", "full_attention"]),
    row("XLNetRelativeAttention", "xlnet", "xlnet", (), d_model=24, n_head=3),
    row("DiffLlamaAttention", "diffllama", "diffllama", (1,), single=ANGLES, **PAIRS),
    row("DeepseekV3Attention", "deepseek_v3", "deepseek_v3", single=NORMS, num_key_value_heads=4, **LATENT),
    row("MoonshineAttention", "moonshine", "moonshine", (0, False, 4, 4), single=ANGLES, **PADDED, **rope(0.5)),
    row("PerceiverAttention", "perceiver", "perceiver", CROSS, attention_probs_dropout_prob=0.0),
    row("RwkvSelfAttention", "rwkv4", "rwkv", single="sums", attention_hidden_size=20),
    row("MiniMaxLightningAttention", "minimax", "minimax", single=NORMS, **LIGHTNING),
    row("LlamaMLP", "swiglu", "llama", ()),
    row("ModernBertMLP", "geglu", "modernbert", ()),
    row("NemotronMLP", "nemotron_mlp", "nemotron", ()),
    row("MixtralSparseMoeBlock", "mixtral", "mixtral", (), single="router", num_local_experts=4),
    row("Qwen2MoeSparseMoeBlock", "qwen2_moe", "qwen2_moe", (), single="router", **SHARED),
    row("DeepseekV3MoE", "deepseek_moe", biased, single="router"),
    row("SwitchTransformersSparseMLP", "switch", "switch_transformers", (), single="router", **SWITCH),
)
