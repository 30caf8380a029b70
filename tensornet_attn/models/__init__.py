"""Models whose layers are designs: language models, sequence classifiers, and encoders with a decoder."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensornet_attn.keywords import checked

if TYPE_CHECKING:
    from tensornet_attn.models.base import INITIALISATIONS, Model
    from tensornet_attn.models.cache import ModelCache
    from tensornet_attn.models.config import json_schema
    from tensornet_attn.models.cost import ModelCost
    from tensornet_attn.models.kinds import (
        LanguageModel,
        MaskedLanguageModel,
        Memory,
        Seq2Seq,
        SequenceClassifier,
        make,
    )
    from tensornet_attn.models.read import ModelSpec, check, list_models, load

__all__ = [
    "INITIALISATIONS", "LanguageModel", "MaskedLanguageModel", "Memory", "Model", "ModelCache", "ModelCost",
    "ModelSpec", "Seq2Seq", "SequenceClassifier", "check", "json_schema", "list_models", "load", "make",
]  # fmt: skip
_PLACES = {
    "base": "INITIALISATIONS Model",
    "cache": "ModelCache",
    "config": "json_schema",
    "cost": "ModelCost",
    "kinds": "LanguageModel MaskedLanguageModel Memory Seq2Seq SequenceClassifier make",
    "read": "ModelSpec check list_models load",
}
_HOME = {name: module for module, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Loads a public name at first use, so that reading and pricing models does not import torch."""
    if name in _HOME:
        return checked(getattr(import_module(f"{__name__}.{_HOME[name]}"), name), __name__)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
