"""The C++ of linear attention: the header of regions, the passes, and the maps of each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensornet_attn.ops.maps import Map
from tensornet_attn.tiles.cpp.source import headed
from tensornet_attn.tiles.cpp.values import in_cpp

PASSES = (Path(__file__).parent / "linear.h").read_text(encoding="utf-8")


def linear_source(kernels: Sequence[tuple[Map | None, Map | None]]) -> str:
    """The text for the maps of the queries and of the keys of each kernel; None: the features are given."""
    maps = "\n".join(
        f"template <> struct Map<{i}> {{\n{_functions('query', query)}{_functions('key', key)}}};"
        for i, (query, key) in enumerate(kernels)
    )
    return f"{headed()}{PASSES.replace('@KERNELS@', str(len(kernels)))}".replace("@MAPS@", maps)


def _functions(side: str, row: Map | None) -> str:
    texts = ("x", "d") if row is None else (row.triton.format(x="x"), row.slope.format(x="x", y="y", d="d"))
    tile, slope = map(in_cpp, texts)
    return (
        f"  static real {side}(real x) {{ return {tile}; }}\n"
        f"  static real {side}_slope(real x, real y, real d) {{ return {slope}; }}\n"
    )
