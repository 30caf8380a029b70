"""A sweep of costs as SVG: a panel a measure, a curve for what else varies than the first axis."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet_attn.cost.sweep import MEASURES, Point, Swept
from tensornet_attn.cost.sweep_text import cell, head
from tensornet_attn.draw.curves import Curve, Panel, curves

AXES = {"n": "length n", "m": "length m"}  # others are sizes


def sweep_svg(found: Swept) -> str:
    """SVG with title and description; ratios where there is another design."""
    axes = [*found.sweep.axes]
    panels = []
    for measure in found.sweep.measures:
        ratio = f", ratio to {found.against}" if found.against else ""
        drawn = tuple(_curve(name, points, axes[0], measure) for name, points in found.series().items())
        several = [*(["designs"] if len(found.sweep.designs) > 1 else []), *axes[1:]]
        same = f"the same for all {' and '.join(several)}"
        panels.append(Panel(f"{measure}{ratio}", AXES.get(axes[0], f"size of {axes[0]}"), drawn, same))
    return curves(panels, head(found), _about(found))


def _curve(name: str, points: Sequence[Point], axis: str, measure: str) -> Curve:
    return Curve(name, tuple(p.sizes[axis] for p in points), tuple(p.displayed(measure) for p in points))


def _about(found: Swept) -> str:
    """The curves in words: how each begins and ends."""
    axis = next(iter(found.sweep.axes))
    words = []
    for measure in found.sweep.measures:
        ends = [
            f"{name}: {cell(points[0], measure)} at {axis} = {points[0].sizes[axis]}, "
            f"{cell(points[-1], measure)} at {axis} = {points[-1].sizes[axis]}"
            for name, points in found.series().items()
        ]
        words.append(f"{measure} ({MEASURES[measure]}). {'; '.join(ends)}.")
    return " ".join(words)
