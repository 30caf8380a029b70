"""Reads the weights of a trained attention from its module, and refuses features that no design supports."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from tensornet_attn.convert.calls import rope_of, scaling_of
from tensornet_attn.convert.families import FAMILIES, FEATURES, Family, FamilyLayout, family_of
from tensornet_attn.convert.known import readings_of
from tensornet_attn.convert.trained import Buckets, QueryKeyNorm, TrainedAttention, Widths, refusal
from tensornet_attn.errors import InputError

Projection = tuple[Tensor, Tensor | None]  # weight [in, out], bias [out]
WORDS = {"q": "query", "k": "key", "v": "value"}  # of a projection's letter
CROSS = "it attends to another sequence (cross-attention)"


def read_trained(module: nn.Module, where: str = "") -> TrainedAttention:
    """Copies of the weights by their names in the designs. `where` is the module's path in its model, for errors.

    Raises InputError with path and class if the module is not supported, or has a feature that no design supports.

    >>> trained = read_trained(nn.MultiheadAttention(12, 3), "encoder.self_attn")
    >>> trained.where
    'encoder.self_attn (MultiheadAttention)'
    >>> [f"{name} {list(value.shape)}" for name, value in trained.weights.items()]
    ['Wq [12, 3, 4]', 'Wk [12, 3, 4]', 'Wv [12, 3, 4]', 'Wo [3, 4, 12]']
    """
    with torch.no_grad():
        return read_traced(module, where)


def read_traced(module: nn.Module, where: str = "") -> TrainedAttention:
    """As `read_trained`, but the copies are differentiable functions of the module's weights."""
    family, location = known(module, where)
    if isinstance(module, nn.MultiheadAttention):
        return read_multihead(module, location)
    return read_hugging_face(module, location, family.layout)


def known(module: nn.Module, where: str = "") -> tuple[Family, str]:
    """The family of a supported module, and its path and class. Raises InputError."""
    if not isinstance(module, nn.Module):
        raise InputError(f"a {type(module).__name__} is not an attention; give an nn.Module.")
    location, family = place_of(module, where), family_of(module)
    if family is None:
        class_names = [name for row in FAMILIES for name in row.classes if "Cross" not in name]
        near = get_close_matches(type(module).__name__, class_names, 3)
        hint = (
            f"similar supported classes: {', '.join(near)}" if near else "docs/convert.md lists the supported classes"
        )
        if designs := [row.design for row in readings_of(module)]:
            words = " or ".join(f"'{design}'" for design in designs)
            raise InputError(f"{location} is not a multi-head attention; convert it to {words}.")
        raise InputError(f"{location} is not a supported attention; {hint}.")
    if "forward" in vars(module):
        raise refusal(location, "its forward was replaced on this instance, by a hook or a patch")
    base: Any = next(kin for kin in type(module).__mro__ if kin.__name__ in family.classes)
    if type(module).forward is not base.forward:
        raise refusal(location, "its class overrides forward, and may compute something else")
    return family, location


def place_of(module: nn.Module, where: str) -> str:
    """`encoder.layer.0.attention (BertAttention)`, or only the class if the path is empty."""
    name = type(module).__name__
    return f"{where} ({name})" if where else name


def outside_of(module: Any, where: str, layout: FamilyLayout) -> Widths:
    """The widths of a module of a known family, whatever its features. Raises InputError."""
    if isinstance(module, nn.MultiheadAttention):
        return Widths(where, module.embed_dim, module.embed_dim, False, module.out_proj.weight)
    inner, (first, *_, last) = _inner(where, module, layout), layout.projections.split(" ")
    if crosses(inner, layout):
        raise refusal(where, CROSS)
    width = len(_linear(where, module, first)[0])
    output = _linear(where, module, last)[0].shape[1] if last else inner.all_head_size
    return Widths(where, width, output, _causal(where, inner, layout), _part(where, module, first).weight)


