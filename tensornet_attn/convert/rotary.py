"""Rotary positions of a layer of transformers, as its config has them, in the words of a box `rope`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensornet_attn.convert.trained import refusal
from tensornet_attn.ops.rope import ORIGINAL, SCALINGS


def rope_of(module: Any) -> Mapping[str, Any]:
    """What the config of a layer says of its positions: some configs have one for each kind of layer."""
    found: Mapping[str, Any] = module.config.rope_parameters
    kinds = getattr(module.config, "layer_types", None)
    return found.get(kinds[module.layer_idx] if kinds else "", found)


def scaling_of(where: str, module: Any) -> dict[str, Any]:
    """The keys of a box `rope` for its scaling; empty where it has none. Raises InputError where no design has it."""
    config, rope = module.config, rope_of(module)
    kind = rope.get("rope_type", "default")
    if kind != "default" and kind not in SCALINGS:
        lists = ", by lists of factors" if kind == "longrope" else ""
        known = ", ".join(("default", *SCALINGS))
        raise refusal(where, f"its rotary positions are scaled (rope_type '{kind}'{lists}); a design has {known} ones")
    needed, more = SCALINGS.get(kind, ((), ()))
    found = {name: rope[name] for name in (*needed, *more) if rope.get(name) is not None}
    if kind == "dynamic" or (ORIGINAL in needed and ORIGINAL not in found):
        found[ORIGINAL] = config.max_position_embeddings
    if kind == "yarn" and "factor" not in found:
        found["factor"] = config.max_position_embeddings / found[ORIGINAL]
    return {"rope_type": kind, **found} if needed else {}
