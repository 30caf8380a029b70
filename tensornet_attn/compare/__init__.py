"""Runs side by side: means and intervals over seeds, costs, learning curves, pictures; as a page, a table or JSON."""

from __future__ import annotations

from tensornet_attn.compare.report import Comparison, compare

__all__ = ["Comparison", "compare"]
