"""Comparison of runs: means and intervals over seeds, costs, learning curves, and pictures, as page, table or JSON."""

from __future__ import annotations

from tensornet_attn.compare.report import Comparison, compare

__all__ = ["Comparison", "compare"]
