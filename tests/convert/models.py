"""Tiny Hugging Face models with random weights, biases included; transformers is imported only where one is made."""

from __future__ import annotations

import copy
import importlib
from functools import cache
from typing import Any

import torch
from torch import nn

from tensornet_attn.convert.replace import convert_model

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}


DECODER = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1}
FAMILIES: dict[str, dict[str, Any]] = {  # of the families that one config of their own makes a language model of
    "mistral": {"sliding_window": 5},
    "qwen2": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {"head_dim": 8, "attention_bias": True},
    "phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    "olmo2": {},
    "gpt_neox": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}},
    "gemma2": {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 6, "attn_logit_softcapping": 2.0},
    "gemma3": {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 6},
    "cohere": {"use_qk_norm": True},
    "gemma": {"head_dim": 8},
    "granite": {"attention_multiplier": 0.4},
    "mixtral": {"sliding_window": 5, "num_local_experts": 2, "experts_implementation": "eager"},
}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
FAMILIES |= {  # that are shipped designs as they stand
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 10,
        "kv_lora_rank": 12,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6,
        "v_head_dim": 5,
        "first_k_dense_replace": 2,
        "rope_parameters": PLAIN,
    },
    "nemotron": {"head_dim": 8, "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}},
    "phi": {"num_key_value_heads": 4, "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}},
    "gpt_oss": {
        "head_dim": 8,
        "sliding_window": 5,
        "num_local_experts": 4,
        "experts_implementation": "eager",
        "rope_parameters": PLAIN,
    },
    "diffllama": {"num_attention_heads": 8, "num_key_value_heads": 4, "rope_parameters": PLAIN},
}
OWN = ("deepseek_v3", "nemotron", "phi", "gpt_oss", "diffllama")  # which become the design of their name
SMALL = {"vocab_size": 50, "n_layers": 2, "n_heads": 3}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OTHERS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES,
    "albert": SIZES | {"embedding_size": 8},
    "distilbert": SMALL | {"dim": 24, "hidden_dim": 32, "max_position_embeddings": 40},
    "modernbert": SIZES
    | MARKS
    | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 6, "global_attn_every_n_layers": 2},
    "gpt2": {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40}
    | {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
    "llama": SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True, "pad_token_id": 0},
    "vit": {key: value for key, value in SIZES.items() if key not in ("vocab_size", "max_position_embeddings")}
    | {"image_size": 8, "patch_size": 4},
    "bloom": MARKS | {"vocab_size": 50, "hidden_size": 24, "n_head": 3, "n_layer": 2, "hidden_dropout": 0.1},
    "mpt": SMALL | {"d_model": 24, "max_seq_len": 40, "expansion_ratio": 2},
}
STEMS = {"gpt_neox": "GPTNeoX", "deepseek_v3": "DeepseekV3", "gpt_oss": "GptOss", "diffllama": "DiffLlama"}
STEMS |= {"distilbert": "DistilBert", "modernbert": "ModernBert", "gpt2": "GPT2", "vit": "ViT"}
ENCODERS = ("bert", "roberta", "albert", "distilbert", "modernbert", "vit")


def model_of(name: str, **options: Any) -> Any:
    """A model of a family: a language model of decoders, of one key head for two query heads where it has such."""
    module, stem = importlib.import_module(f"transformers.models.{name}"), STEMS.get(name, name.capitalize())
    sizes = DECODER | {"hidden_size": 32} | FAMILIES[name] | {"eos_token_id": 2} if name in FAMILIES else OTHERS[name]
    config = getattr(module, f"{stem}TextConfig" if name == "gemma3" else f"{stem}Config")(**sizes | options)
    end = "Model" if name in ENCODERS else "LMHeadModel" if name == "gpt2" else "ForCausalLM"
    pooling = {"add_pooling_layer": False} if name in ("bert", "roberta", "albert", "vit") else {}
    return getattr(module, f"{stem}{end}")(config, **pooling)


TEXT = ("bert", "roberta", "albert", "distilbert", "modernbert", "gpt2", "llama")
MODELS = (*TEXT, "vit")
DECODERS = (*FAMILIES, "bloom", "mpt")
GENERATING = ("gpt2", "llama", *DECODERS)
ALL = (*MODELS, *DECODERS)
ATTENTION = {
    "bert": "encoder.layer.1.attention",
    "roberta": "encoder.layer.1.attention",
    "albert": "encoder.albert_layer_groups.0.albert_layers.0.attention",
    "distilbert": "transformer.layer.1.attention",
    "modernbert": "layers.0.attn",
    "gpt2": "transformer.h.1.attn",
    "bloom": "transformer.h.1.self_attention",
    "mpt": "transformer.blocks.1.attn",
    "gpt_neox": "gpt_neox.layers.1.attention",
    "vit": "layers.1.attention",
}
ATTENTION |= {name: "model.layers.1.self_attn" for name in ALL if name not in ATTENTION}


def made(name: str, **options: Any) -> Any:
    """A model in evaluation, every parameter drawn, so that biases and scores are not near zero."""
    return drawn(model_of(name, **options)).eval()


def drawn(model: nn.Module) -> Any:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model


def inputs(name: str, padding: str = "none") -> dict[str, torch.Tensor]:
    """Three sentences of at most nine tokens, or three images."""
    generator = torch.Generator().manual_seed(2)
    if name == "vit":
        return {"pixel_values": torch.randn(3, 3, 8, 8, generator=generator)}
    ids = torch.randint(5, 50, (3, 9), generator=generator)
    if padding == "none":
        return {"input_ids": ids}
    lengths = torch.tensor([9, 6, 3])[:, None]
    places = torch.arange(9)[None]
    mask = places < lengths if padding == "right" else places >= 9 - lengths
    return {"input_ids": ids, "attention_mask": mask.long()}


def outputs(model: nn.Module, given: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    """What the model gives at the tokens that are no padding, [tokens, width]."""
    result = model(**given, **options)[0]
    return result[given["attention_mask"].bool()] if "attention_mask" in given else result.flatten(0, 1)


@cache
def pair(name: str, single: bool = False) -> tuple[Any, Any]:
    """A language model and what it is converted to, in float64, or in single precision; to be left as they are."""
    before = made(name) if single else made(name).double()
    return before, convert_model(copy.deepcopy(before), design_of(name))


def design_of(name: str) -> str:
    """What a model is converted to here."""
    if name in OWN:
        return name
    return "mhsa" if name in ("gpt2", "gpt_neox", "bloom", "mpt") else "gqa"


GREEDY = {
    "max_new_tokens": 7,
    "do_sample": False,
    "eos_token_id": None,
    "pad_token_id": 0,
    "return_dict_in_generate": True,
    "output_logits": True,
}


def generated(model: Any, padding: str, **options: Any) -> Any:
    given = {"attention_mask": torch.ones(3, 9, dtype=torch.long)} | inputs("llama", padding)
    return model.generate(**given, **GREEDY | {"use_cache": True} | options)
