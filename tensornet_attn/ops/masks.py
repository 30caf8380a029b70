"""The table of masks. A row has all properties of one mask.

`sees` is the condition under which a query sees a key. The same text serves PyTorch and Triton, with the positions
`{query}` and `{key}`, `{distance}` (query minus key) and the numbers `{a}`, `{b}`. With more queries than keys, the
position of a query may be negative, where `//` floors in PyTorch and truncates in Triton.
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

    `reference(query, key, *numbers)` is the condition on tensors of positions. `areas(*numbers)` contains all visible
    pairs, and no others if `exact`. `refuse(*numbers)` is the reason why numbers are invalid, or empty. `torch` is the
    runtime's function of n, m and the numbers, if it has one.
    """

    name: str
    reference: Callable[..., Any]
    sees: str
    areas: Callable[..., Areas] = lambda *numbers: EVERYWHERE
    exact: bool = False
    usage: str = ""  # an example with useful numbers; empty: the name
    arguments: int = 0  # the number of its numbers, optional ones included
    defaults: tuple[int, ...] = ()  # defaults of the last numbers
    refuse: Callable[..., str] = lambda *numbers: ""
    torch: str = ""

    @property
    def example(self) -> str:
        return self.usage or self.name

    @property
    def counts(self) -> tuple[int, ...]:
        """The valid counts of numbers."""
        return tuple(range(self.arguments - len(self.defaults), self.arguments + 1))

    @property
    def by_distance(self) -> bool:
        """Whether it depends only on the distance of query and key."""
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
        refuse=lambda width: "shows no key: its width is negative" if width < 0 else "",
    ),
    Mask(
        "window", lambda query, key, left, right: (query - key <= left) & (query - key >= -right),
        "({distance} <= {a}) & ({distance} >= -{b})", _window, exact=True, usage="window(4, 0)", arguments=2,
        torch="window_mask",
        refuse=lambda left, right: "shows no key: left + right is negative" if left + right < 0 else "",
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
        usage="dilated(2)", arguments=1, refuse=_at_least_one("is undefined", "its step"),
    ),
    Mask(
        "block", lambda query, key, size: query // size == key // size,
        "({query} >= 0) & ({query} // {a} == {key} // {a})", lambda size: _window(size - 1, size - 1),
        usage="block(64)", arguments=1, refuse=_at_least_one("is undefined", "its size"),
    ),
    Mask(
        "block_causal", lambda query, key, size: query // size >= key // size,
        "({query} >= 0) & ({query} // {a} >= {key} // {a})", lambda size: _window(inf, size - 1),
        usage="block_causal(64)", arguments=1, refuse=_at_least_one("is undefined", "its size"),
    ),
    Mask(  # a call computes each document separately, so that it sees only pairs of one document
        "document", lambda query, key: query - key == query - key, "{distance} == {distance}", exact=True,
    ),
)  # fmt: skip
MASKS: dict[str, Mask] = {row.name: row for row in _ROWS}


def another_mask(row: Mask) -> AbstractContextManager[None]:
    """Adds a mask to the language inside a `with` block."""
    return registered(MASKS, row.name, row, "mask")
