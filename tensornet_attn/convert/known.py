"""Layers of transformers that equal a shipped design, one row per design: classes, sizes and weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.convert.calls import eagerly, output, rope_of, turns
from tensornet_attn.convert.families import family_of
from tensornet_attn.convert.layers import Numbers, Reading

GROUPED = {
    "Wq": "q_proj.weight: (g j d) f",
    "Wk": "k_proj.weight: (g d) f",
    "Wv": "v_proj.weight: (g d) f",
    "Wo": "o_proj.weight: f (g j d)",
}
GROUPED_BIASES = {"bq": "q_proj.bias: (g j d)", "bk": "k_proj.bias: (g d)", "bv": "v_proj.bias: (g d)"}
NORMS = {"q_norm": "q_norm.weight", "k_norm": "k_norm.weight"}
GATED = {"Wg": "gate_proj.weight: l f", "Wu": "up_proj.weight: l f", "Wd": "down_proj.weight: f l"}
EXPERTS = {
    "Wr": "gate.weight: e f",
    "Wg": "experts.gate_up_proj: e 0/2 l f",
    "Wu": "experts.gate_up_proj: e 1/2 l f",
    "Wd": "experts.down_proj: e f l",
}
FUSED_HEADS = {
    **{f"W{letter}": f"query_key_value.weight: (h {i}/3 d) f" for i, letter in enumerate("qkv")},
    **{f"b{letter}": f"query_key_value.bias: (h {i}/3 d)" for i, letter in enumerate("qkv")},
    "Wo": "dense.weight: f (h d)",
    "bo": "dense.bias",
}


def grouped(module: Any) -> Numbers:
    """Sizes of grouped-query attention from its projections, and the base of its rotary positions."""
    d, q, k = int(module.head_dim), module.q_proj, module.k_proj
    g = k.out_features // d
    return {"f": q.in_features, "g": g, "j": q.out_features // d // g, "d": d} | rope(module)


def rope(module: Any, setting: str = "") -> Numbers:
    """The base of rotary positions. With `setting`, also the fraction of a head that they act on, under this name."""
    parameters = rope_of(module)
    numbers: Numbers = {"base": plain(parameters["rope_theta"])}
    return numbers | ({setting: float(parameters.get("partial_rotary_factor", 1.0))} if setting else {})


def plain(number: float) -> float:
    return int(number) if float(number).is_integer() else number


def multihead(module: Any) -> Numbers:
    q, d = module.q_proj, module.head_dim
    return {"f": q.in_features, "h": q.out_features // d, "d": d} | rope(module, "turned")


def windowed(module: Any) -> Numbers:
    return grouped(module) | {"window": int(module.config.sliding_window or 2**30)}


def normed(module: Any) -> Numbers:
    norm = module.q_norm
    return grouped(module) | {"eps": norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps}


def scalar(module: Any) -> Numbers:
    """Gemma's setting: it scales scores by query_pre_attn_scalar ** -0.5."""
    return {"scalar": module.config.query_pre_attn_scalar}


def capped(module: Any) -> Numbers:
    return grouped(module) | scalar(module) | {"cap": module.attn_logit_softcapping}


def local(module: Any) -> Numbers:
    return {"window": module.sliding_window}


