"""What a trained attention holds, read out of each kind of module; what no design can carry is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from tensornet_attn.errors import InputError

Projection = tuple[Tensor, Tensor | None]  # weight [in, out], bias [out]
WORDS = {"q": "query", "k": "key", "v": "value"}  # of a projection's letter
CROSS = "it attends to another sequence (cross-attention)"

# Attributes of attention modules, here or in kin of these families, that change what is computed.
NO_DESIGN_HAS = {
    "distance_embedding": "its positions are learned distances between queries and keys (position_embedding_type)",
    "sliding_window": "it sees a sliding window only",
    "q_norm": "it normalises queries",
    "k_norm": "it normalises keys",
    "sinks": "it has attention sinks",
    "attn_logit_softcapping": "it caps its scores",
    "pruned_heads": "some of its heads are pruned",
}


@dataclass(frozen=True)
class Trained:
    """The weights of one trained attention, read out of whatever module held them.

    `where` names it in errors: module path and class, "encoder.layer.0.attention (BertAttention)". `weights`:
    Wq [f h d], Wk [f g d], Wv [f g d], Wo [h d f], where g, the key and value heads, divides h. They are detached
    copies, and the scale of the scores is d ** -0.5: any other is absorbed into Wq and bq. `biases`: those there are
    of bq [h d], bk [g d], bv [g d], bo [f]. Rotary positions turn queries and keys, halves paired; `dropout` is on the
    attention map.
    """

    where: str
    weights: dict[str, Tensor]
    biases: dict[str, Tensor]
    causal: bool
    rope_base: float | None = None
    rope_fraction: float = 1.0
    dropout: float = 0.0


def refusal(where: str, reason: str) -> InputError:
    return InputError(f"{where} cannot be converted: {reason}.")


def read_multihead(module: Any, where: str) -> Trained:
    """nn.MultiheadAttention, its projections packed or separate."""
    if type(module).forward is not nn.MultiheadAttention.forward:
        raise refusal(where, "it computes something of its own (its class overrides forward)")
    if module.bias_k is not None or module.bias_v is not None:
        raise refusal(where, "it adds a learned key and value to every sequence (add_bias_kv=True)")
    if module.add_zero_attn:
        raise refusal(where, "it adds a key and value of zeros to every sequence (add_zero_attn=True)")
    for name in ("kdim", "vdim"):
        size, both = getattr(module, name), module.embed_dim
        if size != both:
            raise refusal(where, f"{name} is {size} and embed_dim {both}; a design takes both from one input")
    weights, biases = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight), (None, None, None)
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.chunk(3)
    triples = zip("qkv", weights, biases, strict=True)
    projections = {letter: _real(where, "in_proj", weight.T, bias) for letter, weight, bias in triples}
    projections["o"] = _linear(where, module, "out_proj")
    dropout = float(module.dropout)
    return _trained(where, projections, module.num_heads, module.head_dim, causal=False, dropout=dropout)


def read_bert(module: Any, where: str) -> Trained:
    """BertAttention or RobertaAttention: self-attention and the linear layer after it.

    LayerNorm and residual connection stay outside the design, as those of ALBERT do.
    """
    inner = _part(where, module, "self")
    if getattr(module, "is_cross_attention", False) or "Cross" in type(inner).__name__:
        raise refusal(where, CROSS)
    if type(inner).__name__ not in ("BertSelfAttention", "RobertaSelfAttention"):
        raise refusal(where, f"its 'self' is a {type(inner).__name__}, which computes something of its own")
    _check_plain(where, module)
    return read_bert_self(inner, where, (module, "output.dense"))


def read_albert(module: Any, where: str) -> Trained:
    return read_bert_self(module, where, (module, "dense"))


def read_bert_cross(module: Any, where: str) -> Trained:
    raise refusal(where, CROSS)


def read_bert_self(inner: Any, where: str, output: tuple[Any, str] | None = None) -> Trained:
    """BertSelfAttention alone: without an output layer the heads, one after another, are its output."""
    _check_plain(where, inner)
    projections = {letter: _linear(where, inner, name) for letter, name in WORDS.items()}
    projections |= {"o": _linear(where, *output)} if output else {}
    count, width = _part(where, inner, "num_attention_heads"), _part(where, inner, "attention_head_size")
    dropout = _part(where, inner, "attention_dropout" if hasattr(inner, "attention_dropout") else "dropout")
    causal, scale = bool(getattr(inner, "is_causal", False)), getattr(inner, "scaling", None)
    return _trained(where, projections, count, width, causal=causal, scale=scale, dropout=float(dropout.p))


def read_gpt2(module: Any, where: str) -> Trained:
    """GPT2Attention: queries, keys and values from one layer; its scale, by layer or none, goes into the queries."""
    if getattr(module, "is_cross_attention", False):
        raise refusal(where, CROSS)
    _check_plain(where, module)
    weight, bias = _linear(where, module, "c_attn")
    weights, biases = weight.chunk(3, dim=1), (None,) * 3 if bias is None else bias.chunk(3)
    projections = dict(zip("qkv", zip(weights, biases, strict=True), strict=True))
    projections["o"] = _linear(where, module, "c_proj")
    count, width = _part(where, module, "num_heads"), _part(where, module, "head_dim")
    scale, dropout = _part(where, module, "scaling"), float(_part(where, module, "attn_dropout").p)
    return _trained(where, projections, count, width, causal=True, scale=scale, dropout=dropout)


def read_vit(module: Any, where: str) -> Trained:
    return _read_plain(module, where, _part(where, module, "num_attention_heads"), causal=False)


def read_llama(module: Any, where: str) -> Trained:
    """LlamaAttention; key-value heads may be fewer than query heads. Rotary positions of the plain kind only."""
    _check_plain(where, module)
    config = _part(where, module, "config")
    rope = _part(where, config, "rope_parameters")
    kind, fraction = rope.get("rope_type", "default"), rope.get("partial_rotary_factor", 1.0)
    if kind != "default":
        raise refusal(where, f"its rotary positions are scaled (rope_type '{kind}'); a design has 'default' ones")
    if fraction != 1.0:
        raise refusal(where, f"partial_rotary_factor is {fraction}, which Llama does not apply")
    return _read_plain(
        module,
        where,
        config.num_attention_heads,
        causal=bool(_part(where, module, "is_causal")),
        keys=config.num_key_value_heads,
        rope_base=float(rope["rope_theta"]),
    )


def _read_plain(module: Any, where: str, count: int, causal: bool, **others: Any) -> Trained:
    """Four projections of Hugging Face's newer names."""
    _check_plain(where, module)
    projections = {letter: _linear(where, module, f"{letter}_proj") for letter in "qkvo"}
    width, scale = _part(where, module, "head_dim"), _part(where, module, "scaling")
    dropout = float(_part(where, module, "attention_dropout"))
    return _trained(where, projections, count, width, causal=causal, scale=scale, dropout=dropout, **others)


