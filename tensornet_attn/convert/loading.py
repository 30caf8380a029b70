"""Reads back what `save_pretrained` of a converted Hugging Face model wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tensornet_attn import compiler
from tensornet_attn.convert.masks import Alibi, Rope
from tensornet_attn.convert.saving import KEY
from tensornet_attn.convert.settle import settle
from tensornet_attn.convert.shared import Shared
from tensornet_attn.convert.wrap import Place, Swapped, SwappedTorch
from tensornet_attn.errors import InputError, MissingPartError


def load_converted(path: str | Path, *, backend: str = "auto", **options: Any) -> nn.Module:
    """The converted model that `save_pretrained` wrote to a folder or a repository, in evaluation.

    `options` are those of `from_pretrained` of the model's own class. Raises InputError where it was not written by a
    converted model.

    >>> load_converted(".")
    Traceback (most recent call last):
    ...
    tensornet_attn.errors.InputError: '.' holds no converted model: there is no config.json that names designs.
    """
    try:
        import transformers
    except ImportError:
        raise MissingPartError("Hugging Face models need transformers: pip install 'tensornet-attn[hf]'.") from None
    hub = {name: options[name] for name in ("revision", "token", "cache_dir", "subfolder") if name in options}
    missing = InputError(f"'{path}' holds no converted model: there is no config.json that names designs.")
    try:
        config = transformers.AutoConfig.from_pretrained(path, **hub)
    except (OSError, ValueError):
        raise missing from None
    if (record := getattr(config, KEY, None)) is None:
        raise missing
    for name in (KEY, "transformers_weights"):
        delattr(config, name)
    kind = getattr(transformers, config.architectures[0])
    shared = Shared()

    def build(self: Any, *given: Any, **named: Any) -> None:
        kind.__init__(self, *given, **named)
        try:
            put(self, record, backend, shared)
        except (AttributeError, IndexError, KeyError, TypeError):  # a file that somebody else wrote
            raise InputError(f"'{path}': its config.json does not say what each attention became.") from None

    same = {"__init__": build, "__module__": kind.__module__}  # names of weights are mapped for classes of its own
    model = type(kind.__name__, (kind,), same).from_pretrained(path, config=config, **options)
    model.__class__ = kind
    swapped = [module for module in model.modules() if isinstance(module, Swapped)]
    for module in swapped:
        module.design.to(next(module.design.parameters()).device)  # the plan may be another one there
    settle(model, swapped)
    return model


def put(model: nn.Module, record: Mapping[str, Any], backend: str, shared: Shared) -> None:
    """Puts the designs that a record describes in the places of a model's attentions."""
    for entry in record["attentions"]:
        data = {name: value for name, value in entry.items() if name not in ("paths", "design")}
        for name, kind in (("rope", Rope), ("alibi", Alibi)):
            data[name] = kind(**data[name]) if data[name] else None
        place = Place(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})
        design = compiler.compile(record["designs"][entry["design"]], backend, place.causal)
        module = model.get_submodule(entry["paths"][0])
        swap = SwappedTorch if isinstance(module, nn.MultiheadAttention) else Swapped
        new = swap(design, place, module, shared)
        for path in entry["paths"]:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new)
