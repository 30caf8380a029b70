"""Elementwise maps that kernels compute where they load tiles, by the names under which modules register them."""

from collections.abc import Callable
from dataclasses import dataclass

from tensornet_attn.runtime.operations import own_name

TILE_MAPS: dict = {}  # name: TileMap


@dataclass(frozen=True)
class TileMap:
    """A map as a function of a tensor, of a tile x, and the gradient of x from (x, result, gradient of the result).

    Nothing is applied if these are None.
    """

    whole: Callable | None = None
    tile: Callable | None = None
    slope: Callable | None = None


def tile_map(name: str, whole: Callable, tile: Callable, slope: Callable) -> str:
    """Registers a map and returns its name, which custom operations take as an argument."""
    name = own_name(name, TILE_MAPS)
    TILE_MAPS[name] = TileMap(whole, tile, slope)
    return name
