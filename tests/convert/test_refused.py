"""What cannot be converted, and what a converted model refuses when it is called: whole messages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tensornet_attn.convert.attentions import read_trained
from tensornet_attn.convert.replace import convert_model
from tests.convert import models
from tests.refusals import refusal

MHA = "at (MultiheadAttention) cannot be converted: "


class Own(nn.MultiheadAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"add_bias_kv": True}, "it adds a learned key and value to every sequence (add_bias_kv=True)."),
        ({"add_zero_attn": True}, "it adds a key and value of zeros to every sequence (add_zero_attn=True)."),
        ({"kdim": 8}, "kdim is 8 and embed_dim 12; a design takes both from one input."),
        ({"vdim": 8}, "vdim is 8 and embed_dim 12; a design takes both from one input."),
        ({"device": "meta"}, "its 'in_proj' is on the meta device and has no values."),
    ],
)
def test_torch(options: dict[str, Any], reason: str) -> None:
    assert refusal(read_trained, nn.MultiheadAttention(12, 3, **options), "at") == MHA + reason


def test_other_classes() -> None:
    wanted = "at (Own) cannot be converted: its class overrides forward, and may compute something else."
    assert refusal(read_trained, Own(12, 3), "at") == wanted
    wanted = "at (Linear) is not a supported attention; docs/convert.md lists the supported classes."
    assert refusal(read_trained, nn.Linear(3, 3), "at") == wanted


def test_a_patched_forward() -> None:
    module = nn.MultiheadAttention(12, 3)
    module.forward = lambda x: x  # type: ignore[method-assign,assignment]
    assert refusal(read_trained, module) == (
        "MultiheadAttention cannot be converted: its forward was replaced on this instance, by a hook or a patch."
    )


def has(name: str, value: Any) -> Callable[[Any], None]:
    return lambda module: setattr(module, name, value)


class Lora(nn.Linear):
    pass


def quantised(name: str) -> Callable[[Any], None]:
    return lambda module: setattr(module, name, Lora(24, 24))


def configured(**options: Any) -> Callable[[Any], None]:
    """Sets options in the config of this one attention; a model shares its config between layers."""

    def change(module: Any) -> None:
        holder = module.self if hasattr(module, "self") else module
        holder.config = copy.deepcopy(holder.config)
        for name, value in options.items():
            setattr(holder.config, name, value)

    return change


relative = configured(position_embedding_type="relative_key")
scaled = configured(rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0})
partial = configured(rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("bert", relative, "config.position_embedding_type is 'relative_key'; only 'absolute' is supported"),
        ("albert", relative, "config.position_embedding_type is 'relative_key'; only 'absolute' is supported"),
        ("albert", has("pruned_heads", {1}), "some of its heads are pruned"),
        ("albert", has("num_attention_heads", 2), "its query projection is 24 wide, but 2 heads of 8 are 16"),
        ("bert", has("is_cross_attention", True), "it attends to another sequence (cross-attention)"),
        ("bert", has("self", nn.Linear(24, 24)), "its 'self' is a Linear, which may compute something else"),
        ("gpt2", has("is_cross_attention", True), "it attends to another sequence (cross-attention)"),
        ("gpt2", quantised("c_attn"), "its 'c_attn' is a tests.convert.test_refused.Lora, not a plain linear layer"),
        ("vit", lambda module: delattr(module, "head_dim"), None),
        (
            "llama",
            scaled,
            "its rotary positions are scaled (rope_type 'longrope', by lists of factors); a design has default, "
            "linear, dynamic, llama3, yarn ones",
        ),
        ("llama", partial, "partial_rotary_factor is 0.5, which LlamaAttention does not apply"),
        ("llama", has("sliding_window", 16), "it has a sliding window"),
        ("llama", has("q_norm", nn.Identity()), "it normalises queries"),
        ("llama", has("sinks", nn.Parameter(torch.zeros(4))), "it has attention sinks"),
        ("llama", has("attn_logit_softcapping", 50.0), "it caps its scores"),
    ],
)
def test_hugging_face(name: str, change: Callable[[Any], None], reason: str | None) -> None:
    model = models.made(name)
    module = model.get_submodule(models.ATTENTION[name])
    change(module)
    reason = reason or "it has no 'head_dim', unlike the known class of this name"
    assert refusal(convert_model, model, "thsa") == (
        f"{models.ATTENTION[name]} ({type(module).__name__}) cannot be converted: {reason}."
    )


def test_cross_attention_of_a_decoder() -> None:
    model = models.made("bert", is_decoder=True, add_cross_attention=True)
    message = refusal(convert_model, model, "thsa")
    assert message == (
        "encoder.layer.0.crossattention (BertAttention) cannot be converted: it attends to another sequence "
        "(cross-attention)."
    )
    assert refusal(convert_model, model, "mhsa", init="fresh", legs={"h": 3}) == message
    assert refusal(read_trained, model.encoder.layer[0].crossattention.self) == (
        "BertCrossAttention cannot be converted: it attends to another sequence (cross-attention)."
    )


class Attention(nn.Module):
    """An attention that no reader knows."""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3)), "no attention found in Sequential."),
        (
            lambda: nn.MultiheadAttention(12, 3),
            "MultiheadAttention is itself an attention; convert it with ta.convert.",
        ),
        (lambda: "bert", "a str is not a model; give an nn.Module."),
        (
            lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, 16), 1),
            "layers.0.multihead_attn (MultiheadAttention) cannot be converted: it attends to another sequence "
            "(cross-attention).",
        ),
        (
            lambda: nn.Sequential(nn.MultiheadAttention(12, 3), Attention()),
            "1 (Attention) is not a supported attention; similar supported classes: T5Attention, ViTAttention, "
            "MptAttention.",
        ),
    ],
)
def test_models(model: Callable[[], Any], message: str) -> None:
    assert refusal(convert_model, model(), "thsa") == message


def hooked() -> nn.Module:
    model = models.made("bert")
    model.encoder.layer[1].attention.self.query.register_forward_hook(lambda module, args, output: output)
    return model


def tied() -> nn.Module:
    model = models.made("bert")
    model.encoder.layer[1].attention.self.key.weight = model.encoder.layer[0].attention.self.key.weight
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            hooked,
            "encoder.layer.1.attention (BertAttention) cannot be converted: hooks are registered on it, which would be "
            "lost.",
        ),
        (
            tied,
            "encoder.layer.0.attention (BertAttention) cannot be converted: its 'self.key.weight' is shared with "
            "another module, and the conversion would end the sharing.",
        ),
    ],
)
def test_what_a_swap_would_lose(model: Callable[[], Any], message: str) -> None:
    assert refusal(convert_model, model(), "thsa") == message


def test_a_design_that_needs_two_inputs() -> None:
    assert refusal(convert_model, models.made("bert"), "cross") == (
        "encoder.layer.0.attention (BertAttention) cannot become 'cross': it needs x, memory, but is called with one "
        "input."
    )


GPT2 = "transformer.h.0.attn (GPT2Attention): "
LLAMA = "model.layers.0.self_attn (LlamaAttention): "


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "gpt2",
            {"output_attentions": True},
            "GPT2LMHeadModel: output_attentions is not supported after convert_model; capture the maps of a converted "
            "attention, as in module.design.capture(x, 'A').",
        ),
        (
            "gpt2",
            {"attention_mask": torch.ones(3, 1, 9, 9, dtype=torch.bool)},
            GPT2 + "the mask makes later keys visible, but the design is causal.",
        ),
        (
            "gpt2",
            {"attention_mask": torch.ones(3, 3, 9, 9, dtype=torch.bool) & (torch.arange(3) > 0)[:, None, None]},
            GPT2 + "the mask differs between heads; give one mask for all of them.",
        ),
        (
            "llama",
            {"position_ids": torch.arange(0, 18, 2)[None], "attention_mask": torch.ones(3, 9)},
            LLAMA + "position_ids are not consecutive between a query and a visible key, as the design assumes.",
        ),
        ("llama", {"is_causal": False}, LLAMA + "is_causal is False, but was True at the conversion."),
    ],
)
def test_calls(name: str, given: dict[str, Any], message: str) -> None:
    model = convert_model(models.made(name), "mhsa")
    assert refusal(model, **models.inputs(name) | given) == message


def test_calls_of_a_swapped_multihead_attention() -> None:
    module = convert_model(nn.ModuleList([nn.MultiheadAttention(12, 3)]), "mhsa")[0]
    x = torch.randn(5, 2, 12)
    assert refusal(module, x, x + 1, x + 1) == (
        "0 (MultiheadAttention): query, key and value are not the same tensor; it attends to one sequence."
    )
    wanted = "0 (MultiheadAttention): is_causal is only a hint about attn_mask; give attn_mask too."
    assert refusal(module, x, x, x, is_causal=True) == wanted


def test_positions_of_another_base() -> None:
    model = convert_model(models.made("llama"), "mhsa")
    module, x = model.model.layers[0].self_attn, torch.randn(1, 4, 24)
    cos, sin = model.model.rotary_emb(x, torch.arange(4)[None])
    for turns, message in (
        (None, "position_embeddings are missing; they are compared with the design's own."),
        ((sin, cos), "position_embeddings do not match position_ids with base 10000."),
    ):
        assert refusal(module, x, position_embeddings=turns) == LLAMA + message
