"""Plots of maps, spectra, layers and experts, as matplotlib Figures created without pyplot and its global state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from tensornet_attn.analyse.core import core_values
from tensornet_attn.analyse.maps import Maps, Selections, as_maps, max_maps, mean_maps
from tensornet_attn.analyse.measures import (
    TOLERANCE,
    TOP,
    VARIANCE,
    Eigenvalues,
    batches_of,
    induction_scores,
    map_eigenvalues,
    map_rank,
    singular_values,
)
from tensornet_attn.errors import InputError, MissingPartError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Tensor = torch.Tensor
Layers = Mapping[str, Any]
HEADS = 16  # maximum panels of a plot, and heads in a table with printed scores
COLUMNS = 4  # panels per row
BINS = 25
INDUCTION, CELL = 3.2, 0.36  # inches: a map, a cell with a score
MAP, STRIP, EXPERT = 2.9, 0.75, 0.13  # inches: a map with experts, the frame of a strip, one expert
INK, BLUE, GREY = "#1f2933", "#2563a8", "#9aa5b1"


def need_matplotlib() -> None:
    """Raises MissingPartError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise MissingPartError("plots need matplotlib; run pip install 'tensornet-attn[plot]'.")


def blank(width: float, height: float) -> Figure:
    """An empty figure of a size in inches. Raises MissingPartError."""
    need_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def plot_maps(maps: Maps | Tensor, heads: int = HEADS) -> Figure:
    """The mean map over the batch of each of the first `heads` heads, with queries as rows and keys as columns.

    All maps share one colour scale, with more shades for small weights; it is centred at zero if there are negative
    entries. Returns a matplotlib Figure. Raises InputError, MissingPartError.
    """
    maps = as_maps(maps)
    shown = mean_maps(maps).detach().double().cpu().reshape(-1, *maps.values.shape[-2:])[:heads]
    figure, axes = grid(len(shown), 2.1, 2.1)
    scale = scale_of(shown)
    for head, (axis, matrix) in enumerate(zip(axes, shown, strict=True)):
        image = axis.imshow(matrix.numpy(), interpolation="nearest", **scale)
        label(axis, maps.labels[head], maps.legs[-1], maps.legs[-2])
    _bar(figure, image, axes, "mean weight")
    return figure


def plot_ranks(
    maps: Maps | Tensor | Iterable[Maps | Tensor], bands: Sequence[int] = (0, 5, 10, 20), tolerance: float = TOLERANCE
) -> Figure:
    """Histograms of the ranks of all maps, with bands of these numbers of diagonals removed.

    `maps`: the maps of a batch, or an iterable of those of several batches, such as a generator; only one is in memory
    at a time. One histogram per band: counts of maps over ranks (singular values above `tolerance`). Returns a
    matplotlib Figure. Raises InputError, MissingPartError. Source: after FMMformer (NeurIPS 2021), fig. 3, and
    Transformer-MGK (ICML 2022), figs. 2 and 6.
    """
    largest, ranks = 0, {band: torch.zeros(0) for band in bands}
    for batch in batches_of(maps):
        largest = max(largest, min(batch.values.shape[-2:]))
        ranks = {
            band: torch.cat([earlier, map_rank(batch, band, tolerance).flatten().cpu()])
            for band, earlier in ranks.items()
        }
    return ranks_figure(ranks, largest)


def ranks_figure(ranks: Mapping[int, Tensor], largest: int) -> Figure:
    """One histogram per band, all with the same bins from 0 to the maximum rank."""
    figure, axes = grid(len(ranks), 2.6, 2.2)
    width = max(1, math.ceil((largest + 1) / 32))
    bins = [edge * width - 0.5 for edge in range(math.ceil((largest + 1) / width) + 1)]
    for axis, (band, band_ranks) in zip(axes, ranks.items(), strict=True):
        flat = band_ranks.flatten().double().cpu()
        axis.hist(flat.numpy(), bins=bins, color=BLUE)
        removed = f"{band} diagonals removed" if band else "whole maps"
        mean = f"mean rank {flat.mean().item():.1f} of {largest}" if len(flat) else "no maps"
        label(axis, f"{removed}\n{mean}", "rank", "maps")
        axis.set_xlim(bins[0], bins[-1])
    return figure


