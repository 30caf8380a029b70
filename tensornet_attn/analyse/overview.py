"""The head of a report: all attention boxes in one table with their means, the maximum over heads, induction heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensornet_attn.analyse.eigen import VARIANCE
from tensornet_attn.analyse.figures import BoxFigures, LayerFigures, averages
from tensornet_attn.analyse.maps import Maps
from tensornet_attn.analyse.plot_layers import plot_eigenvalues, plot_induction, plot_max_maps
from tensornet_attn.report.page import Block, Table, plot

COLUMNS = {
    "effective_heads": "effective heads",
    "distance_mean": "distance between heads: mean",
    "distance_variance": "variance",
    "principal_components": f"components for {VARIANCE:.0%}: maps",
    "score_principal_components": "scores",
    "largest_induction": "largest induction score",
}


def overview(layers: Sequence[LayerFigures]) -> list[Block]:
    """The table and the plots; none without attention boxes."""
    boxes = [box for layer in layers for box in layer.boxes]
    if not boxes:
        return []
    blocks: list[Block] = [_table(layers, boxes)] if len(boxes) > 1 else []
    names = _names(boxes)
    if len(boxes) > 1:
        words = (
            "Eigenvalues of the covariance of all maps of a layer, a line a layer; black is the mean over the layers, "
        )
        words += f"by index. The dashed lines are at {VARIANCE:.0%} of the trace."
        found = {name: box.eigenvalues for name, box in zip(names, boxes, strict=True)}
        blocks.append(plot(plot_eigenvalues(found), words))
    words = "The maximum over all heads of the maps of the first sequence, one colour scale for all."
    blocks.append(plot(plot_max_maps({name: box.maps for name, box in zip(names, boxes, strict=True)}), words))
    repeated = {
        name: box.repeated
        for name, box in zip(names, boxes, strict=True)
        if box.repeated is not None and box.induction.value is not None
    }
    if repeated:
        blocks.append(plot(plot_induction(repeated), _induction_words(repeated)))
    return blocks


def _induction_words(repeated: dict[str, Maps]) -> str:
    first = next(iter(repeated.values()))
    return (
        f"Induction scores on {len(first.by_head)} sequences of {first.values.shape[-1] // 2} random tokens, each "
        "repeated once: how much a token at its second occurrence attends to the token after its first occurrence, on "
        "average. At the right the map of the head with the largest score, on the first of these sequences."
    )


def _names(boxes: Sequence[BoxFigures]) -> list[str]:
    """Short titles for panels: the step is left out where each section has one box."""
    titles = [box.section.title for box in boxes]
    if len(set(titles)) < len(titles):
        titles = [box.title for box in boxes]
    if len(set(titles)) < len(titles):  # sections of the same title
        titles = [f"{place}: {title}" for place, title in enumerate(titles, 1)]
    return titles


def _table(layers: Sequence[LayerFigures], boxes: Sequence[BoxFigures]) -> Table:
    rows = [[box.title, *(_cell(key, box.summary[key]) for key in COLUMNS)] for box in boxes]
    means = averages(layers)
    rows.append([f"mean of {len(boxes)} boxes", *(_cell(key, means[key], mean=True) for key in COLUMNS)])
    caption = (
        "Every attention box; below, the means over the boxes, as tables 8 and 9 of FiSHformer average over layers."
    )
    return Table(("attention box", *COLUMNS.values()), rows, caption, total=True)


def _cell(key: str, value: float | None, mean: bool = False) -> str:
    if value is None or math.isnan(value):
        return "–"
    if "components" in key:
        return f"{value:.1f}" if mean else f"{value:.0f}"
    return f"{value:.2f}" if key == "effective_heads" else f"{value:.3g}"
