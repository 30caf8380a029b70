"""Several legs flattened into one dimension: in words, and how to unflatten them."""

from __future__ import annotations

from collections.abc import Sequence


def split(place: int, sizes: Sequence[str]) -> str:
    """The call that unflattens a dimension into legs of these sizes; without legs, it squeezes the dimension."""
    if len(sizes) == 1:
        return ""
    return f".unflatten({place}, ({', '.join(sizes)}))" if sizes else f".squeeze({place})"


def columns(sizes: Sequence[str]) -> str:
    """The call that unflattens the last dimension, which exists even without legs."""
    return split(-1, sizes) if sizes else "[..., 0]"


def dimensions(*groups: tuple[str, ...]) -> str:
    """The dimensions of groups of legs, in words."""
    return " ".join(f"({' '.join(group)})" if len(group) > 1 else group[0] if group else "1" for group in groups)
