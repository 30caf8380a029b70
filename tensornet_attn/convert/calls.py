"""Calls a layer of another package outside its model, with a mask and rotary positions, and reads the latter."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.convert.trained import refusal
from tensornet_attn.ops.rope import ORIGINAL, SCALINGS


def alone(module: nn.Module, x: Tensor) -> Tensor:
    """The output of an attention or feed-forward layer for [batch, n, f], without padding.

    A Hugging Face attention runs its `eager` implementation, in the dtype of its weights.
    """
    arguments: dict[str, Any] = {}
    names = inspect.signature(type(module).forward).parameters
    if (config := getattr(module, "config", None)) is not None:
        config._attn_implementation = "eager"
    if "position_embeddings" in names:
        arguments["position_embeddings"] = turns(module, x)
    if "position_ids" in names:
        arguments["position_ids"] = torch.arange(x.shape[1])[None]
    if "attention_mask" in names:
        arguments["attention_mask"] = added_mask(module, x)
    return output(module(x, **arguments))


def eagerly(module: Any, x: Tensor, **arguments: Any) -> Tensor:
    """The output of a Hugging Face attention with these arguments."""
    module.config._attn_implementation = "eager"
    return output(module(x, **arguments))


def output(outputs: Any) -> Tensor:
    """The first result of a layer."""
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    assert isinstance(first, Tensor)
    return first


def added_mask(module: Any, x: Tensor) -> Tensor | None:
    """The float mask [1, 1, n, n] of a causal or windowed attention, or None if it hides nothing."""
    n, causal, window = x.shape[1], is_causal(module), getattr(module, "sliding_window", 0)
    if window == 0:  # in Mistral it is in the config, for all layers
        window = getattr(getattr(module, "config", None), "sliding_window", None)
    distance = torch.arange(n)[:, None] - torch.arange(n)
    hidden = distance < 0 if causal else torch.zeros(n, n, dtype=torch.bool)
    if window:
        hidden = hidden | (distance.abs() >= window)
    return torch.zeros(1, 1, n, n, dtype=x.dtype).masked_fill(hidden, -torch.inf) if bool(hidden.any()) else None


def is_causal(module: Any) -> bool:
    return bool(getattr(module, "is_causal", False))


def turns(module: Any, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Cosines and sines of positions 0, 1, 2, ..., from the rotary embedding class of a Hugging Face model."""
    kind = type(module).__name__.replace("SelfAttention", "Attention").removesuffix("Attention")
    rotary_class = getattr(sys.modules[type(module).__module__], f"{kind}RotaryEmbedding", None)
    if rotary_class is None:
        return None
    rotary, ids = rotary_class(module.config), torch.arange(x.shape[1])[None]
    layer_types = getattr(module.config, "layer_types", None)
    layered = "layer_type" in inspect.signature(rotary_class.forward).parameters
    angles = rotary(x, ids, layer_types[module.layer_idx]) if layered and layer_types else rotary(x, ids)
    return angles[0], angles[1]


def rope_of(module: Any) -> Mapping[str, Any]:
    """What the config of a layer says of its positions: some configs have one for each kind of layer."""
    parameters: Mapping[str, Any] = module.config.rope_parameters
    layer_types = getattr(module.config, "layer_types", None)
    return parameters.get(layer_types[module.layer_idx] if layer_types else "", parameters)


def scaling_of(where: str, module: Any) -> dict[str, Any]:
    """The keys of a box `rope` for its scaling; empty where it has none. Raises InputError where no design has it."""
    config, rope = module.config, rope_of(module)
    kind = rope.get("rope_type", "default")
    if kind != "default" and kind not in SCALINGS:
        lists = ", by lists of factors" if kind == "longrope" else ""
        supported = ", ".join(("default", *SCALINGS))
        raise refusal(
            where, f"its rotary positions are scaled (rope_type '{kind}'{lists}); a design has {supported} ones"
        )
    needed, more = SCALINGS.get(kind, ((), ()))
    keys = {name: rope[name] for name in (*needed, *more) if rope.get(name) is not None}
    if kind == "dynamic" or (ORIGINAL in needed and ORIGINAL not in keys):
        keys[ORIGINAL] = config.max_position_embeddings
    if kind == "yarn" and "factor" not in keys:
        keys["factor"] = config.max_position_embeddings / keys[ORIGINAL]
    return {"rope_type": kind, **keys} if needed else {}
