"""Layers of x-transformers with the designs to compare them with: its attention, one option at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.convert.calls import alone
from tensornet_attn.convert.layers import Numbers, Reading
from tests.parity.layer import ParityLayer

F, H, D = 24, 4, 6
HEADS = {
    "Wq": "to_q.weight: (h d) f",
    "Wk": "to_k.weight: (h d) f",
    "Wv": "to_v.weight: (h d) f",
    "Wo": "to_out.weight: f (h d)",
}
GROUPS = {
    "Wq": "to_q.weight: (j g d) f",
    "Wk": "to_k.weight: (g d) f",
    "Wv": "to_v.weight: (g d) f",
    "Wo": "to_out.weight: f (j g d)",
}
SIZES: dict[str, dict[str, int]] = {"Attention": {"dim_head": D, "heads": H}, "FeedForward": {"mult": 2}}
MIXED = "A[h n m] V[m h d] -> n h d"


def heads(module: Any) -> Numbers:
    return {"f": module.to_q.in_features, "h": module.heads, "d": module.to_q.out_features // module.heads}


def widths(module: Any) -> Numbers:
    return {"f": module.ff[2].out_features, "l": module.ff[2].in_features}


def gated(gate: str, legs: str) -> dict[str, Any]:
    """A diagram whose mixed values are multiplied by the sigmoid of `gate`, with these legs, before the output."""
    return {
        "O": MIXED,
        "G": {"map": "sigmoid", "of": gate},
        "gated": f"G[{legs}] O[n h d] -> n h d",
        "y": "gated[n h d] Wo[h d f] -> n f",
    }


def softmax(**options: Any) -> dict[str, Any]:
    """A diagram whose map has these options."""
    return {"diagram": {"A": {"softmax": "m", "scale": "d ** -0.5", **options, "of": "Q[n h d] K[m h d] -> h n m"}}}


def row(
    name: str,
    design: str,
    places: Mapping[str, Any] = HEADS,
    numbers: Any = heads,
    single: str = "softmax",
    causal: bool = False,
    pairs: tuple[str, ...] = (),
    call: Callable[[Any, Tensor], Tensor] = alone,
    options: Mapping[str, Any] | None = None,
    kind: str = "Attention",
    **changed: Any,
) -> ParityLayer:
    """A layer of x-transformers. By default, its `options` are those in its name.

    `places`: where its weights are, as in `Reading`. `changed`: overridden keys of the design.
    """
    chosen = dict.fromkeys(name.split(", "), True) if options is None else options
    asked = {"causal": True} if causal else {}

    def make() -> nn.Module:
        import x_transformers.x_transformers as theirs

        return getattr(theirs, kind)(F, **SIZES[kind], **asked, **chosen)

    reading = Reading(design, (kind,), numbers, places, pairs, extra=changed | asked, call=call)
    return ParityLayer("x-transformers", f"{kind}, {name}", design, make, reading, single=single)


def mixed(module: Any, _: Numbers) -> Tensor:
    """The mixing matrix of scores from head g to head h: the identity plus a weight."""
    weight = module.attend.pre_softmax_talking_heads.weight[:, :, 0, 0]
    return torch.eye(len(weight), dtype=weight.dtype) + weight.T


def rotary_call(module: Any, x: Tensor) -> Tensor:
    from x_transformers.x_transformers import RotaryEmbedding

    return module(x, rotary_pos_emb=RotaryEmbedding(D).forward_from_seq_len(x.shape[1]))


def alibi_call(module: Any, x: Tensor) -> Tensor:
    from x_transformers.x_transformers import AlibiPositionalBias

    return module(x, rel_pos=AlibiPositionalBias(heads=H, total_heads=H))


FEED: dict[str, Any] = {"kind": "FeedForward", "numbers": widths, "single": ""}
LAYERS = (
    row("plain", "mhsa", options={}),
    row("causal", "mhsa", options={}, causal=True),
    row("kv_heads", "gqa", GROUPS, numbers=lambda m: {"f": F, "g": 2, "j": 2, "d": D}, options={"kv_heads": 2}),
    row("one_kv_head", "mqa", HEADS | {"Wk": "to_k.weight: d f", "Wv": "to_v.weight: d f"}),
    row(
        "pre_talking_heads, post_talking_heads",
        "talking_heads",
        {
            "Wq": "to_q.weight: (g d) f",
            "Wk": "to_k.weight: (g d) f",
            "Wv": "to_v.weight: (e d) f",
            "Wo": "to_out.weight: f (e d)",
            "Pl": mixed,
            "Pw": "attend.post_softmax_talking_heads.weight: e h 0/1 0/1",
        },
        numbers=lambda m: {"f": F, "g": H, "h": H, "e": H, "d": D},
    ),
    row("qk_norm", "qk_l2norm", HEADS | {"temperature": lambda m, _: torch.tensor(float(m.qk_norm_scale))}, single=""),
    row(
        "qk_rmsnorm",
        "mhsa",
        HEADS | {"q_norm": "q_rmsnorm.gamma: h 0/1 d", "k_norm": "k_rmsnorm.gamma: h 0/1 d"},
        weights={"q_norm": "h d", "k_norm": "h d"},
        diagram={
            "q": {"rmsnorm": "d", "eps": 1e-24, "of": "x[n f] Wq[f h d] -> n h d"},
            "k": {"rmsnorm": "d", "eps": 1e-24, "of": "memory[m f] Wk[f h d] -> m h d"},
            "Q": "q[n h d] q_norm[h d] + q[n h d] -> n h d",
            "K": "k[m h d] k_norm[h d] + k[m h d] -> m h d",
        },
    ),
    row(
        "value_rmsnorm",
        "mhsa",
        HEADS | {"v_norm": "value_rmsnorm.gamma: h 0/1 d"},
        weights={"v_norm": "h d"},
        diagram={
            "v": {"rmsnorm": "d", "eps": 1e-24, "of": "memory[m f] Wv[f h d] -> m h d"},
            "V": "v[m h d] v_norm[h d] + v[m h d] -> m h d",
        },
    ),
    row("l2_distance", "l2_attention"),
    row("laser", "laser", diagram={"V": {"map": "softcap(15)", "of": "memory[m f] Wv[f h d] -> m h d"}}),
    row(
        "sigmoid",
        "sigmoid_attention",
        single="",
        diagram={"A": {"keep": "m", "of": {"map": "sigmoid", "of": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m"}}},
    ),
    row(
        "softclamp_logits",
        "mhsa",
        options={"softclamp_logits": True, "logit_softclamp_value": 2.0},
        diagram={"A": {"softmax": "m", "of": {"map": "softcap(2)", "of": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m"}}},
    ),
    row(
        "gate_values",
        "mhsa",
        HEADS | {"Wg": "to_v_gate.weight: (h d) f"},
        weights={"Wg": "f h d"},
        diagram=gated("x[n f] Wg[f h d] -> n h d", "n h d"),
    ),
    row(
        "gate_value_heads",
        "mhsa",
        HEADS | {"Wg": "to_v_head_gate.weight: h f", "bg": "to_v_head_gate.bias"},
        weights={"Wg": "f h", "bg": "h"},
        diagram=gated("x[n f] Wg[f h] + bg[h] -> n h", "n h"),
    ),
    row(
        "output_gate",
        "mhsa",
        HEADS | {"Wg": lambda m, _: m.to_output_gate.weight.T.reshape(H, D, H, D)},
        legs={"a": "head h", "b": "d"},
        weights={"Wg": "a b h d"},
        diagram=gated("O[n a b] Wg[a b h d] -> n h d", "n h d"),
    ),
    row(
        "on_attn",
        "mhsa",
        HEADS | {"Wo": "to_out.0.weight: (0/2 f) (h d)", "Wg": "to_out.0.weight: (1/2 f) (h d)"},
        weights={"Wg": "h d f"},
        diagram={
            "O": MIXED,
            "a": "O[n h d] Wo[h d f] -> n f",
            "G": {"map": "sigmoid", "of": "O[n h d] Wg[h d f] -> n f"},
            "y": "a[n f] G[n f] -> n f",
        },
    ),
    row(
        "head_scale",
        "mhsa",
        HEADS | {"s": "head_scale_params: 0/1 h 0/1 0/1"},
        weights={"s": "h"},
        diagram={"y": "s[h] A[h n m] V[m h d] Wo[h d f] -> n f"},
    ),
    row(
        "head_learned_sink",
        "mhsa",
        HEADS | {"sink": "attend.head_attn_sink"},
        weights={"sink": "h"},
        **softmax(sink="sink[h]"),
    ),
    row(
        "sparse_topk",
        "mhsa",
        options={"sparse_topk": 4},
        diagram={
            "S": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m",
            "A": {"softmax": "m", "of": {"topk": "m", "k": 4, "fill": "-inf", "of": "S"}},
        },
    ),
    row(
        "use_cope",
        "cope",
        HEADS | {"E": lambda m, _: m.attend.cope.pos_emb.T},
        numbers=lambda m: heads(m) | {"p": 6},
        causal=True,
        options={"use_cope": True, "cope_max_pos": 6},
        diagram={"gate": {"map": "sigmoid", "of": "(d ** -0.5) * S[h n m] -> h n m"}},
    ),
    row(
        "use_latent_kv",
        "mla",
        {
            "Wq": "to_q.weight: (h d) f",
            "Wc": "to_latent_kv.weight: c f",
            "Wuk": "to_k.weight: (h d) c",
            "Wuv": "to_v.weight: (h d) c",
            "Wo": "to_out.weight: f (h d)",
        },
        numbers=lambda m: heads(m) | {"c": m.to_latent_kv.out_features},
        options={"use_latent_kv": True, "dim_latent_kv": 10},
    ),
    row("max_attend_past", "mhsa", causal=True, options={"max_attend_past": 3}, **softmax(mask=["window(3, 0)"])),
    row(
        "inverted_attention",
        "mhsa",
        diagram={
            "S": {"softmax": "n", "scale": "d ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"},
            "A": {"normalize": "m", "of": "S[h n m] -> h n m"},
        },
    ),
    row(
        "data_dependent_alibi",
        "fox",
        HEADS
        | {
            "Wf": "data_dependent_alibi.to_forget_gates.0.weight: h f",
            "bf": "data_dependent_alibi.to_forget_gates.0.bias",
        },
        causal=True,
    ),
    row("rotary_pos_emb", "mhsa_rope", single="angles, softmax", pairs=("Wq", "Wk"), call=rotary_call, options={}),
    row("alibi", "alibi", causal=True, call=alibi_call, options={}),
    row(
        "glu, swish",
        "swiglu",
        {
            "Wu": "ff.0.proj.weight: (0/2 l) f",
            "Wg": "ff.0.proj.weight: (1/2 l) f",
            "bu": "ff.0.proj.bias: (0/2 l)",
            "bg": "ff.0.proj.bias: (1/2 l)",
            "Wd": "ff.2.weight: f l",
            "bd": "ff.2.bias",
        },
        weights={"bu": "l", "bg": "l", "bd": "f"},
        diagram={
            "G": {"map": "silu", "of": "x[n f] Wg[f l] + bg[l] -> n l"},
            "U": "x[n f] Wu[f l] + bu[l] -> n l",
            "y": "H[n l] Wd[l f] + bd[f] -> n f",
        },
        **FEED,
    ),
    row(
        "relu_squared",
        "nemotron_mlp",
        {"W1": "ff.0.0.weight: l f", "W2": "ff.2.weight: f l"},
        options={"relu_squared": True, "no_bias": True},
        **FEED,
    ),
    row(
        "gelu",
        "mlp",
        {"W1": "ff.0.0.weight: l f", "b1": "ff.0.0.bias", "W2": "ff.2.weight: f l", "b2": "ff.2.bias"},
        options={},
        diagram={"H": {"map": "gelu", "of": "x[n f] W1[f l] + b1[l] -> n l"}},
        **FEED,
    ),
)
