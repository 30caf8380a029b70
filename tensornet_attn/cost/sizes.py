"""Checks of sizes; the largest size of a leg for a parameter budget; counts and tables as text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

from tensornet_attn import limits
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.graph import Graph, Leg

LENGTH = 1024  # the default length
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def dtype_bytes(dtype: object) -> int:
    """Bytes per element of a dtype, given as `float32`, `torch.float32` or torch's dtype. Raises InputError.

    >>> dtype_bytes("bfloat16")
    2
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise InputError(f"there is no dtype '{name}' in the cost model: {nearest(name, DTYPE_BYTES)}")
    return DTYPE_BYTES[name]


def lengths_of(graph: Graph, n: int | None = None, m: int | None = None) -> dict[str, int]:
    """The lengths of the query leg (n) and the key leg (m), by leg name. Raises InputError.

    n defaults to 1024 and m to n; defaults are limited to the leg's maximum, and equal under self-attention.
    """
    longest = {leg.name: leg.maximum for leg in graph.legs if leg.sequence and leg.maximum is not None}
    asked = LENGTH if n is None else n
    if n is None:
        maxima = longest.items() if graph.tied else [bound for bound in longest.items() if bound[0] == graph.query]
        n = min([LENGTH, *(maximum for _, maximum in maxima)])
    if m is None:
        m = n if graph.tied else min(asked, longest.get(str(graph.key), asked))
    lengths = {"n": (graph.query, n), "m": (graph.key, m)}
    return {leg: _checked(name, length, graph.leg[leg]) for name, (leg, length) in lengths.items() if leg is not None}


def sizes_at(graph: Graph, lengths: Mapping[str, int]) -> dict[str, int]:
    """The size of every leg at these lengths; a relative leg without a maximum distance has n + m - 1 entries."""
    sizes = {leg.name: leg.size for leg in graph.legs if leg.size is not None}
    for leg in graph.legs:
        if leg.sequence:
            if leg.name not in lengths:
                raise InputError(f"the {leg.kind} leg '{leg.name}' has no length; give lengths={{'{leg.name}': 1024}}.")
            sizes[leg.name] = _checked(leg.name, lengths[leg.name], leg)
    ends = [sizes[leg] for leg in (graph.query, graph.key) if leg is not None]
    relative = sum(ends) - 1 if len(ends) == 2 else 2 * sum(ends) - 1
    return sizes | {leg.name: relative for leg in graph.legs if leg.kind == "relative" and leg.size is None}


def whole(name: str, value: int, most: int = limits.SIZE) -> int:
    """The value, if it is an integer from 1 to `most`. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InputError(f"'{name}' is {value!r:.40}; give an integer from 1 to {most}, e.g. {name}=1.")
    return value


def _checked(name: str, length: int, leg: Leg) -> int:
    whole(name, length)
    if leg.maximum is not None and length > leg.maximum:
        raise InputError(
            f"'{name}' is {length}, but the {leg.kind} leg '{leg.name}' has a maximum of {leg.maximum}; "
            f"use {name}={leg.maximum} or less."
        )
    return length


def parameters(graph: Graph) -> int:
    """The number of trainable parameters as stored, including gates of experts."""
    shapes = [graph.shape_of(tensor.name) for tensor in graph.of_role("weight") if not tensor.frozen]
    return sum(prod(size or 0 for size in shape) for shape in shapes)


def largest_size(parameters_at: Callable[[int], int], budget: int, name: str, leg: str, multiple: int) -> int:
    """The largest multiple of `multiple` where a design has at most `budget` parameters (Few Heads Are Enough's rule).

    `parameters_at`: the parameters of the design `name` by the size of `leg`; must grow with it. Raises InputError.

    >>> largest_size(lambda d: 10 * d + 3, 100, "mine", "d", multiple=4)
    8
    """
    whole("multiple", multiple)
    smallest = parameters_at(multiple)
    if parameters_at(2 * multiple) <= smallest:
        raise InputError(f"the parameters of '{name}' do not grow with leg '{leg}'; choose another leg.")
    if smallest > budget:
        raise InputError(f"'{name}' already has {smallest:,} parameters at {leg} = {multiple}, more than {budget:,}.")
    low, high = 1, 2
    while parameters_at(high * multiple) <= budget:
        low, high = high, 2 * high
        if high * multiple > limits.SIZE:
            raise InputError(
                f"'{name}' stays below {budget:,} parameters up to {leg} = {limits.SIZE}, the largest size."
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameters_at(middle * multiple) <= budget else (low, middle)
    return low * multiple


def human(number: int, digits: int = 3) -> str:
    """A count with an SI suffix: an integer below 1000, otherwise `digits` significant digits.

    >>> human(999), human(1024), human(537_000_000), human(123_456), human(1024, 4)
    ('999', '1.02 k', '537 M', '123 k', '1.024 k')
    """
    scaled, suffixes = float(number), ["", " k", " M", " G", " T", " P"]
    if number < 1000:
        return str(number)
    while float(f"{scaled:.{digits}g}") >= 1000 and len(suffixes) > 1:
        scaled /= 1000
        suffixes.pop(0)
    figure = f"{scaled:#.{digits}g}" if scaled < 1000 else f"{scaled:.3e}"
    return f"{figure.rstrip('.')}{suffixes[0]}"


def columns(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """The lines of a table with right-aligned entries; columns in `left` are left-aligned.

    >>> columns([("", "MACs"), ("Q", "268 M")])
    ['    MACs', 'Q  268 M']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        pairs = enumerate(zip(row, widths, strict=True))
        return "  ".join(cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in pairs).rstrip()

    return list(map(line, rows))
