"""Masks as kernels use them: the ends of a band, other conditions as text, and areas with visible pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from tensornet_attn.graph.graph import Function, Graph
from tensornet_attn.graph.visibility import condition, hidden_areas, interval, visible_areas
from tensornet_attn.ir.areas import Areas, distances
from tensornet_attn.ir.arithmetic import evaluate

PLACES = {name: f"{{{name}}}" for name in ("query", "key", "distance")}  # filled in when a kernel is printed


@dataclass(frozen=True)
class MaskConditions:
    """The masks of a box, combined. `left`, `right`: the farthest visible key before and after a query.

    `areas`: no pair outside these areas is visible. `conditions`: masks that are not intervals, as text over `{query}`,
    `{key}` and `{distance}`; `hidden`: outside these areas, the conditions hide nothing.
    """

    left: int | None
    right: int | None
    areas: Areas
    conditions: tuple[str, ...] = ()
    hidden: Areas = ()


def conditions_of(graph: Graph, masks: Iterable[Function]) -> MaskConditions:
    """The conditions for a set of masks."""
    values, distinct = graph.values, tuple(dict.fromkeys(masks))
    bands = [mask for mask in distinct if interval([mask], values)]
    ends = [distances(visible_areas([mask], values)) or (1, 0) for mask in bands]
    left = min((int(far) for _, far in ends if far < inf), default=None)
    right = min((int(-near) for near, _ in ends if near > -inf), default=None)
    other_masks = [mask for mask in distinct if mask not in bands]
    conditions = tuple(condition(mask, lambda tree: str(int(evaluate(tree, values))), PLACES) for mask in other_masks)
    return MaskConditions(left, right, visible_areas(distinct, values), conditions, hidden_areas(other_masks, values))
