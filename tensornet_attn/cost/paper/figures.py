"""Figures of efficiency: rows without a printed number, each with its state and where ours is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensornet_attn.cost.paper.model import Count, Row
from tensornet_attn.cost.paper.printed import Section

MEASURED = "measured on a GPU; the figure prints no number."
DRAWN = "the figure prints no number; docs/costs.md shows how to draw ours."


def figures(section: Section, notes: Mapping[str, str] | None = None) -> Iterable[Row]:
    """A row a figure; `notes` replace the common one, by figure."""
    for row in section.rows:
        common = DRAWN if row["state"] == "drawn" else MEASURED
        count = Count("figure", source=row["state"], note=(notes or {}).get(row["figure"], common))
        yield Row(f"fig. {row['figure']}: {row['quantity']}", section.where, {}, (), (count,))
