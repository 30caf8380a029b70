"""All kernels of a region."""

from __future__ import annotations

from tensornet_attn.emit.triton.backward import backward, by_keys, by_numbers, by_places, by_queries, row_sums
from tensornet_attn.emit.triton.forward import forward, second, statistics
from tensornet_attn.emit.triton.region import TritonRegion
from tensornet_attn.tiles.derive import gradients


def kernels(region: TritonRegion) -> dict[str, str]:
    """The source by kernel: `forward`, `rows` and `keys`; `statistics` and `sums` for mixed maps, `numbers` for many
    scalars, `places` for relative positions."""
    _written(region)
    return _written(region)  # the second pass knows all coefficients


def _written(region: TritonRegion) -> dict[str, str]:
    grads = gradients(region.program)
    numbers = by_numbers(region, grads)
    sources = dict[str, str]()
    if region.online:
        sources |= {"forward": forward(region)}
    elif region.mixed:
        sources |= {"statistics": statistics(region), "forward": second(region)}
        sources |= {"sums": row_sums(region, grads, numbers.pop("sums", []))}
    else:
        sources |= {"forward": second(region)}
    rows = numbers.pop("rows", [])
    sources |= {kind: backward(region, grads, region.program.query, kind, leaves) for kind, leaves in numbers.items()}
    sources |= by_places(region, grads)
    return sources | {"rows": by_queries(region, grads, rows), "keys": by_keys(region, grads)}