def read_multihead(module: Any, where: str) -> TrainedAttention:
    """Reads an nn.MultiheadAttention with packed or separate projections. Raises InputError."""
    if type(module).forward is not nn.MultiheadAttention.forward:
        raise refusal(where, "its class overrides forward, and may compute something else")
    if module.bias_k is not None or module.bias_v is not None:
        raise refusal(where, "it adds a learned key and value to every sequence (add_bias_kv=True)")
    if module.add_zero_attn:
        raise refusal(where, "it adds a key and value of zeros to every sequence (add_zero_attn=True)")
    for name in ("kdim", "vdim"):
        size, embed_dim = getattr(module, name), module.embed_dim
        if size != embed_dim:
            raise refusal(where, f"{name} is {size} and embed_dim {embed_dim}; a design takes both from one input")
    weights, biases = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight), (None, None, None)
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.chunk(3)
    triples = zip("qkv", weights, biases, strict=True)
    projections = {letter: _real(where, "in_proj", weight.T, bias) for letter, weight, bias in triples}
    projections["o"] = _linear(where, module, "out_proj")
    by_heads = _by_heads(where, projections, module.head_dim, module.num_heads, {})
    return TrainedAttention(where, *by_heads, causal=False, dropout=float(module.dropout))


def read_hugging_face(module: Any, where: str, layout: FamilyLayout) -> TrainedAttention:
    """Reads an attention of a Hugging Face model, with the attribute names of `layout`. Raises InputError."""
    inner = _inner(where, module, layout)
    for checked in {id(checked): checked for checked in (module, inner)}.values():
        _check_features(where, checked, layout.features)
    config = getattr(inner, "config", None)
    d = int(_first(where, inner, "head_dim", "attention_head_size", "head_size", "key_value_proj_dim"))
    count = _first(where, inner, "num_attention_heads", "num_heads", "n_heads", "config.num_attention_heads")
    projections = _projections(where, module, layout, d, count, getattr(inner, "num_key_value_groups", 1))
    norms = {
        letter: _norm(where, getattr(inner, f"{letter}_norm"), f"{letter}_norm", d)
        for letter in "qk"
        if f"{letter}_norm" in layout.features and getattr(inner, f"{letter}_norm", None) is not None
    }
    weights, biases = _by_heads(where, projections, d, count, norms)
    window = getattr(inner, "sliding_window", getattr(config, "sliding_window", None))
    causal = _causal(where, inner, layout)
    base, fraction, scaling = _rope(where, inner, layout) if layout.rope else (None, 1.0, {})
    dropout = _first(where, inner, "attention_dropout", "attn_dropout", "dropout", "attn_dropout_p")
    trained = TrainedAttention(
        where,
        weights,
        biases,
        causal,
        base,
        fraction,
        float(getattr(dropout, "p", dropout)),
        norms,
        (window - 1, 0 if causal else window - 1) if window and "sliding_window" in layout.features else None,
        getattr(inner, "attn_logit_softcapping", None) if "attn_logit_softcapping" in layout.features else None,
        bool(layout.alibi),
        scaling,
        buckets_of(where, inner) if layout.buckets else None,
        crosses(inner, layout),
        _copy(_real(where, "sinks", inner.sinks, None)[0]) if "sinks" in layout.features else None,
    )
    if layout.interleaved:
        _pair_halves(trained)
    scale = getattr(inner, "scaling", getattr(inner, "softmax_scale", None))
    _absorb(trained, 1.0 if scale is None else scale * d**0.5)
    return trained


def crosses(inner: Any, layout: FamilyLayout) -> bool:
    """Whether an attention of a T5 stack is a cross-attention: one in the decoder that is not causal."""
    return layout.buckets and bool(inner.is_decoder) and not inner.is_causal


def buckets_of(where: str, inner: Any) -> Buckets | None:
    """The relative position biases of a module, or None if it has none. Raises InputError."""
    if not _part(where, inner, "has_relative_attention_bias"):
        return None
    weight = _copy(_real(where, "relative_attention_bias", inner.relative_attention_bias.weight, None)[0])
    furthest = int(inner.relative_attention_max_distance)
    return Buckets(weight, furthest, both_sides=not inner.is_decoder)


def _inner(where: str, module: Any, layout: FamilyLayout) -> Any:
    """The module with the heads. Raises InputError if it is a cross-attention or of an unexpected class."""
    inner = _part(where, module, layout.inside) if layout.inside else module
    if any(
        "Cross" in type(candidate).__name__ or getattr(candidate, "is_cross_attention", False)
        for candidate in (module, inner)
    ):
        raise refusal(where, CROSS)
    if layout.inside and not type(inner).__name__.endswith("SelfAttention"):
        raise refusal(where, f"its '{layout.inside}' is a {type(inner).__name__}, which may compute something else")
    return inner


