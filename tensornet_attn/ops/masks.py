"""The masks: one row a mask, with all that the package knows of it.

`sees` says when a query sees a key, in one text for PyTorch and Triton, over `{query}` and `{key}`, where they stand,
`{distance}`, query minus key, and the numbers `{a}`, `{b}`. Where there are more queries than keys, a query may stand
below 0, where `//` floors in PyTorch and truncates in Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from typing import Any

from tensornet_attn.ir.areas import EVERYWHERE, Area, Areas
from tensornet_attn.ops.registered import registered


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees.

    `reference(query, key, *numbers)`: the same on tensors of positions. `areas(*numbers)`: no pair outside of them is
    seen; every pair inside of them where `exact`. `refuse(*numbers)`: why it shows nothing, or what a number must be.
    `torch`: the runtime's function of n, m and the numbers, where it has one for whole tensors and for blocks of rows.
    """

    name: str
    reference: Callable[..., Any]
    sees: str
    areas: Callable[..., Areas] = lambda *numbers: EVERYWHERE
    exact: bool = False
    usage: str = ""  # how it is written, with numbers that make sense; its name where it has none
    arguments: int = 0  # how many numbers it has, with those that may be left out
    defaults: tuple[int, ...] = ()  # the last numbers, where they are not given
    refuse: Callable[..., str] = lambda *numbers: ""
    torch: str = ""

    @property
    def example(self) -> str:
        return self.usage or self.name

    @property
    def counts(self) -> tuple[int, ...]:
        """How many numbers may be given."""
        return tuple(range(self.arguments - len(self.defaults), self.arguments + 1))

    @property
    def by_distance(self) -> bool:
        """Whether it asks for the distance of query and key alone, not where they stand."""
        return "{query}" not in self.sees and "{key}" not in self.sees


def _window(left: float, right: float) -> Areas:
    return (Area(distance=(-right, left)),)


def _at_least_one(wrong: str, what: str) -> Callable[[float], str]:
    return lambda number: f"{wrong}: {what} must be at least 1" if number < 1 else ""


_ROWS = (
    Mask(
        "causal", lambda query, key, apart: query - key >= apart, "{distance} >= {a}",
        lambda apart: _window(inf, -apart), exact=True, torch="causal_mask", arguments=1, defaults=(0,),
    ),
    Mask(
        "band", lambda query, key, width: (query - key).abs() <= width, "({distance} <= {a}) & ({distance} >= -{a})",
        lambda width: _window(width, width), exact=True, usage="band(5)", arguments=1, torch="band_mask",
        refuse=lambda width: "sees nothing: its width is below 0" if width < 0 else "",
    ),
    Mask(
        "window", lambda query, key, left, right: (query - key <= left) & (query - key >= -right),
        "({distance} <= {a}) & ({distance} >= -{b})", _window, exact=True, usage="window(4, 0)", arguments=2,
        torch="window_mask",
        refuse=lambda left, right: "sees nothing: left + right is below 0" if left + right < 0 else "",
    ),
    Mask(
        "prefix", lambda query, key, count: key < count, "{key} < {a}", lambda count: (Area(key=(-inf, count - 1)),),
        exact=True, usage="prefix(4)", arguments=1,
        refuse=_at_least_one("shows no key", "its argument"),
    ),
    Mask(
        "global", lambda query, key, count: (key < count) | (query < count), "({key} < {a}) | ({query} < {a})",
        lambda count: (Area(key=(-inf, count - 1)), Area(query=(-inf, count - 1))), exact=True,
        usage="global(4)", arguments=1,
        refuse=_at_least_one("shows no key", "its argument"),
    ),
    Mask(
        "dilated", lambda query, key, step: (query - key) % step == 0, "{distance} % {a} == 0",
        usage="dilated(2)", arguments=1, refuse=_at_least_one("has no meaning", "its step"),
    ),
    Mask(
        "block", lambda query, key, size: query // size == key // size,
        "({query} >= 0) & ({query} // {a} == {key} // {a})", lambda size: _window(size - 1, size - 1),
        usage="block(64)", arguments=1, refuse=_at_least_one("has no meaning", "its size"),
    ),
    Mask(
        "block_causal", lambda query, key, size: query // size >= key // size,
        "({query} >= 0) & ({query} // {a} >= {key} // {a})", lambda size: _window(inf, size - 1),
        usage="block_causal(64)", arguments=1, refuse=_at_least_one("has no meaning", "its size"),
    ),
    Mask(  # a call computes each document by itself, so that all pairs of it are of one
        "document", lambda query, key: query - key == query - key, "{distance} == {distance}", exact=True,
    ),
)  # fmt: skip
MASKS: dict[str, Mask] = {row.name: row for row in _ROWS}


def another_mask(row: Mask) -> AbstractContextManager[None]:
    """Has one more mask, inside of `with`."""
    return registered(MASKS, row.name, row, "mask")