def _check_plain(where: str, module: nn.Module) -> None:
    """Refuses a module with something that no design has. Raises InputError."""
    for name, reason in NO_DESIGN_HAS.items():
        held = getattr(module, name, None)
        if isinstance(held, (nn.Module, Tensor)) or (held is not None and held is not False and held != set()):
            raise refusal(where, reason)
    kind = getattr(getattr(module, "config", None), "position_embedding_type", "absolute")
    if kind not in (None, "absolute"):
        raise refusal(where, f"config.position_embedding_type is '{kind}'; only 'absolute' positions stay outside it")


def _part(where: str, module: nn.Module, name: str) -> Any:
    """What a module of this family has under a name, which may be dotted. Raises InputError where it lacks it."""
    found: Any = module
    for piece in name.split("."):
        if not hasattr(found, piece):
            raise refusal(where, f"it has no '{name}', so it is not the module that this class name promises")
        found = getattr(found, piece)
    return found


def _linear(where: str, module: nn.Module, name: str) -> Projection:
    """A linear layer as (weight [in, out], bias [out] or None). Raises InputError for any other layer in its place."""
    layer = _part(where, module, name)
    kind = type(layer)
    if kind in (nn.Linear, NonDynamicallyQuantizableLinear):
        return _real(where, name, layer.weight.T, layer.bias)
    if kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils":
        return _real(where, name, layer.weight, layer.bias)
    raise refusal(where, f"its '{name}' is a {kind.__module__}.{kind.__name__}, not a plain linear layer")


def _real(where: str, name: str, weight: Tensor, bias: Tensor | None) -> Projection:
    """The pair, once it is sure that there are numbers to read."""
    if weight.is_meta:
        raise refusal(where, f"its '{name}' is on the meta device and has no values")
    if not weight.is_floating_point():
        raise refusal(where, f"its '{name}' holds {weight.dtype}, not floating point numbers")
    return weight, bias


def _trained(
    where: str,
    projections: Mapping[str, Projection],  # q, k, v, o; without o the output is the heads, one after another
    h: int,
    d: int,
    *,
    causal: bool,
    keys: int | None = None,  # heads of keys and values; h where it is None
    scale: float | None = None,  # of the scores; d ** -0.5 where it is None
    **others: Any,
) -> Trained:
    """The projections by heads, copied, with any unusual scale absorbed into the queries. Raises InputError."""
    g = h if keys is None else keys
    if h % g:
        raise refusal(where, f"its {g} key-value heads do not divide its {h} query heads")
    weights, biases = {}, {}
    for letter, count in {"q": h, "k": g, "v": g}.items():
        weight, bias = projections[letter]
        if weight.shape[1] != count * d:
            wide = f"{weight.shape[1]} wide, but {count} heads of {d} are {count * d}"
            raise refusal(where, f"its {WORDS[letter]} projection is {wide}")
        weights[f"W{letter}"] = _copy(weight).reshape(-1, count, d)
        if bias is not None:
            biases[f"b{letter}"] = _copy(bias).reshape(count, d)
    like = weights["Wq"]
    weight, bias = projections.get("o", (torch.eye(h * d, dtype=like.dtype, device=like.device), None))
    if weight.shape[0] != h * d:
        raise refusal(where, f"its output projection takes {weight.shape[0]}, but {h} heads of {d} are {h * d}")
    weights["Wo"] = _copy(weight).reshape(h, d, -1)
    if bias is not None:
        biases["bo"] = _copy(bias)
    factor = 1.0 if scale is None else scale * d**0.5
    if abs(factor - 1) > 1e-12:
        weights["Wq"] = weights["Wq"] * factor
        if "bq" in biases:
            biases["bq"] = biases["bq"] * factor
    return Trained(where, weights, biases, causal, **others)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)