def _causal(where: str, inner: Any, layout: FamilyLayout) -> bool:
    return bool(_part(where, inner, "is_causal")) if layout.causal is None else layout.causal


def _projections(
    where: str, module: Any, layout: FamilyLayout, d: int, count: int, groups: int
) -> dict[str, Projection]:
    """The projections by letter. A fused projection is split."""
    *names, output = layout.projections.split(" ")
    projections = {"o": _linear(where, module, output)} if output else {}
    if not layout.fused:
        return projections | {letter: _linear(where, module, name) for letter, name in zip("qkv", names, strict=True)}
    weight, bias = _linear(where, module, names[0])
    h, g = count, count // groups
    if weight.shape[1] != (h + 2 * g) * d:
        wide = f"{weight.shape[1]} wide, but {h + 2 * g} heads of {d} are {(h + 2 * g) * d}"
        raise refusal(where, f"its '{names[0]}' is {wide}")

    def parts(tensor: Tensor) -> tuple[Tensor, ...]:
        if layout.fused == "heads":
            return tuple(third.flatten(-2) for third in tensor.unflatten(-1, (h, 3, d)).unbind(-2))
        return tensor.split([h * d, g * d, g * d], -1)

    biases = (None,) * 3 if bias is None else parts(bias)
    return projections | dict(zip("qkv", zip(parts(weight), biases, strict=True), strict=True))


def _rope(where: str, module: Any, layout: FamilyLayout) -> tuple[float, float, dict[str, Any]]:
    """Base, fraction and scaling of the rotary positions. Raises InputError if no design supports them."""
    _part(where, module, "config.rope_parameters")
    rope, scaling = rope_of(module), scaling_of(where, module)
    fraction = rope.get("partial_rotary_factor", 1.0)
    if fraction != 1.0 and layout.rope == "whole":
        raise refusal(where, f"partial_rotary_factor is {fraction}, which {type(module).__name__} does not apply")
    return float(rope["rope_theta"]), float(fraction), scaling


def _norm(where: str, module: nn.Module, name: str, d: int) -> QueryKeyNorm:
    """A norm of queries or keys. Its kind is found with a probe input, because some classes store the weight minus 1.

    Raises InputError if it is neither an RMSNorm nor a LayerNorm without bias.
    """
    weight, eps = _part(where, module, "weight"), float(_first(where, module, "variance_epsilon", "eps"))
    _real(where, name, weight, None)
    probe = torch.linspace(-1, 2, weight.numel(), dtype=torch.float64).cos().reshape(weight.shape)
    with torch.no_grad():
        output = module(probe.to(weight)).double().cpu()
    stored, close = weight.detach().double().cpu(), 1e-4 if weight.dtype in (torch.float32, torch.float64) else 5e-2
    for kind in ("rmsnorm", "layernorm"):
        centred = probe - probe.mean(-1, keepdim=True) if kind == "layernorm" else probe
        normed = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        for least in (0, 1):
            if torch.allclose(output, normed * (stored + least), rtol=close, atol=close):
                learned = _copy(weight) + least
                whole = weight.dim() == 1 and weight.numel() != d
                return QueryKeyNorm(kind, eps, learned.reshape(-1, d) if whole else learned, whole)
    raise refusal(where, f"its '{name}' is neither an RMSNorm nor a LayerNorm without bias")


def _check_features(where: str, module: nn.Module, carried: tuple[str, ...]) -> None:
    """Raises InputError if the module has a feature that no design supports."""
    for name, reason in FEATURES.items():
        feature = None if name in carried else getattr(module, name, None)
        if isinstance(feature, (nn.Module, Tensor)) or (
            feature is not None and feature is not False and feature != set()
        ):
            raise refusal(where, reason)
    kind = getattr(getattr(module, "config", None), "position_embedding_type", "absolute")
    if kind not in (None, "absolute"):
        raise refusal(where, f"config.position_embedding_type is '{kind}'; only 'absolute' is supported")


