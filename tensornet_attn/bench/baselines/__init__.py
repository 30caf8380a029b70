"""Handwritten layers of shipped designs in plain PyTorch, the baselines of compiled modules."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from tensornet_attn.bench.baselines import experts, kernels, lfish, mixed, multi_head, tuformer
from tensornet_attn.bench.baselines.layer import Attend, BaselineLayer, eager

FAMILIES = (multi_head, mixed, tuformer, kernels, lfish, experts)
LAYERS: dict[str, tuple[type[BaselineLayer], dict[str, Any]]] = {
    name: entry for family in FAMILIES for name, entry in family.LAYERS.items()
}


def layer_of(name: str, sizes: Mapping[str, Any], causal: bool, attend: Attend = eager) -> BaselineLayer:
    """The handwritten layer of a shipped design, with empty weights. `sizes` has its legs and settings by name.

    >>> layer = layer_of("mhsa", {"f": 8, "h": 2, "d": 4}, causal=False)
    >>> [(name, list(weight.shape)) for name, weight in layer.state_dict().items()][0]
    ('Wq', [8, 2, 4])
    """
    layer_class, options = LAYERS[name]
    return layer_class(SimpleNamespace(**sizes), causal, attend, **options)
