"""Loads a converted Hugging Face model from the files of `save_pretrained`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from tensornet_attn.convert.saving import KEY
from tensornet_attn.errors import InputError, MissingPartError

# Options of from_pretrained that select a file.
HUB = ("revision", "token", "cache_dir", "subfolder", "local_files_only", "force_download", "proxies")


def load_converted(path: str | Path, **options: Any) -> nn.Module:
    """Loads a converted model that `save_pretrained` wrote to a folder or repository, in evaluation mode.

    `options` are those of `from_pretrained`. After the first call, `from_pretrained` of the model's class loads
    converted models too. Raises InputError if the folder contains no converted model, and MissingPartError without
    transformers.

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

    hub = {name: options[name] for name in HUB if name in options}
    try:
        config = transformers.AutoConfig.from_pretrained(path, **hub)
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}': its config.json cannot be read: {error}") from error
    if (getattr(config, "quantization_config", None) or {}).get("quant_method") != KEY:
        raise InputError(f"'{path}' contains no converted model: its config.json lists no designs.")
    model: nn.Module = getattr(transformers, config.architectures[0]).from_pretrained(path, **options)
    return model
