"""Loads a converted Hugging Face model from the files of `save_pretrained`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tensornet_attn.convert.saving import KEY
from tensornet_attn.errors import InputError, MissingPartError, TensornetError

# What transformers and torch raise for values of other types and sizes.
ODD = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
# Options of from_pretrained that select a file.
HUB = ("revision", "token", "cache_dir", "subfolder", "local_files_only", "force_download", "proxies")


def load_converted(path: str | Path, **options: Any) -> nn.Module:
    """Loads a converted model that `save_pretrained` wrote to a folder or repository, in evaluation mode.

    `options` are those of `from_pretrained`. After the first call, `from_pretrained` of the model's class loads
    converted models too. Raises InputError if the folder contains no converted model, or no model can be made of its
    files, and MissingPartError without transformers.

    >>> load_converted(".")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    tensornet_attn.errors.InputError: '.': its config.json cannot be read: ...
    """
    try:
        import transformers
    except ImportError:
        raise MissingPartError("Hugging Face models need transformers: pip install 'tensornet-attn[hf]'.") from None
    import tensornet_attn.convert.pretrained  # noqa: F401  # registers converted models with from_pretrained

    if str(path).startswith(("/", ".", "~")) and not Path(path).is_dir():  # no name of a repository
        raise InputError(f"'{path}' is not a folder; give one that 'save_pretrained' of a converted model has written.")
    hub = {name: options[name] for name in HUB if name in options}
    try:
        config = transformers.AutoConfig.from_pretrained(path, **hub)
    except Exception as error:  # transformers checks the values in many ways
        raise InputError(f"'{path}': its config.json cannot be read: {error}") from error
    described = getattr(config, "quantization_config", None)
    if not isinstance(described, Mapping) or described.get("quant_method") != KEY:
        raise InputError(f"'{path}' contains no converted model: its config.json lists no designs.")
    names = getattr(config, "architectures", None)
    name = names[0] if isinstance(names, list) and names else names
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):  # the file may name anything
        raise InputError(
            f"'{path}': {name!r} in its config.json is no model of transformers, as 'LlamaForCausalLM' is."
        )
    if kind.config_class is not None and not isinstance(config, kind.config_class):
        raise InputError(f"'{path}': its config.json describes no '{name}', but a model of type '{config.model_type}'.")
    try:
        loaded: Any = kind.from_pretrained(path, **options | {"output_loading_info": True})
    except TensornetError:
        raise
    except ODD as error:
        if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)) or "CPUAllocator" in str(error):
            raise  # the files may be right
        raise InputError(f"'{path}': no '{name}' can be made of its config.json and weights: {error}") from error
    model: nn.Module = loaded[0]
    if unread := sorted(loaded[1]["unexpected_keys"]):  # such as those of a design that config.json does not list
        raise InputError(f"'{path}': its files have weights '{unread[0]}', for which its config.json has no place.")
    return model
