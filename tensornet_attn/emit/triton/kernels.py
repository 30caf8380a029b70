"""All kernels of a region."""

from __future__ import annotations

from tensornet_attn.emit.triton.backward import by_keys, by_numbers, by_places, by_queries, row_sums
from tensornet_attn.emit.triton.forward import forward, second, statistics
from tensornet_attn.emit.triton.region import Region
from tensornet_attn.tiles.derive import gradients


def kernels(region: Region) -> dict[str, str]:
    """The source by kernel: `forward`, `rows` and `keys`; `statistics` and `sums` for mixed maps, `numbers` for many
    scalars, `places` for relative positions."""
    _written(region)
    return _written(region)  # the second pass knows all coefficients


def _written(region: Region) -> dict[str, str]:
    made = gradients(region.program)
    found = dict[str, str]()
    if region.online:
        found |= {"forward": forward(region)}
    elif region.program.maps:
        found |= {"statistics": statistics(region), "forward": second(region), "sums": row_sums(region, made)}
    else:
        found |= {"forward": second(region)}
    found |= by_numbers(region, made) if region.crowded else {}
    found |= by_places(region, made)
    return found | {"rows": by_queries(region, made), "keys": by_keys(region, made)}
