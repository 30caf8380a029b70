"""Saves and loads a converted Hugging Face model: its weights, and the design of each attention."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.files import write_whole


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


KEY = "tensornet_attn"
# A file name of weights in config.json that does not exist. Without this package, from_pretrained then raises an error,
# instead of returning a model with random attention.
INSTEAD = "these weights are read by tensornet_attn.load_converted.safetensors"


class SavePretrained:
    """Replaces `save_pretrained` of a converted model, and adds the designs to `config.json`.

    It is an object, not a method, so that copies and pickles of the model save correctly.
    """

    def __init__(self, model: Any):
        self.model = model

    def __call__(
        self,
        save_directory: Any,
        is_main_process: bool = True,
        *given: Any,
        push_to_hub: bool = False,
        **options: Any,
    ) -> None:
        """As the model's own `save_pretrained`. Raises InputError for `push_to_hub=True`."""
        if push_to_hub:
            name = type(self.model).__name__
            raise InputError(f"{name}: push a converted model with model.push_to_hub(repo_id), which saves it first.")
        if given or not is_main_process:  # some classes do not have this parameter
            given = (is_main_process, *given)
        type(self.model).save_pretrained(self.model, save_directory, *given, **options)
        path = Path(save_directory) / "config.json"
        if is_main_process and path.exists():
            config = json.loads(path.read_text(encoding="utf-8"))
            config |= {"quantization_config": described(self.model), "transformers_weights": INSTEAD}
            write_whole(path, f"{json.dumps(config, indent=2)}\n".encode())


def described(model: nn.Module) -> dict[str, Any]:
    """The designs of a model as YAML, and the path, design and `Place` of each attention.

    The format is that of the quantisation method that `pretrained.py` registers.
    """
    designs: list[str] = []
    found: dict[int, dict[str, Any]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, Swapped):
            continue
        if id(module) in found:
            found[id(module)]["paths"].append(path)
            continue
        text = module.design.design.to_yaml()
        if text not in designs:
            designs.append(text)
        found[id(module)] = {"paths": [path], "design": designs.index(text), **asdict(module.place)}
    return {"quant_method": KEY, "designs": designs, "attentions": list(found.values())}


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