def plot_spectra(maps: Maps | Tensor, heads: int = HEADS, core: Tensor | None = None) -> Figure:
    """The singular values of the maps, one line per head (mean over the batch), and of a core matrix if given.

    Values below 1e-9 are clamped; the dashed line is the tolerance of ranks. Returns a matplotlib Figure. Raises
    InputError, MissingPartError.
    """
    maps = as_maps(maps)
    return spectra_figure(maps, singular_values(maps), core, heads)


def spectra_figure(maps: Maps, values: Tensor, core: Tensor | None, heads: int = HEADS) -> Figure:
    """The figure of `plot_spectra`; `values`: the singular values of the maps, [batch, heads, values]."""
    figure, axes = grid(1 if core is None else 2, 4.6, 2.9)
    lines = values.mean(0)[:heads].cpu()
    for line, shade in zip(lines, _shades(len(lines)), strict=True):
        axes[0].plot(range(1, len(line) + 1), line.clamp(min=1e-9).numpy(), lw=1.2, color=shade)
    axes[0].set_yscale("log")
    axes[0].axhline(TOLERANCE, color=GREY, lw=1, ls="--")
    label(axes[0], f"maps of {maps.step}, one line per head", "index", "singular value")
    if core is not None:
        core_spectrum = core_values(core).cpu()
        largest, marker = float(core_spectrum[:1].sum()) or 1.0, "o" if len(core_spectrum) <= 64 else ""
        axes[1].plot(
            range(1, len(core_spectrum) + 1), (core_spectrum / largest).numpy(), color=BLUE, lw=1.2, marker=marker, ms=3
        )
        axes[1].set_ylim(0, 1.05)
        axes[1].locator_params(axis="x", integer=True)
        label(axes[1], f"core of {maps.step}", "index", "singular value / largest")
    return figure


def _shades(count: int) -> list[Any]:
    """Colours for an ordered set of lines."""
    import matplotlib

    return [matplotlib.colormaps["viridis"](0.1 + 0.75 * index / max(1, count - 1)) for index in range(count)]


