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
    given: dict[str, Any] = {}
    names = inspect.signature(type(module).forward).parameters
    if (config := getattr(module, "config", None)) is not None:
        config._attn_implementation = "eager"
    if "position_embeddings" in names:
        given["position_embeddings"] = turns(module, x)
    if "position_ids" in names:
        given["position_ids"] = torch.arange(x.shape[1])[None]
    if "attention_mask" in names:
        given["attention_mask"] = added_mask(module, x)
    return output(module(x, **given))


def eagerly(module: Any, x: Tensor, **given: Any) -> Tensor:
    """The output of a Hugging Face attention with these arguments."""
    module.config._attn_implementation = "eager"
    return output(module(x, **given))


def output(result: Any) -> Tensor:
    """The first result of a layer."""
    found = result[0] if isinstance(result, tuple) else result
    assert isinstance(found, Tensor)
    return found


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
    made = getattr(sys.modules[type(module).__module__], f"{kind}RotaryEmbedding", None)
    if made is None:
        return None
    rotary, ids = made(module.config), torch.arange(x.shape[1])[None]
    kinds = getattr(module.config, "layer_types", None)
    layered = "layer_type" in inspect.signature(made.forward).parameters
    found = rotary(x, ids, kinds[module.layer_idx]) if layered and kinds else rotary(x, ids)
    return found[0], found[1]


def rope_of(module: Any) -> Mapping[str, Any]:
    """What the config of a layer says of its positions: some configs have one for each kind of layer."""
    found: Mapping[str, Any] = module.config.rope_parameters
    kinds = getattr(module.config, "layer_types", None)
    return found.get(kinds[module.layer_idx] if kinds else "", found)


def scaling_of(where: str, module: Any) -> dict[str, Any]:
    """The keys of a box `rope` for its scaling; empty where it has none. Raises InputError where no design has it."""
    config, rope = module.config, rope_of(module)
    kind = rope.get("rope_type", "default")
    if kind != "default" and kind not in SCALINGS:
        lists = ", by lists of factors" if kind == "longrope" else ""
        known = ", ".join(("default", *SCALINGS))
        raise refusal(where, f"its rotary positions are scaled (rope_type '{kind}'{lists}); a design has {known} ones")
    needed, more = SCALINGS.get(kind, ((), ()))
    found = {name: rope[name] for name in (*needed, *more) if rope.get(name) is not None}
    if kind == "dynamic" or (ORIGINAL in needed and ORIGINAL not in found):
        found[ORIGINAL] = config.max_position_embeddings
    if kind == "yarn" and "factor" not in found:
        found["factor"] = config.max_position_embeddings / found[ORIGINAL]
    return {"rope_type": kind, **found} if needed else {}
