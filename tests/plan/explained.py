"""What `explain()` says of the operations between queries and keys."""

from __future__ import annotations

import re

TRITON = "Triton kernels"


def ways(text: str) -> dict[str, str]:
    """How each region is computed that is more than products and boxes of their own: `{"A": "fused attention"}`."""
    found = re.findall(r"^  (\S+): ([a-zA-Z ]+):", text, re.MULTILINE)
    return {region: way for region, way in found if way not in ("absorbed weights", "removed")}
