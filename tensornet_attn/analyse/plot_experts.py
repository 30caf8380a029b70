"""The picture of expert selections: gates by position, at the right of an attention map and under it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

import torch

from tensornet_attn.analyse.experts import Selections
from tensornet_attn.analyse.maps import Maps
from tensornet_attn.analyse.plots import blank, label, scale_of
from tensornet_attn.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Tensor = torch.Tensor
COLUMNS = 2
MAP, STRIP, EXPERT = 2.9, 0.75, 0.13  # inches: a map, the frame of a strip, one expert


def plot_experts(
    selections: Selections | Mapping[str, Selections], maps: Maps | None = None, batch: int = 0, heads: int = 4
) -> Figure:
    """Which experts each position of one sequence chose, beside the attention map: a row of panels a head.

    Colours are gates, white where an expert was not chosen. Selections by query stand at the right of the map, their
    positions downwards like its rows; selections by key under it, like its columns. Head legs that a selection lacks
    are averaged over in the map. `batch` chooses the sequence. Returns a matplotlib Figure. Raises InputError,
    MissingPartError. Source: after Csordas et al., Few Heads Are Enough (EPA; later SwitchHead), fig. 2.
    """
    several = {selections.step: selections} if isinstance(selections, Selections) else dict(selections)
    return expert_figure(several, maps, batch, heads)


def expert_figure(selections: dict[str, Selections], maps: Maps | None, batch: int, heads: int) -> Figure:
    """A block of panels for each combination of the head legs that selections have, at most `heads`, two in a row."""
    query = None if maps is None else maps.legs[-2]
    right = [found for found in selections.values() if query is None or found.position in (None, query)]
    under = [found for found in selections.values() if found not in right]
    rows = _combinations([*right, *under])[:heads]
    if not selections or not rows:
        raise InputError("there is nothing to plot.")
    widths = [MAP] * (maps is not None) + [STRIP + EXPERT * found.size for found in right]
    heights = [MAP] + [STRIP + EXPERT * found.size for found in under]
    across = min(COLUMNS, len(rows))
    down = math.ceil(len(rows) / across)
    figure = blank(across * sum(widths) + 0.4, down * sum(heights))
    blocks = figure.subfigures(down, across, squeeze=False).flatten().tolist()
    for block, row in zip(blocks, rows, strict=False):
        grid = block.add_gridspec(len(heights), len(widths), width_ratios=widths, height_ratios=heights)
        if maps is not None:
            _draw_map(block.add_subplot(grid[0, 0]), maps, row, batch)
        for column, found in enumerate(right, len(widths) - len(right)):
            _draw_strip(block.add_subplot(grid[0, column]), found, row, batch, across=False)
        for line, found in enumerate(under, 1):
            _draw_strip(block.add_subplot(grid[line, 0]), found, row, batch, across=True)
    return figure


def _combinations(selections: list[Selections]) -> list[dict[str, int]]:
    """The places on all legs of the selections that are no positions: `{"h": 0}`, `{"h": 1}`, ..."""
    sizes: dict[str, int] = {}
    for found in selections:
        sizes |= {leg: size for leg, size in zip(found.legs, found.sizes, strict=True) if leg != found.position}
    return [dict(zip(sizes, place, strict=True)) for place in product(*(range(size) for size in sizes.values()))]


def _draw_map(axis: Axes, maps: Maps, row: dict[str, int], batch: int) -> None:
    value = _element(maps.values, len(maps.legs), batch).detach().double().cpu()
    over = [place for place, leg in enumerate(maps.legs[:-2]) if leg not in row]
    value = value[tuple(row[leg] if leg in row else slice(None) for leg in maps.legs[:-2])]
    value = value.mean(tuple(range(len(over)))) if over else value
    axis.imshow(value.numpy(), interpolation="nearest", aspect="auto", **scale_of(value))
    averaged = ", ".join(maps.legs[place] for place in over)
    title = ", ".join([maps.step, *_words(row, maps.legs), *([f"mean over {averaged}"] if averaged else [])])
    label(axis, title, maps.legs[-1], maps.legs[-2])


def _draw_strip(axis: Axes, found: Selections, row: dict[str, int], batch: int, across: bool) -> None:
    """Gates over positions and experts, each shade a part of the largest gate."""
    place = tuple(slice(None) if leg == found.position else row[leg] for leg in found.legs)
    dense, chosen = (
        torch.atleast_2d(_element(value.detach().cpu(), len(found.legs) + 1, batch)[place])
        for value in (found.dense.double(), found.chosen)
    )
    scale = scale_of(dense) if dense.amin() < 0 else {"cmap": "Oranges", "vmin": 0, "vmax": float(dense.amax()) or 1.0}
    dense = dense.where(chosen, math.nan)  # drawn as nothing
    axis.imshow((dense.T if across else dense).numpy(), interpolation="nearest", aspect="auto", **scale)
    legs = (found.position or "", found.leg)
    most = f"gates to {float(dense[chosen].abs().amax()):.2g}"
    title = ", ".join([found.step, *_words(row, found.legs)])
    label(axis, f"{title}, {most}" if across else f"{title}\n{most}", *(legs if across else legs[::-1]))
    (axis.set_yticks if across else axis.set_xticks)(range(0, found.size, max(1, found.size // 8)))


def _words(row: dict[str, int], legs: tuple[str, ...]) -> list[str]:
    return [f"{leg} {place}" for leg, place in row.items() if leg in legs]


def _element(value: Tensor, legs: int, batch: int) -> Tensor:
    """One sequence of the batch, [legs]. Raises InputError."""
    flat = value.reshape(-1, *value.shape[value.ndim - legs :])
    if not 0 <= batch < len(flat):
        raise InputError(f"batch is {batch}; there are {len(flat)} sequences.")
    return flat[batch]
