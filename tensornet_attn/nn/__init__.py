"""The nn.Modules of compiled designs: `ta.compile` makes them, `MultiheadAttention` stands for PyTorch's."""

from importlib import import_module
from typing import Any

__all__ = ["MultiheadAttention"]


def __getattr__(name: str) -> Any:
    """What is made of a compiler, which itself needs this package, is loaded when it is first used."""
    if name == "MultiheadAttention":
        return import_module("tensornet_attn.convert.multihead").MultiheadAttention
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
