"""Plots over layers: eigenvalues of attention matrices, the maximum over heads, and induction heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tensornet_attn.analyse.eigen import TOP, VARIANCE, Eigenvalues, map_eigenvalues
from tensornet_attn.analyse.maps import Maps, as_maps, max_maps
from tensornet_attn.analyse.plots import BLUE, GREY, INK, blank, colour, grid, label, scale_of
from tensornet_attn.analyse.rows import induction_scores
from tensornet_attn.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Tensor = torch.Tensor
Layers = Mapping[str, Any]
BINS = 25
MAP, CELL = 3.2, 0.36  # inches: a map, a score
WRITTEN = 16  # heads of a table of scores whose scores are written into it


def plot_eigenvalues(eigenvalues: Eigenvalues | Maps | Tensor | Layers, top: int = TOP) -> Figure:
    """Eigenvalues of the covariance of attention matrices: the largest ones as a histogram, and cumulative sums.

    Left: the histogram of the `top` largest eigenvalues. Middle and right: the cumulative sum of the `top` largest and
    of all, as a part of the trace, with the number of components for 95 %. Takes what `map_eigenvalues` gives or takes;
    of a mapping {layer: ...}, a line a layer, and in black the mean over the layers, by index. Returns a matplotlib
    Figure. Raises InputError, MissingPartError. Source: after Nguyen et al., FiSHformer (NeurIPS 2022), fig. 2.
    """
    found = {name: _eigenvalues(value) for name, value in _layers(eigenvalues).items()}
    mean = _mean(list(found.values()))
    figure, (left, middle, right) = grid(3, 3.3, 2.9)
    if mean.values.any():
        counts, edges = mean.histogram(top, BINS)
        left.stairs(counts.numpy(), edges.numpy(), fill=True, color=BLUE)
        left.set_xscale("log")
        left.locator_params(axis="y", integer=True)
    shown = min(top, len(mean.values))
    averaged = ", mean of layers" if len(found) > 1 else ""
    label(left, f"the {shown} largest eigenvalues{averaged}", "eigenvalue", "count")
    for axis, count in ((middle, shown), (right, len(mean.values))):
        for place, each in enumerate(found.values()):
            shade = colour(0.1 + 0.75 * place / max(1, len(found) - 1))
            _line(axis, each, count, color=shade, lw=1.1)
        if len(found) > 1:
            _line(axis, mean, count, color="black", lw=1.8)
        axis.axhline(VARIANCE, color=GREY, lw=1, ls="--")
        axis.set_ylim(0, 1.04)
        axis.locator_params(axis="x", integer=True, nbins=6)
    label(middle, f"cumulative sum, first {shown}", "components", "part of the trace")
    components = mean.components()
    right.axvline(components, color=GREY, lw=1, ls="--")
    words = f"cumulative sum, all {len(mean.values)}\n{components} components for {VARIANCE:.0%}"
    words += " of the mean" if len(found) > 1 else ""
    label(right, words, "components", "part of the trace")
    return figure


def _eigenvalues(value: Any) -> Eigenvalues:
    return value if isinstance(value, Eigenvalues) else map_eigenvalues(value)


def _mean(found: list[Eigenvalues]) -> Eigenvalues:
    """The mean over layers by index, of as many eigenvalues as all have."""
    shortest = min(len(each.values) for each in found)
    values = torch.stack([each.values[:shortest].cpu() for each in found]).mean(0)
    return Eigenvalues(values, min(each.matrices for each in found))


def _line(axis: Axes, eigenvalues: Eigenvalues, count: int, **style: Any) -> None:
    values = eigenvalues.cumulative[:count].cpu()
    axis.plot(range(1, len(values) + 1), values.numpy(), **style)


def plot_max_maps(maps: Maps | Tensor | Layers, batch: int = 0) -> Figure:
    """The maximum over all heads of the maps of one sequence, queries downwards and keys to the right.

    Of a mapping {layer: maps}, a panel a layer with one colour scale for all. `batch` chooses the sequence. Returns a
    matplotlib Figure. Raises InputError, MissingPartError. Source: after Csordas et al., Few Heads Are Enough
    (EPA; later SwitchHead), figs. 2, 3 and 4.
    """
    given = {name: as_maps(value) for name, value in _layers(maps).items()}
    shown = {name: _sequence(max_maps(value), batch) for name, value in given.items()}
    figure, axes = grid(len(shown), 2.5, 2.5)
    scale = scale_of(torch.cat([value.flatten() for value in shown.values()]))
    for axis, (name, value) in zip(axes, shown.items(), strict=True):
        image = axis.imshow(value.numpy(), interpolation="nearest", **scale)
        label(axis, name or given[name].step, given[name].legs[-1], given[name].legs[-2])
    _bar(figure, image, axes, "largest weight of all heads")
    return figure


def plot_induction(maps: Maps | Tensor | Layers, period: int | None = None, batch: int = 0) -> Figure:
    """Induction scores by layer and head, and beside them the map of the head with the largest score.

    `maps` are those of repeated random tokens, as `induction_scores` takes them; of a mapping {layer: maps}, a row a
    layer. The map is that of the sequence `batch`; that of an induction head has a line period - 1 left of the
    diagonal. Returns a matplotlib Figure. Raises InputError, MissingPartError. Source: after Csordas et al.,
    Few Heads Are Enough (EPA; later SwitchHead), fig. 6.
    """
    given = {name: as_maps(value) for name, value in _layers(maps).items()}
    scores = [induction_scores(value, period).flatten().cpu() for value in given.values()]
    heads = max(len(row) for row in scores)
    table = torch.full((len(scores), heads), math.nan, dtype=torch.float64)
    for place, row in enumerate(scores):
        table[place, : len(row)] = row
    wide = max(2.4, CELL * min(heads, WRITTEN)) + 1.6
    figure = blank(wide + MAP + 0.9, max(MAP, CELL * len(scores) + 0.8))
    left, right = figure.subplots(1, 2, width_ratios=(wide, MAP))
    aspect = "equal" if heads <= WRITTEN else "auto"
    left.imshow(table.numpy(), interpolation="nearest", aspect=aspect, cmap="Blues", vmin=0, vmax=1)
    left.set_yticks(range(len(given)), [name or value.step for name, value in given.items()])
    label(left, "induction score", "head", "")
    left.locator_params(axis="x", integer=True)
    if heads <= WRITTEN:
        _write(left, table)
    layer, head = divmod(int(table.nan_to_num(-1).argmax()), heads)
    name, found = list(given.items())[layer]
    chosen = _sequence(found.by_head[:, head].reshape(*found.batch, *found.values.shape[-2:]), batch)
    image = right.imshow(chosen.numpy(), interpolation="nearest", **scale_of(chosen))
    words = ", ".join(part for part in (name or found.step, found.labels[head]) if part)
    label(right, f"{words}\nscore {table[layer, head]:.2f}", found.legs[-1], found.legs[-2])
    _bar(figure, image, [right], "weight")
    return figure


def _write(axis: Axes, table: Tensor) -> None:
    for y, row in enumerate(table.tolist()):
        for x, value in enumerate(row):
            if not math.isnan(value):
                ink = "white" if value > 0.6 else INK
                axis.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=ink)


def _bar(figure: Figure, image: Any, axes: list[Axes], words: str) -> None:
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30)
    bar.set_label(words, fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, colors=INK)


def _layers(value: Any) -> dict[str, Any]:
    """Layers by name; one without a name where it stands alone. Raises InputError for none."""
    found = dict(value) if isinstance(value, Mapping) else {"": value}
    if not found:
        raise InputError("there is nothing to plot.")
    return found


def _sequence(values: Tensor, batch: int) -> Tensor:
    """One of [batch..., query, key], float64 on the CPU. Raises InputError."""
    flat = values.detach().double().cpu().reshape(-1, *values.shape[-2:])
    if not 0 <= batch < len(flat):
        raise InputError(f"batch is {batch}; there are {len(flat)} sequences.")
    return flat[batch]