def _part(where: str, module: Any, name: str) -> Any:
    """The attribute with a possibly dotted name. Raises InputError if the module lacks it."""
    attribute: Any = module
    for piece in name.split("."):
        if not hasattr(attribute, piece):
            raise refusal(where, f"it has no '{name}', unlike the known class of this name")
        attribute = getattr(attribute, piece)
    return attribute


def _first(where: str, module: Any, *names: str) -> Any:
    """The first of these attributes that is not None. Raises InputError if there is none."""
    for name in names:
        attribute = module
        for piece in name.split("."):
            attribute = getattr(attribute, piece, None)
        if attribute is not None:
            return attribute
    return _part(where, module, names[0])


def _linear(where: str, module: nn.Module, name: str) -> Projection:
    """A linear layer as (weight [in, out], bias [out] or None). Raises InputError for any other layer."""
    layer = _part(where, module, name)
    kind = type(layer)
    if kind in (nn.Linear, NonDynamicallyQuantizableLinear):
        return _real(where, name, layer.weight.T, layer.bias)
    if kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils":
        return _real(where, name, layer.weight, layer.bias)
    raise refusal(where, f"its '{name}' is a {kind.__module__}.{kind.__name__}, not a plain linear layer")


def _real(where: str, name: str, weight: Tensor, bias: Tensor | None) -> Projection:
    """Returns the pair, or raises InputError if the weight has no floating-point values."""
    if weight.is_meta:
        raise refusal(where, f"its '{name}' is on the meta device and has no values")
    if not weight.is_floating_point():
        raise refusal(where, f"its '{name}' is {weight.dtype}, not floating point")
    return weight, bias


def _by_heads(
    where: str,
    projections: Mapping[str, Projection],  # q, k, v, o; without o, the output is the concatenated heads
    d: int,
    h: int,
    norms: Mapping[str, QueryKeyNorm],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Copies of weights and biases, with separate head legs. Raises InputError if sizes do not match."""
    g = max(1, projections["k"][0].shape[1] // d)
    weights, biases = {}, {}
    for letter, count in {"q": h, "k": g, "v": g}.items():
        weight, bias = projections[letter]
        if weight.shape[1] != count * d:
            wide = f"{weight.shape[1]} wide, but {count} heads of {d} are {count * d}"
            raise refusal(where, f"its {WORDS[letter]} projection is {wide}")
        if letter in norms and norms[letter].weight.dim() == 2 and norms[letter].weight.shape[0] != count:
            raise refusal(where, f"its '{letter}_norm' has {norms[letter].weight.shape[0]} heads, not {count}")
        weights[f"W{letter}"] = _copy(weight).reshape(-1, count, d)
        if bias is not None:
            biases[f"b{letter}"] = _copy(bias).reshape(count, d)
    if h % g:
        raise refusal(where, f"its {g} key-value heads do not divide its {h} query heads")
    like = weights["Wq"]
    weight, bias = projections.get("o", (torch.eye(h * d, dtype=like.dtype, device=like.device), None))
    if weight.shape[0] != h * d:
        raise refusal(where, f"its output projection takes {weight.shape[0]}, but {h} heads of {d} are {h * d}")
    weights["Wo"] = _copy(weight).reshape(h, d, -1)
    if bias is not None:
        biases["bo"] = _copy(bias)
    return weights, biases


def _pair_halves(trained: TrainedAttention) -> None:
    """Moves the entries of a rotary pair from neighbours to half a head apart, in queries and keys."""
    for letter in "qk":
        norm = trained.norms.get(letter)
        for tensor in (
            trained.weights[f"W{letter}"],
            trained.biases.get(f"b{letter}"),
            None if norm is None else norm.weight,
        ):
            if tensor is not None:
                tensor.copy_(torch.cat((tensor[..., ::2], tensor[..., 1::2]), -1))


def _absorb(trained: TrainedAttention, factor: float) -> None:
    """Multiplies the query weights, or the norm after them, by the factor of the score scale beyond d ** -0.5."""
    if abs(factor - 1) <= 1e-12:
        return
    if "q" in trained.norms:
        trained.norms["q"].weight.mul_(factor)
        return
    for tensor in (trained.weights["Wq"], trained.biases.get("bq")):
        if tensor is not None:
            tensor.mul_(factor)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
