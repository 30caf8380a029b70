"""All kernels of a region."""

from __future__ import annotations

from tensornet_attn.emit.triton.backward import backward, by_keys, by_numbers, by_places, by_queries, row_sums
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
    numbers = by_numbers(region, made)
    found = dict[str, str]()
    if region.online:
        found |= {"forward": forward(region)}
    elif region.mixed:
        found |= {"statistics": statistics(region), "forward": second(region)}
        found |= {"sums": row_sums(region, made, numbers.pop("sums", []))}
    else:
        found |= {"forward": second(region)}
    rows = numbers.pop("rows", [])
    found |= {kind: backward(region, made, region.program.query, kind, own) for kind, own in numbers.items()}
    found |= by_places(region, made)
    return found | {"rows": by_queries(region, made, rows), "keys": by_keys(region, made)}
