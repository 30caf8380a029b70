"""What else of a model changes with its attentions."""

from __future__ import annotations

from typing import Any

from torch import nn

from tensornet_attn.convert.saving import SavePretrained
from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError


def finish_conversion(model: nn.Module, new: list[Swapped]) -> None:
    """Turns off what would go around the new modules: nested tensors, maps collected by class, caches where a design
    cannot keep one; and saves what they are with the model."""
    asked = [one for one in new if one.place.causal or one.place.cross or not one.place.biased]  # no encoder's beside
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
    """Whether a design can keep a cache."""
    try:
        swapped.design.new_cache()
    except InputError:
        return False
    return True


def refuse_maps(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """A forward pre-hook: Hugging Face collects attention maps by class, and would find none in silence."""
    wanted = given.get("output_attentions")
    if wanted if wanted is not None else getattr(model.config, "output_attentions", False):
        raise InputError(
            f"{type(model).__name__}: output_attentions is not answered after convert_model; "
            "ask a swapped attention, as in module.design.capture(x, 'A')."
        )
