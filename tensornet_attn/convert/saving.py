"""`save_pretrained` of a converted Hugging Face model: writes the weights, and the design of each attention."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError
from tensornet_attn.files import write_whole


def finish_conversion(model: Any, new: list[Swapped]) -> None:
    """Disables features that would bypass the new modules, and replaces `save_pretrained`.

    These are nested tensors, attention maps that are collected by class, and the cache if a design supports none.
    """
    decoders = [
        swapped for swapped in new if swapped.replaced.causal or swapped.replaced.cross or not swapped.replaced.biased
    ]  # no T5 encoder
    decoding = bool(decoders) and all(map(decodes, decoders))
    if new:
        new[0].shared.watch(model)
    for module in model.modules():
        if not any(inner in new for inner in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # reads the weights of nn.MultiheadAttention
        for config in (getattr(module, "config", None), getattr(module, "generation_config", None)):
            if config is not None and getattr(config, "use_cache", None) and not decoding:
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


def refuse_maps(model: Any, args: tuple[Any, ...], arguments: dict[str, Any]) -> None:
    """A forward pre-hook. Hugging Face collects attention maps by class, and would silently return none."""
    output_attentions = arguments.get("output_attentions")
    if output_attentions if output_attentions is not None else getattr(model.config, "output_attentions", False):
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
        self, save_directory: Any, is_main_process: bool = True, *args: Any, push_to_hub: bool = False, **options: Any
    ) -> None:
        """As the model's own `save_pretrained`. Raises InputError for `push_to_hub=True`."""
        if push_to_hub:
            name = type(self.model).__name__
            raise InputError(f"{name}: push a converted model with model.push_to_hub(repo_id), which saves it first.")
        if args or not is_main_process:  # some classes do not have this parameter
            args = (is_main_process, *args)
        type(self.model).save_pretrained(self.model, save_directory, *args, **options)
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
    attentions: dict[int, dict[str, Any]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, Swapped):
            continue
        if id(module) in attentions:
            attentions[id(module)]["paths"].append(path)
            continue
        yaml = module.design.design.to_yaml()
        if yaml not in designs:
            designs.append(yaml)
        attentions[id(module)] = {"paths": [path], "design": designs.index(yaml), **asdict(module.replaced)}
    return {"quant_method": KEY, "designs": designs, "attentions": list(attentions.values())}
