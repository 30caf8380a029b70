"""Swaps every attention of a model for a design that computes the same: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from torch import nn

from tensornet_attn.convert.families import CROSS, refusal
from tensornet_attn.convert.make import convert
from tensornet_attn.convert.table import family_of, place_of, read_trained
from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.spec.read import Source

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
SAVING = ("save_pretrained", "push_to_hub", "save", "save_to_hub")  # the last two are sentence-transformers'
INSTEAD = (
    "save its state dict, torch.save(model.state_dict(), 'model.pt'), and load that into the original model after the "
    "same convert_model, model.load_state_dict(torch.load('model.pt'))."
)


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
    _settle(model, [new for _, new in made])
    return model


@dataclass
class Found:
    """An attention of a model and every place that holds it: (parent, attribute)."""

    module: nn.Module
    path: str
    places: list[tuple[nn.Module, str]] = field(default_factory=list)


def attentions(model: nn.Module) -> list[Found]:
    """The attentions of a model, each once. Raises InputError where there are none, or one that cannot be taken out."""
    if not isinstance(model, nn.Module):
        raise InputError(f"a {type(model).__name__} is no model: give an nn.Module.")
    if family_of(model) is not None:
        raise InputError(f"{place_of(model, '')} is itself an attention; ta.convert makes a design of it.")
    found: dict[int, Found] = {}
    for path, parent, name, module in _candidates(model, ""):
        if isinstance(parent, nn.TransformerDecoderLayer) and name == "multihead_attn":
            raise refusal(place_of(module, path), CROSS)
        if family_of(module) is None:
            read_trained(module, path)  # refuses it by name
        found.setdefault(id(module), Found(module, path)).places.append((parent, name))
    if not found:
        raise InputError(f"no attention found in {type(model).__name__}.")
    for one in found.values():
        _check_alone(one, model)
    return list(found.values())


def _candidates(parent: nn.Module, path: str) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """(path, parent, attribute, module) of each attention, known or by its name alone."""
    for name, module in parent._modules.items():  # named_children leaves out what is there twice
        here = f"{path}.{name}" if path else name
        if module is None or any(isinstance(one, CompiledDesign) for one in (module, getattr(module, "design", None))):
            continue
        known = family_of(module) is not None
        inside = [] if known else list(_candidates(module, here))
        if inside or not (known or "Attention" in type(module).__name__):
            yield from inside
        else:
            yield here, parent, name, module


def _check_alone(one: Found, model: nn.Module) -> None:
    """Refuses an attention with hooks, and one that shares a weight with another module. Raises InputError."""
    own = {id(module): module for module in one.module.modules()}
    hooks = [hook for inner in own.values() for kind in HOOKS for hook in getattr(inner, kind).values()]
    # what transformers itself leaves after a call with output_attentions or output_hidden_states
    if any("output_capturing_hook" not in getattr(hook, "__qualname__", "") for hook in hooks):
        raise refusal(place_of(one.module, one.path), "hooks are registered on it, which would be lost")
    others = (module for module in model.modules() if id(module) not in own)
    outside = {id(parameter) for module in others for parameter in module._parameters.values()}
    for name, parameter in one.module.named_parameters():
        if id(parameter) in outside:
            reason = f"its '{name}' is a weight of another module too, and would no longer be"
            raise refusal(place_of(one.module, one.path), reason)


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
    new = family.swap(compiled, trained, one.module, *family.behind)
    new.training = one.module.training  # not train(): what it takes over keeps its own mode
    return new


def _settle(model: nn.Module, new: list[Swapped]) -> None:
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
        for name in SAVING if hasattr(module, "save_pretrained") else ():
            if hasattr(module, name):
                setattr(module, name, partial(refuse_saving, type(module).__name__, name))


def refuse_maps(model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """A forward pre-hook: Hugging Face collects attention maps by class, and would find none in silence."""
    wanted = given.get("output_attentions")
    if wanted if wanted is not None else getattr(model.config, "output_attentions", False):
        raise InputError(
            f"{type(model).__name__}: output_attentions is not answered after convert_model; "
            "ask a swapped attention, as in module.design.capture(x, 'A')."
        )


def refuse_saving(model: str, call: str, *args: Any, **options: Any) -> NoReturn:
    """Stands in the place of Hugging Face's own calls, also in copies and pickles: `from_pretrained` would not give it
    back. It makes the attention that `config.json` names, finds no weights for it, and draws them at random."""
    raise InputError(
        f"{model}: {call} is not possible after convert_model: from_pretrained would load it with random attention; "
        f"{INSTEAD}"
    )