def fused(module: Any) -> Numbers:
    """Sizes of an attention with a fused projection, grouped by head."""
    layer, d = module.query_key_value, int(getattr(module, "head_dim", 0) or module.head_size)
    return {"f": layer.in_features, "h": layer.out_features // (3 * d), "d": d}


def mlp(module: Any) -> Numbers:
    return {"f": module.down_proj.out_features, "l": module.down_proj.in_features}


def experts(module: Any) -> Numbers:
    e, f, l = module.experts.down_proj.shape  # noqa: E741  # the leg's name
    return {"f": f, "e": e, "l": l, "k": module.gate.top_k}


def shared(module: Any) -> Numbers:
    return experts(module) | {"s": module.shared_expert.down_proj.in_features}


def grouped_experts(module: Any) -> Numbers:
    gate = module.gate
    numbers = {"groups": gate.num_group, "k_groups": gate.topk_group, "stretch": gate.routed_scaling_factor}
    return experts(module) | numbers | {"s": module.shared_experts.down_proj.in_features}


def latent(module: Any) -> Numbers:
    return {
        "f": module.hidden_size,
        "h": module.num_heads,
        "d": module.qk_nope_head_dim,
        "r": module.qk_rope_head_dim,
        "e": module.v_head_dim,
        "a": module.q_lora_rank,
        "c": module.kv_lora_rank,
        "eps": module.kv_a_layernorm.variance_epsilon,
        "stretch": module.scaling * module.qk_head_dim**0.5,
    } | rope(module)


def split(layer: str, first: str, second: str, take: int) -> Any:
    """A reader of one of two parts of each head of a layer's weight: [input, heads, entries]."""

    def read(module: Any, numbers: Numbers) -> Tensor:
        weight = getattr(module, layer).weight.unflatten(0, (numbers["h"], -1))  # heads, both parts, input
        return weight.split([numbers[first], numbers[second]], 1)[take].permute(2, 0, 1)

    return read


def interleaved(weight: str) -> Any:
    """A reader of a DeepSeek weight with rotary positions on its last leg; pairs are neighbours in the result."""

    def read(module: Any, numbers: Numbers) -> Tensor:
        if weight == "Wkr":
            rotary = module.kv_a_proj_with_mqa.weight[numbers["c"] :].T
        else:
            rotary = split("q_b_proj", "d", "r", 1)(module, numbers)
        return rotary if module.config.rope_interleave else torch.stack(rotary.chunk(2, -1), -1).flatten(-2)

    return read


def differential(module: Any) -> Numbers:
    d, q, k = int(module.head_dim), module.q_proj, module.k_proj
    g = k.out_features // d // 2
    numbers = {"f": q.in_features, "g": g, "j": q.out_features // d // 2 // g, "d": d, "e": 2 * d}
    return numbers | {"lambda_init": module.lambda_init, "eps": module.groupnorm.eps} | rope(module)


def values_of_pairs(module: Any, numbers: Numbers) -> Tensor:
    """DiffLlama's values [f, g, e]: heads i and i + g are concatenated."""
    return module.v_proj.weight.unflatten(0, (2, numbers["g"], numbers["d"])).permute(3, 1, 0, 2).flatten(2)


def perceiver(module: Any) -> Numbers:
    inner = module.self
    f, c, h = inner.query.in_features, inner.key.in_features, inner.num_heads
    return {"f": f, "c": c, "h": h, "d": inner.query.out_features // h, "eps": inner.layernorm1.eps}


def minimax(module: Any) -> Numbers:
    h, d = module.num_attention_heads, module.head_dim
    speed = float(module.slope_rate.detach().flatten()[0]) * 2 ** (8 / h)  # the first slope is speed * 2 ** (-8 / h)
    return {"f": module.qkv_proj.in_features, "h": h, "d": d, "speed": speed, "eps": module.norm.variance_epsilon}


def t5(module: Any) -> Numbers:
    return {
        "f": module.d_model,
        "h": module.n_heads,
        "d": module.key_value_proj_dim,
        "b": module.relative_attention_num_buckets,
        "furthest": module.relative_attention_max_distance,
    }


def bloom_call(module: Any, x: Tensor) -> Tensor:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    bias = build_alibi_tensor(torch.ones(x.shape[:2], dtype=torch.long), module.num_heads, x.dtype)
    return output(module(x, torch.zeros_like(x), bias, causal(x)))


def mpt_call(module: Any, x: Tensor) -> Tensor:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    bias = build_mpt_alibi_tensor(module.n_heads, x.shape[1])
    return output(module(x, bias.to(x.dtype), attention_mask=causal(x) < 0))


def gpt2_call(module: Any, x: Tensor) -> Tensor:
    return eagerly(module, x, attention_mask=causal(x))


def causal(x: Tensor) -> Tensor:
    n = x.shape[1]
    return torch.full((1, 1, n, n), -torch.inf, dtype=x.dtype).triu(1)


def turned_call(module: Any, x: Tensor) -> Tensor:
    """The call of causal classes without an `is_causal` attribute."""
    return eagerly(module, x, attention_mask=causal(x), position_embeddings=turns(module, x))


def perceiver_call(module: Any, x: Tensor) -> Tensor:
    """The output without the residual connection; the latents are queries and the inputs."""
    return module.output.dense(output(module.self(x, inputs=x)))


def xlnet_call(module: Any, x: Tensor) -> Tensor:
    """The output before LayerNorm and the residual connection. XLNet puts the sequence before the batch."""
    h, n = x.transpose(0, 1), x.shape[1]
    places = torch.arange(n, -n, -1.0, dtype=x.dtype)
    angles = places[:, None] / 10000 ** (torch.arange(0, module.d_model, 2, dtype=x.dtype) / module.d_model)
    table = torch.cat((angles.sin(), angles.cos()), -1)[:, None]
    q, k, v, r = (
        torch.einsum("ibh,hnd->ibnd", rows, getattr(module, name))
        for name, rows in (("q", h), ("k", h), ("v", h), ("r", table.expand(-1, x.shape[0], -1)))
    )
    return torch.einsum("ibnd,hnd->bih", module.rel_attn_core(q, k, v, r), module.o)


READINGS: tuple[Reading, ...] = (
    Reading("llama", ("LlamaAttention",), grouped, GROUPED, in_models=True),
    Reading("mistral", ("MistralAttention", "MixtralAttention"), windowed, GROUPED, in_models=True),
    Reading("qwen2", ("Qwen2Attention",), grouped, GROUPED | GROUPED_BIASES, in_models=True),
    Reading("qwen3", ("Qwen3Attention", "Qwen3MoeAttention"), normed, GROUPED | NORMS, in_models=True),
    Reading(
        "qwen3_next",
        ("Qwen3NextAttention",),
        lambda m: normed(m) | rope(m, "turned") | {"j": m.num_key_value_groups},
        GROUPED | NORMS | {"Wq": "q_proj.weight: (g j 0/2 d) f", "Wg": "q_proj.weight: (g j 1/2 d) f"},
        in_models=True,
    ),
    Reading("gemma2", ("Gemma2Attention",), capped, GROUPED, in_models=True),
    Reading("gemma2_local", ("Gemma2Attention",), lambda m: capped(m) | local(m), GROUPED),
    Reading("gemma3", ("Gemma3Attention",), lambda m: normed(m) | scalar(m), GROUPED | NORMS, in_models=True),
    Reading("gemma3_local", ("Gemma3Attention",), lambda m: normed(m) | scalar(m) | local(m), GROUPED | NORMS),
    Reading(
        "cohere",
        ("CohereAttention",),
        normed,
        GROUPED | {"q_norm": "q_norm.weight: (g j) d", "k_norm": "k_norm.weight: g d"},
        in_models=True,
    ),
    Reading(
        "olmo2",
        ("Olmo2Attention",),
        normed,
        GROUPED | {"q_norm": "q_norm.weight: (g j d)", "k_norm": "k_norm.weight: (g d)"},
        in_models=True,
    ),
    Reading(
        "gpt_oss",
        ("GptOssAttention",),
        grouped,
        GROUPED | GROUPED_BIASES | {"sink": "sinks: (g j)", "bo": "o_proj.bias"},
        in_models=True,
        once=True,
    ),
    Reading("nemotron", ("NemotronAttention",), lambda m: grouped(m) | rope(m, "turned"), GROUPED, in_models=True),
    Reading(
        "gpt2",
        ("GPT2Attention",),
        lambda m: {"f": m.embed_dim, "h": m.num_heads, "d": m.head_dim},
        {
            **{f"W{letter}": f"c_attn.weight: f ({i}/3 h d)" for i, letter in enumerate("qkv")},
            **{f"b{letter}": f"c_attn.bias: ({i}/3 h d)" for i, letter in enumerate("qkv")},
            "Wo": "c_proj.weight: (h d) f",
            "bo": "c_proj.bias",
        },
        call=gpt2_call,
    ),
    Reading(
        "gpt_neox",
        ("GPTNeoXAttention",),
        lambda m: fused(m) | rope(m, "turned"),
        FUSED_HEADS,
        call=turned_call,
        in_models=True,
    ),
    Reading(
        "phi",
        ("PhiAttention",),
        multihead,
        {
            **{f"W{letter}": f"{letter}_proj.weight: (h d) f" for letter in "qkv"},
            **{f"b{letter}": f"{letter}_proj.bias: (h d)" for letter in "qkv"},
            "Wo": "dense.weight: f (h d)",
            "bo": "dense.bias",
        },
        in_models=True,
    ),
    Reading("bloom", ("BloomAttention",), fused, FUSED_HEADS, call=bloom_call),
    Reading(
        "mpt",
        ("MptAttention",),
        lambda m: {"f": m.hidden_size, "h": m.n_heads, "d": m.head_dim, "clip": plain(m.clip_qkv or 2**30)},
        {
            **{f"W{letter}": f"Wqkv.weight: ({i}/3 h d) f" for i, letter in enumerate("qkv")},
            "Wo": "out_proj.weight: f (h d)",
        },
        call=mpt_call,
    ),
    Reading(
        "t5",
        ("T5Attention",),
        t5,
        {
            "Wq": "q.weight: (h d) f",
            "Wk": "k.weight: (h d) f",
            "Wv": "v.weight: (h d) f",
            "Wo": "o.weight: f (h d)",
            "B": "relative_attention_bias.weight: b h",
        },
        call=eagerly,
    ),
    Reading(
        "lfm2",
        ("Lfm2ShortConv",),
        lambda m: {"f": m.in_proj.in_features, "a": m.in_proj.in_features, "w": m.conv_kernel_size},
        {
            **{f"W{letter}": f"in_proj.weight: ({i}/3 a) f" for i, letter in enumerate("bcx")},
            "T": "conv.weight: a 0/1 w",
            "Wo": "out_proj.weight: f a",
        },
        call=lambda m, x: m(x),
    ),
    Reading(
        "xlnet",
        ("XLNetRelativeAttention",),
        lambda m: {"f": m.d_model, "h": m.n_head, "d": m.d_head},
        {
            "Wq": "q",
            "Wk": "k",
            "Wv": "v",
            "Wr": lambda m, _: m.r.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1),  # XLNet: sines first
            "u": "r_w_bias",
            "v": "r_r_bias",
            "Wo": "o: f h d",
        },
        outside=("layer_norm", "r_s_bias", "seg_embed"),
        call=xlnet_call,
    ),
    Reading(
        "diffllama",
        ("DiffLlamaAttention",),
        differential,
        {
            **{f"Wq{i + 1}": f"q_proj.weight: ({i}/2 g j d) f" for i in range(2)},
            **{f"Wk{i + 1}": f"k_proj.weight: ({i}/2 g d) f" for i in range(2)},
            **{f"l{letter}{i}": f"lambda_{letter}{i}" for letter in "qk" for i in (1, 2)},
            "Wv": values_of_pairs,
            "Wo": "o_proj.weight: f (g j e)",
        },
        in_models=True,
    ),
    Reading(
        "deepseek_v3",
        ("DeepseekV3Attention",),
        latent,
        {
            "Wa": "q_a_proj.weight: a f",
            "a_norm": "q_a_layernorm.weight",
            "Wq": split("q_b_proj", "d", "r", 0),
            "Wqr": interleaved("Wqr"),
            "Wc": lambda m, sizes: m.kv_a_proj_with_mqa.weight[: sizes["c"]].T,
            "c_norm": "kv_a_layernorm.weight",
            "Wk": split("kv_b_proj", "d", "e", 0),
            "Wkr": interleaved("Wkr"),
            "Wv": split("kv_b_proj", "d", "e", 1),
            "Wo": "o_proj.weight: f (h e)",
        },
        in_models=True,
    ),
    Reading(
        "moonshine",
        ("MoonshineAttention",),
        multihead,
        {**{f"W{letter}": f"{letter}_proj.weight: (h d) f" for letter in "qkv"}, "Wo": "o_proj.weight: f (h d)"},
    ),
    Reading(
        "perceiver",
        ("PerceiverAttention",),
        perceiver,
        {
            "x_scale": "self.layernorm1.weight",
            "x_shift": "self.layernorm1.bias",
            "memory_scale": "self.layernorm2.weight",
            "memory_shift": "self.layernorm2.bias",
            **{f"W{n[0]}": f"self.{n}.weight: (h d) {'f' if n == 'query' else 'c'}" for n in ("query", "key", "value")},
            **{f"b{n[0]}": f"self.{n}.bias: (h d)" for n in ("query", "key", "value")},
            "Wo": "output.dense.weight: f (h d)",
            "bo": "output.dense.bias",
        },
        call=perceiver_call,
    ),
    Reading(
        "rwkv4",
        ("RwkvSelfAttention",),
        lambda m: {"f": m.key.in_features, "a": m.key.out_features},
        {
            **{f"mu_{n[0]}": f"time_mix_{n}: 0/1 0/1 f" for n in ("receptance", "key", "value")},
            **{f"W{n[0]}": f"{n}.weight: a f" for n in ("receptance", "key", "value")},
            "w": "time_decay",
            "u": "time_first",
            "Wo": "output.weight: f a",
        },
    ),
    Reading(
        "minimax",
        ("MiniMaxLightningAttention",),
        minimax,
        {
            **{f"W{letter}": f"qkv_proj.weight: (h {i}/3 d) f" for i, letter in enumerate("qkv")},
            "Wg": "output_gate.weight: (h d) f",
            "norm": "norm.weight: (h d)",
            "Wo": "out_proj.weight: f (h d)",
        },
        call=lambda m, x: output(m(x, None, None)),
    ),
    Reading("swiglu", ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP", "Olmo2MLP", "CohereMLP"), mlp, GATED),
    Reading(
        "geglu",
        ("ModernBertMLP",),
        lambda m: {"f": m.Wo.out_features, "l": m.Wo.in_features},
        {"Wg": "Wi.weight: (0/2 l) f", "Wu": "Wi.weight: (1/2 l) f", "Wd": "Wo.weight: f l"},
    ),
    Reading("nemotron_mlp", ("NemotronMLP",), mlp, {"W1": "up_proj.weight: l f", "W2": "down_proj.weight: f l"}),
    Reading("mixtral", ("MixtralSparseMoeBlock",), experts, EXPERTS),
    Reading(
        "qwen2_moe",
        ("Qwen2MoeSparseMoeBlock",),
        shared,
        {
            **EXPERTS,
            "Wsg": "shared_expert.gate_proj.weight: s f",
            "Wsu": "shared_expert.up_proj.weight: s f",
            "Wsd": "shared_expert.down_proj.weight: f s",
            "gate": "shared_expert_gate.weight: 0/1 f",
        },
    ),
    Reading(
        "deepseek_moe",
        ("DeepseekV3MoE",),
        grouped_experts,
        {
            **EXPERTS,
            "bias": "gate.e_score_correction_bias",
            "Wsg": "shared_experts.gate_proj.weight: s f",
            "Wsu": "shared_experts.up_proj.weight: s f",
            "Wsd": "shared_experts.down_proj.weight: f s",
        },
    ),
    Reading(
        "switch",
        ("SwitchTransformersSparseMLP",),
        lambda m: {
            "f": m.experts["expert_0"].wi.in_features,
            "e": len(m.experts),
            "l": m.experts["expert_0"].wi.out_features,
        },
        {
            "Wr": "router.classifier.weight: e f",
            "W1": lambda m, _: torch.stack([expert.wi.weight.T for expert in m.experts.values()]),
            "W2": lambda m, _: torch.stack([expert.wo.weight.T for expert in m.experts.values()]),
        },
    ),
)


def readings_of(module: nn.Module) -> list[Reading]:
    """The rows for a module of transformers, one for each design that it can equal."""
    if not type(module).__module__.startswith("transformers.models.") or "forward" in vars(module):
        return []
    forward = type(module).forward
    kin = {base.__name__ for base in type(module).__mro__ if getattr(base, "forward", None) is forward}
    return [row for row in READINGS if kin & {*row.classes}]


def swappable(module: nn.Module) -> bool:
    """Whether a design can replace it: a design that contains its attention, or a shipped design that equals it."""
    return family_of(module) is not None or any(row.in_models for row in readings_of(module))


def reading_of(module: nn.Module, design: Any) -> Reading | None:
    """The row of a module for the named design, or None if there is none."""
    return next((row for row in readings_of(module) if row.design == design), None)
