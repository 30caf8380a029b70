"""Swaps every attention of a model for a design that computes the same: all of them, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from tensornet_attn.convert.make import convert
from tensornet_attn.convert.places import Found, attentions
from tensornet_attn.convert.read import read_trained
from tensornet_attn.convert.saving import refuse_saving
from tensornet_attn.convert.table import family_of
from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError
from tensornet_attn.spec.read import Source


def convert_model(
    model: nn.Module,
    design: Source,
    *,
    backend: str = "auto",
    legs: Mapping[str, int | float | str] | None = None,
    settings: Mapping[str, int | float | str] | None = None,
) -> nn.Module:
    """The same model, every attention of it swapped for a design that computes the same; options as in `convert`.

    A Hugging Face BERT, RoBERTa, ALBERT, GPT-2, ViT or Llama model, or any module with nn.MultiheadAttention inside.
    Outputs, dtype, device and train or eval mode stay. The model then keeps no cache of keys and values
    (`config.use_cache` becomes False), and refuses `save_pretrained` and `push_to_hub`: save its state dict. Raises
    InputError, naming the module's path, and then the model is as it was.

    >>> from torch import nn
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
    >>> convert_model(encoder, "thsa").layers[0].self_attn.design.design.name
    'thsa'
    """
    found = attentions(model)
    options = {"backend": backend, "legs": legs, "settings": settings}
    made = [(one, _swapped(one, design, options)) for one in found]
    for one, new in made:
        for parent, name in one.places:
            setattr(parent, name, new)
    settle(model, [new for _, new in made])
    return model


def _swapped(one: Found, design: Source, options: dict[str, Any]) -> Swapped:
    """The new module, on the old one's device, in its dtype and mode, trainable where that was."""
    family = family_of(one.module)
    assert family is not None
    trained = read_trained(one.module, one.path)
    compiled = convert(one.module, design, where=one.path, **options)
    if compiled._signature.needed != 1:
        needed = ", ".join(name for name, _, default in compiled._signature.inputs if default is None)
        raise InputError(
            f"{trained.where} cannot become '{compiled.design.name}': it takes {needed}, and is called with one input."
        )
    if not any(parameter.requires_grad for parameter in one.module.parameters()):
        compiled.requires_grad_(False)
    new = family.swap(one.module, compiled, trained)
    new.training = one.module.training  # not train(): what it takes over keeps its own mode
    return new


def settle(model: nn.Module, new: list[Swapped]) -> None:
    """Turns off what would go around the new modules: caches, nested tensors, maps collected by class, saving."""
    for module in model.modules():
        if not any(inner in new for inner in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # reads the weights of nn.MultiheadAttention
        for config in (getattr(module, "config", None), getattr(module, "generation_config", None)):
            if getattr(config, "use_cache", None):
                config.use_cache = False
        if hasattr(type(module), "_can_record_outputs"):
            module.register_forward_pre_hook(refuse_maps, with_kwargs=True)
        refuse_saving(module)


def refuse_maps(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """A forward pre-hook: Hugging Face collects attention maps by class, and would find none in silence."""
    wanted = given.get("output_attentions")
    if wanted if wanted is not None else getattr(model.config, "output_attentions", False):
        raise InputError(
            f"{type(model).__name__}: output_attentions is not answered after convert_model; "
            "ask a swapped attention, as in module.design.capture(x, 'A')."
        )
