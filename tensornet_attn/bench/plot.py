"""Plots results: times and peak memory of both passes, one row per design."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensornet_attn.analyse.plots import GREY, blank, label
from tensornet_attn.bench.results import Entry, PassResult
from tensornet_attn.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2563a8", "#d1495b", "#e9a23b", "#3c8d5a", "#7b5ea7", "#4fb0c6", "#8a6d3b", "#52606d")
MEASURES = (("seconds", "ms per call"), ("peak_bytes", "peak memory, MB"))


def figure(results: Sequence[PassResult]) -> Figure:
    """One row per design, with panels of times and then of memory for each pass.

    Several lengths are drawn as lines with quartiles, a single length as bars. Raises InputError if nothing was
    measured, and MissingPartError without matplotlib.
    """
    measured = [result for result in results if any(entry.measured for entry in result.entries)]
    if not measured:
        raise InputError("there is nothing to plot: no contestant was measured.")
    designs, kinds = list(dict.fromkeys(r.design for r in measured)), list(dict.fromkeys(r.kind for r in measured))
    names = list(dict.fromkeys(entry.name for r in measured for entry in r.entries if entry.measured))
    panels = [(kind, *measure) for measure in MEASURES for kind in kinds]
    picture = blank(2.9 * len(panels) + 0.6, 2.3 * len(designs) + 0.5)
    axes = picture.subplots(len(designs), len(panels), squeeze=False)
    for design, row in zip(designs, axes, strict=True):
        of_design = [result for result in measured if result.design == design]
        several = len({result.n for result in of_design}) > 1
        for (kind, measure, unit), axis in zip(panels, row, strict=True):
            (_lines if several else _bars)(
                axis, [result for result in of_design if result.kind == kind], names, measure
            )
            axis.grid(color=GREY, alpha=0.3, lw=0.5)
            axis.set_axisbelow(True)
            label(axis, f"{design}, {kind}", *(("n", unit) if several else (unit, "")))
    lines = {
        name: handle for axis in picture.axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if lines:
        drawn = [name for name in names if name in lines]
        handles = [lines[name] for name in drawn]
        picture.legend(handles, drawn, loc="outside upper center", ncols=8, fontsize=8, frameon=False)
    return picture


def _lines(axis: Axes, results: Sequence[PassResult], names: Sequence[str], measure: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for index, name in enumerate(names):
        pairs = [
            (result.n, _value(entry, measure))
            for result in results
            for entry in result.entries
            if entry.name == name and entry.measured
        ]
        if pairs:
            lengths, values = zip(*sorted(pairs), strict=True)
            middle, below, above = zip(*values, strict=True)
            style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "lw": 1.2, "marker": "o", "ms": 3}
            axis.errorbar(lengths, middle, yerr=(below, above), capsize=2, label=name, **style)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(list(dict.fromkeys(result.n for result in results)))
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for line in (axis.xaxis, axis.yaxis):
        line.set_major_formatter("{x:g}")
        line.set_minor_formatter(NullFormatter())


def _bars(axis: Axes, results: Sequence[PassResult], names: Sequence[str], measure: str) -> None:
    entries = [entry for result in results for entry in result.entries if entry.measured]
    for index, entry in enumerate(entries):
        middle, below, above = _value(entry, measure)
        colour = COLOURS[names.index(entry.name) % len(COLOURS)]
        axis.barh(index, middle, xerr=[[below], [above]], color=colour, capsize=2, error_kw={"lw": 0.8})
    axis.set_yticks(range(len(entries)), [entry.name for entry in entries])
    axis.invert_yaxis()


def _value(entry: Entry, measure: str) -> tuple[float, float, float]:
    """The value, and the distances of the quartiles below and above it."""
    if measure == "peak_bytes":
        return (entry.peak_bytes or 0) / 1e6, 0.0, 0.0
    assert entry.seconds is not None
    median, low, high = (1e3 * x for x in (entry.seconds.median, entry.seconds.low, entry.seconds.high))
    return median, max(0.0, median - low), max(0.0, high - median)
