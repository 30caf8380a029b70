"""Lets `from_pretrained` of transformers read converted models, once this module is imported.

What is registered is a quantisation method of this package's name: the one thing in `config.json` that may change the
modules of a model before its weights are read. Nothing is quantised, and the model that comes out says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from tensornet_attn import compiler
from tensornet_attn.convert.finish import finish_conversion
from tensornet_attn.convert.masks import Alibi, Rope
from tensornet_attn.convert.saving import KEY
from tensornet_attn.convert.shared import Shared
from tensornet_attn.convert.stack import swap_of
from tensornet_attn.convert.wrap import Place, Swapped
from tensornet_attn.errors import InputError


@register_quantization_config(KEY)
class ConvertedConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """What `saving.described` says of a model, as `config.json` has it."""

    def __init__(self, quant_method: str = KEY, designs: Any = (), attentions: Any = ()):
        self.quant_method, self.designs, self.attentions = quant_method, designs, attentions


@register_quantizer(KEY)
class ConvertedLoader(HfQuantizer):  # type: ignore[misc]
    """Puts the designs in their places before weights are read, and leaves no trace of itself."""

    is_trainable = True

    def is_serializable(self) -> bool:
        return True

    def update_attn_implementation(self, config: Any) -> Any:
        """The first that is asked with the config: the weights are read from their usual file."""
        del config.transformers_weights
        return config

    def _process_model_before_weight_loading(self, model: Any, **given: Any) -> None:
        try:
            found = read(model, self.quantization_config.designs, self.quantization_config.attentions)
        except (AttributeError, IndexError, KeyError, StopIteration, TypeError):  # a file that somebody else wrote
            raise InputError("config.json does not say what each attention of the converted model became.") from None
        put(model, found)

    def _process_model_after_weight_loading(self, model: Any, **given: Any) -> Any:
        self.remove_quantization_config(model)
        for module in model.modules():
            if hasattr(module, "config") and hasattr(module.config, "_is_quantized"):
                del module.config._is_quantized
        swapped = [module for module in model.modules() if isinstance(module, Swapped)]
        for module in swapped:
            weight = next(module.design.parameters(), None)
            if weight is not None:
                module.design.to(weight.device)  # the plan may be another one there
        finish_conversion(model, swapped)
        return model


def read(model: Any, designs: list[str], attentions: list[Mapping[str, Any]]) -> list[tuple[str, Place, list[str]]]:
    """The design of each attention, what it takes over, and where it stands in a model.

    That one may be the inside of the saved model, or around it.
    """
    inside, found = f"{model.base_model_prefix}.", []
    known = dict(model.named_modules(remove_duplicate=False))
    for entry in attentions:
        data = {name: value for name, value in entry.items() if name not in ("paths", "design")}
        for name, kind in (("rope", Rope), ("alibi", Alibi)):
            data[name] = kind(**_tuples(data[name])) if data[name] else None
        place = Place(**_tuples(data))
        paths = [
            next(p for p in (path, path.removeprefix(inside), inside + path) if p in known) for path in entry["paths"]
        ]
        found.append((designs[entry["design"]], place, paths))
    return found


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON has lists of."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def put(model: Any, found: list[tuple[str, Place, list[str]]]) -> None:
    """Puts designs in the places of a model's attentions."""
    shared = Shared()
    for design, place, paths in found:
        module = model.get_submodule(paths[0])
        new = swap_of(module, place)(compiler.compile(design, place.backend, place.causal), place, module, shared)
        for path in paths:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new)
