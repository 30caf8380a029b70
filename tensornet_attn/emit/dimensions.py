"""Several legs as one dimension of a tensor: in words, and taken apart again."""

from __future__ import annotations

from collections.abc import Sequence


def split(place: int, sizes: Sequence[str]) -> str:
    """What makes legs of these sizes of one dimension; of none, a dimension of size 1 goes."""
    if len(sizes) == 1:
        return ""
    return f".unflatten({place}, ({', '.join(sizes)}))" if sizes else f".squeeze({place})"


def columns(sizes: Sequence[str]) -> str:
    """What makes legs of these sizes of the last dimension, which is there of none as well."""
    return split(-1, sizes) if sizes else "[..., 0]"


def dimensions(*groups: tuple[str, ...]) -> str:
    """Groups of legs, each one dimension, in words."""
    return " ".join(f"({' '.join(group)})" if len(group) > 1 else group[0] if group else "1" for group in groups)