def grid(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of small multiples, each `width` by `height` inches. Raises InputError, MissingPartError."""
    if count < 1:
        raise InputError("there is nothing to plot.")
    columns = min(count, COLUMNS)
    rows = math.ceil(count / columns)
    figure = blank(width * columns + 0.9, height * rows + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def scale_of(values: Tensor) -> dict[str, Any]:
    from matplotlib.colors import PowerNorm

    most = float(values.abs().amax()) if values.numel() else 0.0
    if values.numel() and float(values.amin()) < 0:
        return {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
    least = float(values.amin()) if values.numel() else 0.0
    return {"cmap": "Blues", "norm": PowerNorm(0.5, vmin=least if least < most else 0.0, vmax=most or 1.0)}


def label(axis: Axes, title: str, across: str, down: str) -> None:
    axis.set_title(title, fontsize=9, color=INK)
    axis.set_xlabel(across, fontsize=8, color=INK)
    axis.set_ylabel(down, fontsize=8, color=INK)
    axis.tick_params(labelsize=7, colors=INK)


def plot_eigenvalues(eigenvalues: Eigenvalues | Maps | Tensor | Layers, top: int = TOP) -> Figure:
    """Eigenvalues of the covariance of attention matrices: a histogram of the largest ones, and cumulative sums.

    Left: the histogram of the `top` largest eigenvalues. Middle and right: the cumulative sum of the `top` largest and
    of all eigenvalues, as a fraction of the trace, with the number of components for 95 %. Takes the result or the
    argument of `map_eigenvalues`. For a mapping {layer: ...}, draws one line per layer and, in black, the mean over the
    layers by index. Returns a matplotlib Figure. Raises InputError, MissingPartError. Source: after Nguyen et al.,
    FiSHformer (NeurIPS 2022), fig. 2.
    """
    layers = _layers(eigenvalues).values()
    spectra = [layer if isinstance(layer, Eigenvalues) else map_eigenvalues(layer) for layer in layers]
    shortest = min(len(layer.values) for layer in spectra)  # the mean is by index, over indices that all layers have
    values = torch.stack([spectrum.values[:shortest].cpu() for spectrum in spectra]).mean(0)
    mean = Eigenvalues(values, min(spectrum.matrices for spectrum in spectra))
    figure, (left, middle, right) = grid(3, 3.3, 2.9)
    if mean.values.any():
        counts, edges = mean.histogram(top, BINS)
        left.stairs(counts.numpy(), edges.numpy(), fill=True, color=BLUE)
        left.set_xscale("log")
        left.locator_params(axis="y", integer=True)
    shown = min(top, len(mean.values))
    averaged = ", mean of layers" if len(spectra) > 1 else ""
    label(left, f"the {shown} largest eigenvalues{averaged}", "eigenvalue", "count")
    for axis, count in ((middle, shown), (right, len(mean.values))):
        for spectrum, shade in zip(spectra, _shades(len(spectra)), strict=True):
            _line(axis, spectrum, count, color=shade, lw=1.1)
        if len(spectra) > 1:
            _line(axis, mean, count, color="black", lw=1.8)
        axis.axhline(VARIANCE, color=GREY, lw=1, ls="--")
        axis.set_ylim(0, 1.04)
        axis.locator_params(axis="x", integer=True, nbins=6)
    label(middle, f"cumulative sum, first {shown}", "components", "fraction of the trace")
    components = mean.components()
    right.axvline(components, color=GREY, lw=1, ls="--")
    words = f"cumulative sum, all {len(mean.values)}\n{components} components for {VARIANCE:.0%}"
    words += " of the mean" if len(spectra) > 1 else ""
    label(right, words, "components", "fraction of the trace")
    return figure


def _line(axis: Axes, eigenvalues: Eigenvalues, count: int, **style: Any) -> None:
    values = eigenvalues.cumulative[:count].cpu()
    axis.plot(range(1, len(values) + 1), values.numpy(), **style)


def plot_max_maps(maps: Maps | Tensor | Layers, batch: int = 0) -> Figure:
    """The maximum over all heads of the maps of one sequence, with queries as rows and keys as columns.

    For a mapping {layer: maps}, draws one panel per layer with a common colour scale. `batch`: the index of the
    sequence. Returns a matplotlib Figure. Raises InputError, MissingPartError. Source: after Csordas et al., Few Heads
    Are Enough (EPA; later SwitchHead), figs. 2, 3 and 4.
    """
    maps_by_layer = {name: as_maps(layer_maps) for name, layer_maps in _layers(maps).items()}
    shown = {name: _sequence(max_maps(layer_maps).double(), batch) for name, layer_maps in maps_by_layer.items()}
    figure, axes = grid(len(shown), 2.5, 2.5)
    scale = scale_of(torch.cat([matrix.flatten() for matrix in shown.values()]))
    for axis, (name, matrix) in zip(axes, shown.items(), strict=True):
        image = axis.imshow(matrix.numpy(), interpolation="nearest", **scale)
        label(axis, name or maps_by_layer[name].step, maps_by_layer[name].legs[-1], maps_by_layer[name].legs[-2])
    _bar(figure, image, axes, "largest weight of all heads")
    return figure


def plot_induction(maps: Maps | Tensor | Layers, period: int | None = None, batch: int = 0) -> Figure:
    """Induction scores by layer and head, and the map of the head with the highest score.

    `maps`: of repeated random tokens, as in `induction_scores`; a mapping {layer: maps} gives one row per layer.
    `batch`: the index of the sequence whose map is drawn; the map of an induction head has a line period - 1 to the
    left of the diagonal. Returns a matplotlib Figure. Raises InputError, MissingPartError. Source: after Csordas et
    al., Few Heads Are Enough (EPA; later SwitchHead), fig. 6.
    """
    maps_by_layer = {name: as_maps(layer_maps) for name, layer_maps in _layers(maps).items()}
    scores = [induction_scores(layer_maps, period).flatten().cpu() for layer_maps in maps_by_layer.values()]
    heads = max(len(row) for row in scores)
    table = torch.full((len(scores), heads), math.nan, dtype=torch.float64)
    for index, row in enumerate(scores):
        table[index, : len(row)] = row
    wide = max(2.4, CELL * min(heads, HEADS)) + 1.6
    figure = blank(wide + INDUCTION + 0.9, max(INDUCTION, CELL * len(scores) + 0.8))
    left, right = figure.subplots(1, 2, width_ratios=(wide, INDUCTION))
    aspect = "equal" if heads <= HEADS else "auto"
    left.imshow(table.numpy(), interpolation="nearest", aspect=aspect, cmap="Blues", vmin=0, vmax=1)
    left.set_yticks(range(len(maps_by_layer)), [name or layer_maps.step for name, layer_maps in maps_by_layer.items()])
    label(left, "induction score", "head", "")
    left.locator_params(axis="x", integer=True)
    for y, x in table.isnan().logical_not().nonzero().tolist() if heads <= HEADS else ():
        ink = "white" if table[y, x] > 0.6 else INK
        left.text(x, y, f"{table[y, x]:.2f}", ha="center", va="center", fontsize=6.5, color=ink)
    layer, head = divmod(int(table.nan_to_num(-1).argmax()), heads)
    name, best_maps = list(maps_by_layer.items())[layer]
    chosen = _sequence(best_maps.by_head[:, head].double(), batch)
    image = right.imshow(chosen.numpy(), interpolation="nearest", **scale_of(chosen))
    words = ", ".join(word for word in (name or best_maps.step, best_maps.labels[head]) if word)
    label(right, f"{words}\nscore {table[layer, head]:.2f}", best_maps.legs[-1], best_maps.legs[-2])
    _bar(figure, image, [right], "weight")
    return figure


def _bar(figure: Figure, image: Any, axes: list[Axes], words: str) -> None:
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30)
    bar.set_label(words, fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, colors=INK)


def _layers(layers: Any) -> dict[str, Any]:
    """Layers by name; a single layer gets an empty name. Raises InputError if there are none."""
    by_name = dict(layers) if isinstance(layers, Mapping) else {"": layers}
    if not by_name:
        raise InputError("there is nothing to plot.")
    return by_name


def _sequence(values: Tensor, batch: int, legs: int = 2) -> Tensor:
    """One sequence of [batch..., legs], on the CPU. Raises InputError."""
    flat = values.detach().cpu().reshape(-1, *values.shape[values.ndim - legs :])
    if not 0 <= batch < len(flat):
        raise InputError(f"batch is {batch}, but there are {len(flat)} sequences.")
    return flat[batch]


def plot_experts(
    selections: Selections | Mapping[str, Selections], maps: Maps | None = None, batch: int = 0, heads: int = 4
) -> Figure:
    """The experts that each position of a sequence chose, and the attention map: one row of panels per head.

    Colours are gates; experts that were not chosen are white. Selections by query are to the right of the map, with
    positions as rows; selections by key are below it, with positions as columns. The map is averaged over head legs
    that no selection has. `batch`: the index of the sequence. Returns a matplotlib Figure. Raises InputError,
    MissingPartError. Source: after Csordas et al., Few Heads Are Enough (EPA; later SwitchHead), fig. 2.
    """
    several = [selections] if isinstance(selections, Selections) else list(selections.values())
    query = None if maps is None else maps.legs[-2]
    right = [selection for selection in several if query is None or selection.position in (None, query)]
    under = [selection for selection in several if selection not in right]
    sizes: dict[str, int] = {}  # of legs other than positions: one block of panels per combination of their indices
    for selection in (*right, *under):
        sizes |= {
            leg: size for leg, size in zip(selection.legs, selection.sizes, strict=True) if leg != selection.position
        }
    rows = [dict(zip(sizes, indices, strict=True)) for indices in product(*map(range, sizes.values()))][:heads]
    if not several or not rows:
        raise InputError("there is nothing to plot.")
    widths = [MAP] * (maps is not None) + [STRIP + EXPERT * selection.size for selection in right]
    heights = [MAP] + [STRIP + EXPERT * selection.size for selection in under]
    across = min(2, len(rows))
    down = math.ceil(len(rows) / across)
    figure = blank(across * sum(widths) + 0.4, down * sum(heights))
    blocks = figure.subfigures(down, across, squeeze=False).flatten().tolist()
    for block, row in zip(blocks, rows, strict=False):
        grid = block.add_gridspec(len(heights), len(widths), width_ratios=widths, height_ratios=heights)
        if maps is not None:
            _draw_map(block.add_subplot(grid[0, 0]), maps, row, batch)
        for column, selection in enumerate(right, len(widths) - len(right)):
            _draw_strip(block.add_subplot(grid[0, column]), selection, row, batch, across=False)
        for line, selection in enumerate(under, 1):
            _draw_strip(block.add_subplot(grid[line, 0]), selection, row, batch, across=True)
    return figure


def _draw_map(axis: Axes, maps: Maps, row: dict[str, int], batch: int) -> None:
    matrix = _sequence(maps.values.double(), batch, len(maps.legs))
    over = [axis_index for axis_index, leg in enumerate(maps.legs[:-2]) if leg not in row]
    matrix = matrix[tuple(row[leg] if leg in row else slice(None) for leg in maps.legs[:-2])]
    matrix = matrix.mean(tuple(range(len(over)))) if over else matrix
    axis.imshow(matrix.numpy(), interpolation="nearest", aspect="auto", **scale_of(matrix))
    averaged = ", ".join(maps.legs[axis_index] for axis_index in over)
    title = ", ".join([_named(maps, row), *([f"mean over {averaged}"] if averaged else [])])
    label(axis, title, maps.legs[-1], maps.legs[-2])


def _draw_strip(axis: Axes, selection: Selections, row: dict[str, int], batch: int, across: bool) -> None:
    """Draws gates over positions and experts, with shades relative to the largest gate."""
    index = tuple(slice(None) if leg == selection.position else row[leg] for leg in selection.legs)
    dense, chosen = (
        torch.atleast_2d(_sequence(tensor, batch, len(selection.legs) + 1)[index])
        for tensor in (selection.dense.double(), selection.chosen)
    )
    scale = scale_of(dense) if dense.amin() < 0 else {"cmap": "Oranges", "vmin": 0, "vmax": float(dense.amax()) or 1.0}
    dense = dense.where(chosen, math.nan)  # not drawn
    axis.imshow((dense.T if across else dense).numpy(), interpolation="nearest", aspect="auto", **scale)
    legs = (selection.position or "", selection.leg)
    largest = f"gates up to {float(dense[chosen].abs().amax()):.2g}"
    between = ", " if across else "\n"
    label(axis, f"{_named(selection, row)}{between}{largest}", *(legs if across else legs[::-1]))
    (axis.set_yticks if across else axis.set_xticks)(range(0, selection.size, max(1, selection.size // 8)))


def _named(drawn: Maps | Selections, row: dict[str, int]) -> str:
    """A step with the indices of its heads, as `A, h 0`."""
    return ", ".join([drawn.step, *(f"{leg} {index}" for leg, index in row.items() if leg in drawn.legs)])
