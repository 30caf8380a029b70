"""What a report says of one attention box: figures by head, figures between heads, spectra, ranks and mean maps."""

from __future__ import annotations

import math

import torch

from tensornet_attn.analyse.core import stable_rank
from tensornet_attn.analyse.eigen import VARIANCE
from tensornet_attn.analyse.figures import BoxFigures, Measured
from tensornet_attn.analyse.maps import Maps
from tensornet_attn.analyse.plot_layers import plot_eigenvalues
from tensornet_attn.analyse.plots import HEADS, plot_maps, ranks_figure, spectra_figure
from tensornet_attn.report.page import Block, Table, plot

Tensor = torch.Tensor
ROWS = 16  # heads in a table; its last line is the mean over all heads


def box_report(box: BoxFigures) -> list[Block]:
    """The tables, plots and sentences on one box."""
    maps, columns = box.maps, _columns(box)
    blocks: list[Block] = [_between(box), _by_head(maps, columns)]
    blocks += [f"No {title}: {found.why}" for title, (found, _) in columns.items() if found.why]
    core = box.core.value
    blocks.append(plot(spectra_figure(maps, box.spectra[0], core), _spectra_words(maps, core)))
    words = "How the ranks of all maps, of every head and sequence, are distributed: whole, and with diagonals removed."
    blocks.append(plot(ranks_figure(box.ranks, min(maps.values.shape[-2:])), words))
    words = "Eigenvalues of the covariance of all maps, of every head and sequence: a histogram of the largest ones, "
    words += f"their cumulative sum, and that of all. The dashed lines are at {VARIANCE:.0%} of the trace."
    blocks.append(plot(plot_eigenvalues(box.eigenvalues), words))
    return [
        *blocks,
        plot(plot_maps(maps), f"Maps averaged over the batch, one colour scale for all{_first(maps)}."),
    ]


def _between(box: BoxFigures) -> Table:
    """The figures of the box as a whole."""
    heads, sequences = len(box.maps.labels), len(box.maps.by_head)
    rank = f"{stable_rank(box.core.value):.2f} of {heads}" if box.core.value is not None else box.core.why
    rows = [["effective heads: stable rank of the core", rank]]
    if (found := box.distances) is not None:
        rows += [
            ["L2 distance between two heads' maps: mean, variance", f"{found.mean:.3f}, {found.variance:.3g}"],
            ["least and largest distance", f"{found.min:.3f}, {found.max:.3f}"],
        ]
    of = f"of {box.eigenvalues.matrices}"
    rows.append([f"principal components for {VARIANCE:.0%}, maps", f"{box.eigenvalues.components()} {of}"])
    scores = box.score_eigenvalues
    told = f"{scores.value.components()} {of}" if scores.value is not None else scores.why
    rows.append([f"principal components for {VARIANCE:.0%}, scores before the box", told])
    caption = f"The heads together, averaged over the batch; components are those of all {sequences} x {heads} matrices"
    return Table(("figure", "value"), rows, caption)


def _columns(box: BoxFigures) -> dict[str, tuple[Measured, int]]:
    """Figures by head, [heads] each, by their title, with the number of decimals."""
    titles = {0: "rank", box.band: f"rank without {box.band} diagonals"}
    columns = {title: (Measured(box.ranks[each].double().mean(0)), 1) for each, title in titles.items()}
    columns |= {"entropy (nats)": (box.entropy, 2), "reach (positions)": (box.reach, 2)}
    return columns | ({"induction score": (box.induction, 3)} if box.repeated is not None else {})


def _by_head(maps: Maps, columns: dict[str, tuple[Measured, int]]) -> Table:
    shown = maps.labels[:ROWS]
    rows = [
        [label or "the only one", *(_cell(*column, place) for column in columns.values())]
        for place, label in enumerate(shown)
    ]
    n, m = maps.values.shape[-2:]
    caption = f"Each head, averaged over the batch. The largest rank is {min(n, m)}, the largest entropy log {m} = "
    caption += f"{math.log(m):.2f}" + (
        f"; the first {ROWS} of {len(maps.labels)} heads" if len(maps.labels) > ROWS else ""
    )
    if len(maps.labels) > 1:
        rows.append(["mean of all heads", *(_cell(*column, None) for column in columns.values())])
    return Table(("head", *columns), rows, caption, len(maps.labels) > 1)


def _cell(figure: Measured, decimals: int, place: int | None) -> str:
    if figure.value is None:
        return "–"
    value = float(figure.value.mean() if place is None else figure.value[place])
    return "–" if math.isnan(value) else f"{value:.{decimals}f}"


def _spectra_words(maps: Maps, core: Tensor | None) -> str:
    words = (
        f"Singular values of the maps, averaged over the batch{_first(maps)}; ranks count those above the dashed line."
    )
    return words if core is None else f"{words} At the right those of the core, divided by the largest."


def _first(maps: Maps) -> str:
    return f"; the first {HEADS} of {len(maps.labels)} heads" if len(maps.labels) > HEADS else ""
