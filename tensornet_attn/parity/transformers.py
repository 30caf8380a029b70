"""The layers of transformers that designs are compared with, small and with weights that are drawn."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from torch import nn

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ROPE = {"rope_type": "default", "rope_theta": 500.0}


def rope(part: float = 1.0, base: float = 500.0) -> dict[str, Any]:
    """A base that turns far within few positions, and the part of a head that turns."""
    return {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": part}


def made(folder: str, name: str, *, layer: int | None = 0, config: str = "", **options: Any) -> nn.Module:
    """A module of transformers by its folder and class, of a small config of the same stem."""
    module = import_module(f"transformers.models.{folder}.modeling_{folder}")
    configs = import_module(f"transformers.models.{folder}.configuration_{folder}")
    names = [one for one in vars(configs) if one.endswith("Config") and one != "PreTrainedConfig"]
    stem = folder.replace("_", "").lower()
    chosen = config or next(one for one in names if one.removesuffix("Config").lower() == stem)
    kind = getattr(configs, chosen)
    fields = {name for one in kind.__mro__ for name in getattr(one, "__annotations__", {})}
    settings = kind(**{key: value for key, value in SMALL.items() if key in fields} | options)
    settings._attn_implementation = settings._experts_implementation = "eager"
    made = getattr(module, name)
    return made(settings) if layer is None else made(settings, layer)  # type: ignore[no-any-return]


def available() -> bool:
    return "transformers" in sys.modules or import_module("importlib.util").find_spec("transformers") is not None
