"""What kernels of linear attention compute inside: the plan names it. `tests/relations/found.py` holds its values."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tests.relations.found import FOUND


def test_strict_plans_take_mixed_states_with_features() -> None:
    """Of one sum over the keys, whose kernel is left to torch as products are."""
    (design,) = (found for found in FOUND if found["name"] == "sums_with_values_and_without")
    diagram = {name: step for name, step in design["diagram"].items() if name not in ("z", "u", "r")}
    whole = ta.load(design | {"diagram": diagram | {"y": "Q[n h d] t[n h d e] -> n h e"}})
    assert "inside: K" in ta.explain(whole, "cpp", strict=True, n=4096)


@pytest.mark.parametrize("name", ["linear3", "lfish"])
def test_features_inside_kernels_are_named(name: str) -> None:
    lines = ta.explain(name, "torch", n=1024).splitlines()
    assert not any(line.startswith("  phiQ:") for line in lines)
    assert any("; inside: phiQ" in line for line in lines)
