"""The size of a leg at which a design has as many parameters as another: the matching rule of Few Heads Are Enough."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tensornet_attn import limits
from tensornet_attn.cost.sizes import whole
from tensornet_attn.errors import InputError
from tensornet_attn.graph.model import Graph


def parameters(graph: Graph) -> int:
    """Trainable parameters, as stored; gates of experts are among them."""
    shapes = [graph.shape_of(tensor.name) for tensor in graph.of_role("weight") if not tensor.frozen]
    return sum(prod(size or 0 for size in shape) for shape in shapes)


def largest_size(parameters_at: Callable[[int], int], most: int, name: str, leg: str, multiple: int) -> int:
    """The largest multiple of `multiple` at which a design has at most `most` parameters.

    `parameters_at` counts those of the design `name` at a size of `leg`, and must grow with it. Raises InputError.

    >>> largest_size(lambda d: 10 * d + 3, 100, "mine", "d", multiple=4)
    8
    """
    whole("multiple", multiple)
    least = parameters_at(multiple)
    if parameters_at(2 * multiple) <= least:
        raise InputError(f"the parameters of '{name}' do not grow with leg '{leg}': choose the size of another leg.")
    if least > most:
        raise InputError(f"'{name}' has {least:,} parameters at {leg} = {multiple} already, more than {most:,}.")
    fits, exceeds = 1, 2
    while parameters_at(exceeds * multiple) <= most:
        fits, exceeds = exceeds, 2 * exceeds
        if exceeds * multiple > limits.SIZE:
            raise InputError(f"'{name}' stays below {most:,} parameters up to {leg} = {limits.SIZE}, the largest size.")
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        fits, exceeds = (middle, exceeds) if parameters_at(middle * multiple) <= most else (fits, middle)
    return fits * multiple
