"""Elementwise maps that kernels compute where they load tiles, by the names under which modules register them."""

from tensornet_attn.runtime.operations import own_name

TILE_MAPS: dict = {"": (None, None, None)}  # name: map of a tensor, map of a tile, slope


def tile_map(name: str, whole, tile, slope) -> str:
    """Registers a map and returns its name, which custom operations take as an argument.

    `whole` is the map of a tensor, `tile` that of a tile, and slope(x, y, d) the gradient of x, from y = tile(x) and
    its gradient d. The name "" means no map.
    """
    name = own_name(name, TILE_MAPS)
    TILE_MAPS[name] = (whole, tile, slope)
    return name
