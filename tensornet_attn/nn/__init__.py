"""The nn.Modules of compiled designs, created by `ta.compile`, and `MultiheadAttention`, which replaces torch's."""

from importlib import import_module
from typing import Any

__all__ = ["MultiheadAttention"]


def __getattr__(name: str) -> Any:
    """Imports `MultiheadAttention` on first use, because it depends on the compiler, which depends on this package."""
    if name == "MultiheadAttention":
        return import_module("tensornet_attn.convert.multihead").MultiheadAttention
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
