"""Plots of maps, ranks, spectra and experts: matplotlib Figures, made without pyplot, so that no state is shared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from tensornet_attn.analyse.core import core_values
from tensornet_attn.analyse.maps import Maps, as_maps, mean_maps
from tensornet_attn.analyse.ranks import TOLERANCE, map_rank, singular_values
from tensornet_attn.errors import InputError, MissingPartError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Tensor = torch.Tensor
HEADS = 16  # panels of one plot
COLUMNS = 4
INK, BLUE, GREY = "#1f2933", "#2563a8", "#9aa5b1"


def need_matplotlib() -> None:
    """Raises MissingPartError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise MissingPartError("plots need matplotlib: pip install 'tensornet-attn[plot]'.")


def blank(width: float, height: float) -> Figure:
    """An empty figure of a size in inches. Raises MissingPartError."""
    need_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def plot_maps(maps: Maps | Tensor, heads: int = HEADS) -> Figure:
    """The mean map of each head over the batch, queries downwards and keys to the right; the first `heads` of them.

    One colour scale for all, from the least weight to the largest, with more shades for small ones; about zero where
    there are negative entries. Returns a matplotlib Figure. Raises InputError, MissingPartError.
    """
    maps = as_maps(maps)
    shown = mean_maps(maps).detach().double().cpu().reshape(-1, *maps.values.shape[-2:])[:heads]
    figure, axes = grid(len(shown), 2.1, 2.1)
    scale = scale_of(shown)
    for place, (axis, value) in enumerate(zip(axes, shown, strict=True)):
        image = axis.imshow(value.numpy(), interpolation="nearest", **scale)
        label(axis, maps.labels[place], maps.legs[-1], maps.legs[-2])
    if len(shown):
        bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30)
        bar.set_label("mean weight", fontsize=8, color=INK)
        bar.ax.tick_params(labelsize=7, colors=INK)
    return figure


def plot_ranks(maps: Maps | Tensor, bands: Sequence[int] = (0, 5, 10, 20), tolerance: float = TOLERANCE) -> Figure:
    """How the ranks of all maps of a batch are distributed, with bands of these many diagonals removed.

    One histogram a band, counts of maps over ranks (singular values above `tolerance`). Returns a matplotlib Figure.
    Raises InputError, MissingPartError. Source: after FMMformer (NeurIPS 2021), fig. 3.
    """
    maps = as_maps(maps)
    return ranks_figure({band: map_rank(maps, band, tolerance) for band in bands}, min(maps.values.shape[-2:]))


def ranks_figure(ranks: Mapping[int, Tensor], most: int) -> Figure:
    """One histogram for each band, all with the same bins from 0 to the largest rank there can be."""
    figure, axes = grid(len(ranks), 2.6, 2.2)
    width = max(1, math.ceil((most + 1) / 32))
    bins = [edge * width - 0.5 for edge in range(math.ceil((most + 1) / width) + 1)]
    for axis, (band, found) in zip(axes, ranks.items(), strict=True):
        flat = found.flatten().double().cpu()
        axis.hist(flat.numpy(), bins=bins, color=BLUE)
        removed = f"{band} diagonals removed" if band else "whole maps"
        mean = f"mean rank {flat.mean().item():.1f} of {most}" if len(flat) else "no maps"
        label(axis, f"{removed}\n{mean}", "rank", "maps")
        axis.set_xlim(bins[0], bins[-1])
    return figure


def plot_spectra(maps: Maps | Tensor, heads: int = HEADS, core: Tensor | None = None) -> Figure:
    """The singular values of the maps, a line a head (mean over the batch), and of a core matrix where one is given.

    Values below 1e-9 are cut off; the dashed line is the bound that ranks count above. Returns a matplotlib Figure.
    Raises InputError, MissingPartError.
    """
    maps = as_maps(maps)
    return spectra_figure(maps, singular_values(maps), core, heads)


def spectra_figure(maps: Maps, values: Tensor, core: Tensor | None, heads: int = HEADS) -> Figure:
    """`values`: the singular values of the maps, [batch, heads, values]."""
    figure, axes = grid(1 if core is None else 2, 4.6, 2.9)
    lines = values.mean(0)[:heads].cpu()
    for place, line in enumerate(lines):
        shade = colour(0.1 + 0.75 * place / max(1, len(lines) - 1))
        axes[0].plot(range(1, len(line) + 1), line.clamp(min=1e-9).numpy(), lw=1.2, color=shade)
    axes[0].set_yscale("log")
    axes[0].axhline(TOLERANCE, color=GREY, lw=1, ls="--")
    label(axes[0], f"maps of {maps.step}, a line a head", "index", "singular value")
    if core is not None:
        _core_spectrum(axes[1], core_values(core).cpu(), f"core of {maps.step}")
    return figure


def _core_spectrum(axis: Axes, values: Tensor, title: str) -> None:
    largest = float(values[0]) if len(values) else 0.0
    marker = "o" if len(values) <= 64 else ""
    axis.plot(range(1, len(values) + 1), (values / (largest or 1.0)).numpy(), color=BLUE, lw=1.2, marker=marker, ms=3)
    axis.set_ylim(0, 1.05)
    axis.locator_params(axis="x", integer=True)
    label(axis, title, "index", "singular value / largest")


def grid(count: int, width: float, height: float, columns: int = COLUMNS) -> tuple[Figure, list[Axes]]:
    """A figure of small multiples, each `width` by `height` inches. Raises InputError, MissingPartError."""
    if count < 1:
        raise InputError("there is nothing to plot.")
    columns = min(count, columns)
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


def colour(shade: float) -> Any:
    """A colour of a scale from 0 to 1."""
    import matplotlib

    return matplotlib.colormaps["viridis"](shade)
