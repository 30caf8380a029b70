"""Reads back what `save_pretrained` of a converted Hugging Face model wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from tensornet_attn.convert.saving import KEY
from tensornet_attn.errors import InputError, MissingPartError

# Where and how transformers looks for a file.
HUB = ("revision", "token", "cache_dir", "subfolder", "local_files_only", "force_download", "proxies")


def load_converted(path: str | Path, **options: Any) -> nn.Module:
    """The converted model that `save_pretrained` wrote to a folder or a repository, in evaluation.

    `options` are those of `from_pretrained` of the model's own class, which reads it as well from then on. Raises
    InputError where it was not written by a converted model.

    >>> load_converted(".")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    tensornet_attn.errors.InputError: '.': its config.json cannot be read: ...
    """
    try:
        import transformers
    except ImportError:
        raise MissingPartError("Hugging Face models need transformers: pip install 'tensornet-attn[hf]'.") from None
    import tensornet_attn.convert.pretrained  # noqa: F401  # from_pretrained then knows converted models

    hub = {name: options[name] for name in HUB if name in options}
    try:
        config = transformers.AutoConfig.from_pretrained(path, **hub)
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}': its config.json cannot be read: {error}") from error
    if (getattr(config, "quantization_config", None) or {}).get("quant_method") != KEY:
        raise InputError(f"'{path}' holds no converted model: there is no config.json that names designs.")
    model: nn.Module = getattr(transformers, config.architectures[0]).from_pretrained(path, **options)
    return model
