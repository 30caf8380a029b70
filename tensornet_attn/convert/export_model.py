"""Writes a converted model back into a model of its class: what each design holds, and all that lay around."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError

Write = Callable[[Swapped, nn.Module, str], nn.Module]  # a design's weights into an attention at this place


def exported(model: nn.Module, into: nn.Module | None, write: Write) -> nn.Module:
    """`into`, or a new model of transformers, with the weights of a converted one. Raises InputError; `into` stays."""
    swapped = {path: one for path, one in model.named_modules(remove_duplicate=False) if isinstance(one, Swapped)}
    name = type(model).__name__
    if not swapped:
        raise InputError(f"{name} has no attention that convert_model swapped.")
    made = copy.deepcopy(into) if into is not None else _made(model)
    rest = {
        key: value
        for key, value in model.state_dict().items()
        if not any(key.startswith(f"{path}.") for path in swapped)
    }
    try:
        missing, more = made.load_state_dict(rest, strict=False)
    except RuntimeError as error:  # of other sizes
        raise InputError(f"{type(made).__name__} cannot take the weights of {name}: {error}") from None
    missing = [key for key in missing if not any(key.startswith(f"{path}.") for path in swapped)]
    if missing or more:
        which = f"has no '{more[0]}'" if more else f"has '{missing[0]}', which the other lacks"
        raise InputError(f"{type(made).__name__} cannot take the weights of {name}: it {which}.")
    places = dict(made.named_modules(remove_duplicate=False))
    for path, one in swapped.items():
        module = places.get(path)
        if module is None:
            raise InputError(f"{type(made).__name__} cannot take the weights of {name}: it has no module '{path}'.")
        norm = (*one.place.behind, "", "")[1]
        if norm:
            module.get_submodule(norm).load_state_dict(one.LayerNorm.state_dict())
        write(one, module, path)
    if into is None:
        return made
    with torch.no_grad():
        into.load_state_dict(made.state_dict())
    return into


def _made(model: Any) -> nn.Module:
    """A model of the class that was converted, in the dtype and on the device of the converted one."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(type(model), "from_pretrained"):
        reason = f"{type(model).__name__} is no model of transformers, which its config makes again"
        raise InputError(f"{reason}: give the model to write into, of the class that convert_model was given.")
    like = next(model.parameters())
    made: nn.Module = type(model)(copy.deepcopy(config)).to(like.device, like.dtype)
    places = dict(made.named_modules())
    for path, module in model.named_modules():
        for name in [*places[path]._modules] if path in places else []:
            if getattr(module, name, made) is None:  # as a pooler that was left out
                setattr(places[path], name, None)
    return made.train(model.training)
