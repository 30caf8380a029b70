"""Lets `from_pretrained` of transformers load converted models. Importing this module is enough.

It registers a quantisation method, because only a quantisation method in `config.json` can replace modules of a model
before its weights are loaded. Nothing is quantised, and the loaded model is not marked as quantised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter, ValidationError
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from tensornet_attn import compiler
from tensornet_attn.convert.known import swappable
from tensornet_attn.convert.saving import KEY, finish_conversion
from tensornet_attn.convert.wrap import ReplacedAttention, Shared, Swapped, swap_of
from tensornet_attn.errors import InputError

_PLACE = TypeAdapter(ReplacedAttention)
_WHERE = TypeAdapter(tuple[list[str], NonNegativeInt])  # paths of an attention, and the index of its design


@register_quantization_config(KEY)
class ConvertedConfig(QuantizationConfigMixin):
    """The result of `saving.described` in `config.json`."""

    def __init__(self, quant_method: Any = KEY, designs: Any = (), attentions: Any = ()):
        self.quant_method, self.designs, self.attentions = quant_method, designs, attentions


@register_quantizer(KEY)
class ConvertedLoader(HfQuantizer):
    """Replaces the attentions with designs before weights are loaded, and removes itself from the model."""

    quantization_config: ConvertedConfig
    is_trainable = True

    def is_serializable(self) -> bool:
        return True

    def update_attn_implementation(self, config: Any) -> Any:
        """Resets the file name of the weights. This is the first method that transformers calls with the config."""
        del config.transformers_weights
        return config

    def _process_model_before_weight_loading(self, model: Any, **arguments: Any) -> None:
        try:
            put(model, read(model, self.quantization_config.designs, self.quantization_config.attentions))
        except (
            AttributeError,
            IndexError,
            KeyError,
            StopIteration,
            TypeError,
            ValidationError,
        ):  # not a file of `save_pretrained`
            raise InputError("config.json does not describe the converted attentions of the model.") from None

    def _process_model_after_weight_loading(self, model: Any, **arguments: Any) -> Any:
        self.remove_quantization_config(model)
        for module in model.modules():
            if hasattr(module, "config") and hasattr(module.config, "_is_quantized"):
                del module.config._is_quantized
        swapped = [module for module in model.modules() if isinstance(module, Swapped)]
        for module in swapped:
            weight = next(module.design.parameters(), None)
            if weight is not None:
                module.design.to(weight.device)  # the plan may depend on the device
        finish_conversion(model, swapped)
        return model


def read(
    model: Any, designs: list[str], attentions: list[Mapping[str, Any]]
) -> list[tuple[str, ReplacedAttention, list[str]]]:
    """For each converted attention its design, its `ReplacedAttention` and its paths in the model.

    The model may be the base model of the saved model, or have it as its base model. The file is untrusted: raises
    KeyError for a module that is no attention, and for a design that is not given as text, and ValidationError for
    values of other types.
    """
    inside, swaps = f"{model.base_model_prefix}.", []
    modules = dict(model.named_modules(remove_duplicate=False))
    for entry in attentions:
        fields = {name: value for name, value in entry.items() if name not in ("paths", "design")}
        ReplacedAttention(**fields)  # refuses unknown names
        replaced = _PLACE.validate_json(json.dumps(fields), strict=True)
        saved, index = _WHERE.validate_python((entry["paths"], entry["design"]), strict=True)
        paths = [next(p for p in (path, path.removeprefix(inside), inside + path) if p in modules) for path in saved]
        design = designs[index]
        if "\n" not in design or not all(swappable(modules[path]) for path in paths):
            raise KeyError(replaced.where)
        swaps.append((design, replaced, paths))
    return swaps


def put(model: Any, swaps: list[tuple[str, ReplacedAttention, list[str]]]) -> None:
    """Replaces the attentions of a model with the designs."""
    shared = Shared()
    for design, replaced, paths in swaps:
        module = model.get_submodule(paths[0])
        compiled = compiler.compile(design, replaced.backend, replaced.causal or replaced.looks_back)
        new = swap_of(module, replaced)(compiled, replaced, module, shared)
        for path in paths:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new)
