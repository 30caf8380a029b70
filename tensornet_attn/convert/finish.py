"""Adapts the rest of a model to its converted attentions."""

from __future__ import annotations

from typing import Any

from torch import nn

from tensornet_attn.convert.saving import SavePretrained
from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError


def finish_conversion(model: nn.Module, new: list[Swapped]) -> None:
    """Disables features that would bypass the new modules, and replaces `save_pretrained`.

    These are nested tensors, attention maps that are collected by class, and the cache if a design supports none.
    """
    asked = [one for one in new if one.place.causal or one.place.cross or not one.place.biased]  # no T5 encoder
    decoding = bool(asked) and all(map(decodes, asked))
    for module in model.modules():
        if not any(inner in new for inner in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # reads the weights of nn.MultiheadAttention
        for config in (getattr(module, "config", None), getattr(module, "generation_config", None)):
            if getattr(config, "use_cache", None) and not decoding:
                config.use_cache = False
        if hasattr(type(module), "_can_record_outputs"):
            module.register_forward_pre_hook(refuse_maps, with_kwargs=True)
        if hasattr(module, "save_pretrained") and hasattr(module, "config"):
            module.save_pretrained = SavePretrained(module)


def decodes(swapped: Swapped) -> bool:
    """Whether the design supports a decoding cache."""
    try:
        swapped.design.new_cache()
    except InputError:
        return False
    return True


def refuse_maps(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """A forward pre-hook. Hugging Face collects attention maps by class, and would silently return none."""
    wanted = given.get("output_attentions")
    if wanted if wanted is not None else getattr(model.config, "output_attentions", False):
        raise InputError(
            f"{type(model).__name__}: output_attentions is not supported after convert_model; "
            "capture the maps of a converted attention, as in module.design.capture(x, 'A')."
        )
