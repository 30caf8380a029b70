"""The report: all figures of the attention boxes and experts of some layers, computed once, as JSON and as a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from tensornet_attn.analyse.core import core_matrix, stable_rank
from tensornet_attn.analyse.maps import (
    Maps,
    Selections,
    analysed,
    blended_steps,
    compiled,
    expert_selections,
    maps_and_scores,
)
from tensornet_attn.analyse.measures import (
    TOP,
    VARIANCE,
    Eigenvalues,
    HeadDistances,
    head_distances,
    induction_scores,
    map_eigenvalues,
    map_entropy,
    map_reach,
    rank_of,
    singular_values,
    vertical_scores,
)
from tensornet_attn.analyse.mixture import Mixture, mixture_weights
from tensornet_attn.analyse.plots import (
    HEADS,
    need_matplotlib,
    plot_eigenvalues,
    plot_experts,
    plot_induction,
    plot_maps,
    plot_max_maps,
    ranks_figure,
    spectra_figure,
)
from tensornet_attn.analyse.section import Section
from tensornet_attn.draw.text import step_lines
from tensornet_attn.errors import InputError
from tensornet_attn.report.page import Block, Table, page, picture, plot

Tensor = torch.Tensor
BAND = 5


@dataclass(frozen=True, eq=False)
class BoxFigure:
    """A figure of a box; `value` is None if the figure is not defined, and `why` is the reason."""

    value: Any
    why: str = ""

    @staticmethod
    def of(function: Callable[..., Any], *arguments: Any) -> BoxFigure:
        try:
            return BoxFigure(function(*arguments))
        except InputError as error:
            return BoxFigure(None, str(error))


@dataclass(frozen=True, eq=False)
class BoxFigures:
    """The figures of one attention box of a section.

    `repeated`: its maps on repeated random tokens; None if the section has none. `spectra`, `ranks`: singular values
    [batch, heads, values] and ranks [batch, heads] of the maps, by the number of removed diagonals: 0, `band` and 4
    `band`. `core`: the core, a matrix. `distances`: None for one head. `eigenvalues`: of the maps;
    `score_eigenvalues`: of the scores, which may be infinite. `entropy`, `reach`, `vertical`, `induction`: by head,
    [heads]. `blend`: a sum of maps; like a map that states imply, it has no scores and no core.
    """

    section: Section
    maps: Maps
    blend: bool
    repeated: Maps | None
    band: int
    spectra: dict[int, Tensor]
    ranks: dict[int, Tensor]
    core: BoxFigure
    distances: HeadDistances | None
    eigenvalues: Eigenvalues
    score_eigenvalues: BoxFigure
    entropy: BoxFigure
    reach: BoxFigure
    vertical: BoxFigure
    induction: BoxFigure

    @property
    def title(self) -> str:
        """Section and step, such as `layers.0.mixer: mhsa, A`."""
        return f"{self.section.title}, {self.maps.step}"

    @property
    def summary(self) -> dict[str, float | None]:
        """One figure of each kind for the whole box; None if it is not defined."""
        distances, scores, induction = self.distances, self.score_eigenvalues.value, self.induction.value
        return {
            "effective_heads": None if self.core.value is None else stable_rank(self.core.value),
            "distance_mean": None if distances is None else distances.mean,
            "distance_variance": None if distances is None else distances.variance,
            "principal_components": self.eigenvalues.components(),
            "score_principal_components": None if scores is None else scores.components(),
            "largest_induction": None if induction is None else float(induction.nan_to_num(0).max()),
        }

    def as_dict(self) -> dict[str, Any]:
        """The figures as data for JSON; None for undefined figures."""
        distances, scores = self.distances, self.score_eigenvalues.value
        n, m = self.maps.values.shape[-2:]
        return {
            "step": self.maps.step,
            "blend": self.blend,
            "sequences": len(self.maps.by_head),
            "queries": n,
            "keys": m,
            "heads": self.maps.labels,
            "effective_heads": None if self.core.value is None else stable_rank(self.core.value),
            "distances": distances
            and {name: getattr(distances, name) for name in ("mean", "variance", "std", "min", "max")},
            "principal_components": {
                "variance": VARIANCE,
                "matrices": self.eigenvalues.matrices,
                "maps": self.eigenvalues.components(),
                "scores": scores and scores.components(),
            },
            "eigenvalues": _numbers(self.eigenvalues.values[:TOP]),
            "eigenvalues_cumulative": _numbers(self.eigenvalues.cumulative[:TOP]),
            "rank": {str(removed): _numbers(ranks.double().mean(0)) for removed, ranks in self.ranks.items()},
            "entropy": _numbers(self.entropy.value),
            "reach": _numbers(self.reach.value),
            "vertical": _numbers(self.vertical.value),
            "induction": _numbers(self.induction.value),
        }


@dataclass(frozen=True, eq=False)
class LayerFigures:
    """A section with its boxes, its mixture weights, and the selections of topk boxes that choose no positions."""

    section: Section
    boxes: tuple[BoxFigures, ...]
    experts: dict[str, Selections]
    weights: dict[str, Mixture]

    def as_dict(self) -> dict[str, Any]:
        """The figures as data for JSON."""
        module = self.section.module
        return {
            "title": self.section.title,
            "design": module.plan.graph.name,
            "causal": module.plan.graph.causal,
            "notes": list(self.section.notes),
            "boxes": [box.as_dict() for box in self.boxes],
            "experts": [
                {
                    "step": selection.step,
                    "of": selection.size,
                    "chosen": selection.indices.shape[-1],
                    "usage": selection.usage.tolist(),
                }
                for selection in self.experts.values()
            ],
            "weights": {name: mixture.values.tolist() for name, mixture in self.weights.items()},
        }


Given = Section | tuple[str, Any, Sequence[Tensor]]


def all_figures(sections: Iterable[Given], band: int) -> list[LayerFigures]:
    """The figures of sections, or of (title, module, inputs). Raises InputError if there is nothing to analyse."""
    layer_sections = [
        section if isinstance(section, Section) else Section(section[0], section[1], tuple(section[2]))
        for section in sections
    ]
    for section in layer_sections:
        compiled(section.module, "report")
    graphs = [section.module.plan.graph for section in layer_sections]
    if not any(map(analysed, graphs)):
        names = ", ".join(dict.fromkeys(graph.name for graph in graphs)) or "report"
        raise InputError(
            f"{names}: there is nothing to analyse: no attention box (softmax, normalize or keep over the key leg) and "
            "no topk."
        )
    layers = []
    for section, graph in zip(layer_sections, graphs, strict=True):
        maps, scores = maps_and_scores(section.module, section.inputs, {}, **section.see)
        again = section.repeated
        repeated = maps_and_scores(section.module, again.inputs, {}, **again.see)[0] if again is not None else {}
        boxes = tuple(box_figures(section, maps[step], scores.get(step), repeated.get(step), band) for step in maps)
        chosen = expert_selections(section.module, *section.inputs, **section.see)
        experts = {name: selection for name, selection in chosen.items() if not graph.leg[selection.leg].sequence}
        layers.append(LayerFigures(section, boxes, experts, mixture_weights(section.module)))
    return layers


NO_SCORES = "the map is a sum of maps, or implied by states, and has no scores."


def box_figures(section: Section, maps: Maps, scores: Maps | None, repeated: Maps | None, band: int) -> BoxFigures:
    """The figures of a box with these maps and scores, or of a map without scores. Raises InputError."""
    blend = maps.step in {step.name for step in blended_steps(section.module.plan.graph)}
    spectra = {removed: singular_values(maps, removed).cpu() for removed in sorted({0, band, 4 * band})}
    return BoxFigures(
        section,
        maps,
        blend,
        repeated,
        band,
        spectra,
        ranks={removed: rank_of(values) for removed, values in spectra.items()},
        core=BoxFigure(None, NO_SCORES) if scores is None else BoxFigure.of(core_matrix, section.module, maps.step),
        distances=head_distances(maps) if len(maps.labels) > 1 else None,
        eigenvalues=map_eigenvalues(maps),
        score_eigenvalues=BoxFigure(None, NO_SCORES) if scores is None else BoxFigure.of(map_eigenvalues, scores),
        entropy=BoxFigure.of(lambda: map_entropy(maps).flatten()),
        reach=BoxFigure.of(lambda: map_reach(maps).flatten()),
        vertical=BoxFigure.of(lambda: vertical_scores(maps).flatten()),
        induction=BoxFigure(None) if repeated is None else BoxFigure.of(lambda: induction_scores(repeated).flatten()),
    )


def averages(layers: Iterable[LayerFigures]) -> dict[str, float | None]:
    """The mean of each entry of `summary` over the attention boxes that have it, like the papers' means over layers."""
    summaries = [box.summary for layer in layers for box in layer.boxes if not box.blend]
    columns = {key: [x for row in summaries if (x := row[key]) is not None] for row in summaries[:1] for key in row}
    return {key: math.fsum(values) / len(values) if values else None for key, values in columns.items()}


def _numbers(values: Tensor | None) -> list[float | None] | None:
    if values is None:
        return None
    return [number if math.isfinite(number) else None for number in values.flatten().tolist()]


SHOWN = 16  # maximum rows of a table of heads or experts, without the mean over all heads
COLUMNS = {
    "effective_heads": "effective heads",
    "distance_mean": "distance between heads: mean",
    "distance_variance": "variance",
    "principal_components": f"components for {VARIANCE:.0%}: maps",
    "score_principal_components": "scores",
    "largest_induction": "largest induction score",
}


def report(
    sections: Iterable[Given], title: str = "Attention report", band: int = BAND, notes: Sequence[str] = ()
) -> str:
    """A self-contained HTML page: for each (title, module, inputs) its diagram, figures, spectra, maps and experts.

    A Section, as in `model_sections`, can replace the tuple. For each attention box, the page shows the stable rank of
    its core; distances and principal components between heads; for each head the rank of its maps, with and without
    `band` diagonals, their entropy, reach and, if the section has repeated tokens, induction score; and singular
    values, eigenvalues and mean maps. The page starts with a table of all boxes and their means, the maximum over heads
    and the induction scores. For each topk, it shows the usage of each expert and the choices for one sequence. Raises
    InputError, also if no section has attention or experts, and MissingPartError without matplotlib.

    >>> import torch, tensornet_attn as ta
    >>> layer = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))
    >>> page = report([("first layer", layer, [torch.randn(2, 8, 16)])])
    >>> page.startswith("<!DOCTYPE html>") and "first layer" in page
    True
    """
    need_matplotlib()
    layers = all_figures(sections, band)
    several, head = sum(len(layer.boxes) for layer in layers) > 1, overview(layers)
    return page("analyse.html", title, notes=notes, several=several, overview=head, layers=list(map(_layer, layers)))


def report_data(
    sections: Iterable[Given], title: str = "Attention report", band: int = BAND, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The figures of `report` as data for JSON: the sections with their boxes and experts, and means over boxes.

    Figures by head are lists in the order of `heads`; undefined figures are None. Does not need matplotlib. Raises
    InputError.

    >>> import torch, tensornet_attn as ta
    >>> layer = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))
    >>> data = report_data([("first layer", layer, [torch.randn(2, 8, 16)])])
    >>> data["sections"][0]["boxes"][0]["effective_heads"]
    2.0
    """
    layers = all_figures(sections, band)
    section_figures = [layer.as_dict() for layer in layers]
    content = {"title": title, "notes": list(notes), "means": averages(layers), "sections": section_figures}
    return {"tensornet_attn_analyse": 1, **content}


def overview(layers: Sequence[LayerFigures]) -> list[Block]:
    """The head of a report: all boxes in one table with their means, the maximum over heads, induction heads."""
    boxes = [box for layer in layers for box in layer.boxes]
    if not boxes:
        return []
    named = dict(zip(_names(boxes), boxes, strict=True))
    blocks: list[Block] = []
    if len(boxes) > 1:
        words = (
            "Eigenvalues of the covariance of all maps of a layer, one line per layer; black is the mean over layers, "
            f"by index. The dashed lines are at {VARIANCE:.0%} of the trace."
        )
        blocks = [_table(layers, boxes)]
        blocks.append(plot(plot_eigenvalues({name: box.eigenvalues for name, box in named.items()}), words))
    words = "The maximum over all heads of the maps of the first sequence, with one colour scale for all."
    blocks.append(plot(plot_max_maps({name: box.maps for name, box in named.items()}), words))
    repeated_maps = {name: box.repeated for name, box in named.items() if box.induction.value is not None}
    repeated = {name: maps for name, maps in repeated_maps.items() if maps is not None}
    if repeated:
        first = next(iter(repeated.values()))
        words = (
            f"Induction scores on {len(first.by_head)} sequences of {first.values.shape[-1] // 2} random tokens, each "
            "repeated once: how much a token at its second occurrence attends to the token after its first occurrence, "
            "on average. On the right, the map of the head with the highest score, for the first of these sequences."
        )
        blocks.append(plot(plot_induction(repeated), words))
    return blocks


def _names(boxes: Sequence[BoxFigures]) -> list[str]:
    """Short titles for panels, without the step if each section has one box."""
    titles = [box.section.title for box in boxes]
    if len(set(titles)) < len(titles):
        titles = [box.title for box in boxes]
    if len(set(titles)) < len(titles):  # sections with equal titles
        titles = [f"{number}: {title}" for number, title in enumerate(titles, 1)]
    return titles


def _table(layers: Sequence[LayerFigures], boxes: Sequence[BoxFigures]) -> Table:
    rows = [[box.title, *(_of_all(key, box.summary[key]) for key in COLUMNS)] for box in boxes]
    means = averages(layers)
    rows.append(
        [
            f"mean of {sum(not box.blend for box in boxes)} boxes",
            *(_of_all(key, means[key], mean=True) for key in COLUMNS),
        ]
    )
    caption = (
        "All attention boxes; below, the means over the boxes, as tables 8 and 9 of FiSHformer average over layers."
    )
    return Table(("attention box", *COLUMNS.values()), rows, caption, total=True)


def _of_all(key: str, figure: float | None, mean: bool = False) -> str:
    if figure is None or math.isnan(figure):
        return "–"
    if "components" in key:
        return f"{figure:.1f}" if mean else f"{figure:.0f}"
    return f"{figure:.2f}" if key == "effective_heads" else f"{figure:.3g}"


def _layer(layer: LayerFigures) -> dict[str, Any]:
    """The data of a layer for the template."""
    section, design = layer.section, layer.section.module.design
    blocks: list[Block] = [paragraph for paragraph in (_facts(section), design.source, *section.notes) if paragraph]
    blocks.append(picture(design, f"Tensor diagram of {design.name}."))
    if not layer.boxes:
        blocks.append("This design has no attention box, so there are no maps.")
    lines = {line.partition("[")[0]: " ".join(line.split()) for line in step_lines(section.module.plan.graph)}
    boxes = [
        {"step": box.maps.step, "written": _line(lines, box.maps.step), "blocks": box_report(box)}
        for box in layer.boxes
    ]
    if layer.weights:
        blocks.append(_weights(layer.weights))
    experts: list[Block] = list(map(_usage, layer.experts.values()))
    if layer.experts:
        beside = layer.boxes[0].maps if layer.boxes else None
        words = "The choices for the first sequence: gates in colour, white for experts that were not chosen."
        words += " Selections by query are right of the attention map, selections by key below it." if beside else ""
        experts.append(plot(plot_experts(layer.experts, beside), words))
    return {"title": section.title, "about": design.about, "blocks": blocks, "boxes": boxes, "experts": experts}


def _line(lines: dict[str, str], step: str) -> str:
    """The line of a step in the diagram; a nested step has the line of the outer step."""
    while step not in lines:
        step = step.rpartition(".")[0]
    return lines[step]


def _facts(section: Section) -> str:
    graph, legs = section.module.plan.graph, section.module.design.legs
    sizes = ", ".join(f"{leg} {size}" for leg, size in legs.items() if size is not None)
    shapes = ", ".join(
        f"{leaf.name} {list(tensor.shape)}"
        for leaf, tensor in zip(graph.of_role("input"), section.inputs, strict=False)
        if tensor is not None
    )
    count = sum(parameter.numel() for parameter in section.module.parameters())
    causal = "causal" if graph.causal else "not causal"
    return f"Design {graph.name}: {sizes}; {count:,} parameters; {causal}. Inputs: {shapes}."


def box_report(box: BoxFigures) -> list[Block]:
    """The tables, plots and sentences on one box: figures by head and between heads, spectra, ranks and mean maps."""
    maps, columns, core = box.maps, _columns(box), box.core.value
    first = f"; the first {HEADS} of {len(maps.labels)} heads" if len(maps.labels) > HEADS else ""
    blocks: list[Block] = [_between(box), _by_head(maps, columns)]
    blocks += [f"No {title}: {figure.why}" for title, (figure, _) in columns.items() if figure.why]
    words = f"Singular values of the maps, averaged over the batch{first}; ranks count those above the dashed line."
    words += "" if core is None else " On the right, those of the core, divided by the largest."
    blocks.append(plot(spectra_figure(maps, box.spectra[0], core), words))
    words = "Distribution of the ranks of all maps, over heads and sequences: whole maps, and with diagonals removed."
    blocks.append(plot(ranks_figure(box.ranks, min(maps.values.shape[-2:])), words))
    words = "Eigenvalues of the covariance of all maps, over heads and sequences: a histogram of the largest ones, "
    words += f"their cumulative sum, and that of all. The dashed lines are at {VARIANCE:.0%} of the trace."
    blocks.append(plot(plot_eigenvalues(box.eigenvalues), words))
    return [*blocks, plot(plot_maps(maps), f"Maps averaged over the batch, one colour scale for all{first}.")]


def _between(box: BoxFigures) -> Table:
    """The figures of the box as a whole."""
    heads, sequences = len(box.maps.labels), len(box.maps.by_head)
    rank = f"{stable_rank(box.core.value):.2f} of {heads}" if box.core.value is not None else box.core.why
    rows = [["effective heads: stable rank of the core", rank]]
    if (distances := box.distances) is not None:
        rows += [
            ["L2 distance between two heads' maps: mean, variance", f"{distances.mean:.3f}, {distances.variance:.3g}"],
            ["smallest and largest distance", f"{distances.min:.3f}, {distances.max:.3f}"],
        ]
    of = f"of {box.eigenvalues.matrices}"
    rows.append([f"principal components for {VARIANCE:.0%}, maps", f"{box.eigenvalues.components()} {of}"])
    scores = box.score_eigenvalues
    components = f"{scores.value.components()} {of}" if scores.value is not None else scores.why
    rows.append([f"principal components for {VARIANCE:.0%}, scores before the box", components])
    caption = f"All heads together, averaged over the batch; components are those of all {sequences} x {heads} matrices"
    return Table(("figure", "value"), rows, caption)


def _columns(box: BoxFigures) -> dict[str, tuple[BoxFigure, int]]:
    """Figures by head, [heads] each, by title, with the number of decimals."""
    titles = {0: "rank", box.band: f"rank without {box.band} diagonals"}
    columns = {title: (BoxFigure(box.ranks[removed].double().mean(0)), 1) for removed, title in titles.items()}
    columns |= {"entropy (nats)": (box.entropy, 2), "reach (positions)": (box.reach, 2)}
    columns |= {"vertical line score": (box.vertical, 3)}
    return columns | ({"induction score": (box.induction, 3)} if box.repeated is not None else {})


def _by_head(maps: Maps, columns: dict[str, tuple[BoxFigure, int]]) -> Table:
    heads, (n, m) = len(maps.labels), maps.values.shape[-2:]
    rows = [
        [label or "only head", *(_cell(*column, head) for column in columns.values())]
        for head, label in enumerate(maps.labels[:SHOWN])
    ]
    caption = f"Each head, averaged over the batch. The maximum rank is {min(n, m)}, the maximum entropy log {m} = "
    caption += f"{math.log(m):.2f}" + (f"; the first {SHOWN} of {heads} heads" if heads > SHOWN else "")
    if heads > 1:
        rows.append(["mean of all heads", *(_cell(*column, None) for column in columns.values())])
    return Table(("head", *columns), rows, caption, heads > 1)


def _cell(figure: BoxFigure, decimals: int, head: int | None) -> str:
    if figure.value is None:
        return "–"
    number = float(figure.value.mean() if head is None else figure.value[head])
    return "–" if math.isnan(number) else f"{number:.{decimals}f}"


def _weights(weights: dict[str, Mixture]) -> Table:
    """A row for each index of the first leg of a mixture of several legs; the first entries of each row."""
    rows = []
    for name, mixture in weights.items():
        several = mixture.values.ndim > 1
        lines = mixture.values.flatten(1) if several else mixture.values.reshape(1, -1)
        for index, line in enumerate(lines[:SHOWN].tolist()):
            words = f"{name}, {mixture.legs[0]} {index}" if several else name
            rows.append([words, mixture.legs[-1] if mixture.legs else "", ", ".join(f"{x:.3f}" for x in line[:SHOWN])])
    caption = "The weights with which maps are blended, and the priors of the components of keys."
    return Table(("weight", "along", f"values, the first {SHOWN}"), rows, caption)


def _usage(experts: Selections) -> Table:
    usage, k = experts.usage.double().cpu(), experts.indices.shape[-1]
    head_legs = [leg for leg in experts.legs if leg != experts.position]
    head_indices = product(*map(range, usage.shape[:-1]))
    names = [
        ", ".join(f"{leg} {i}" for leg, i in zip(head_legs, indices, strict=True)) or "all" for indices in head_indices
    ]
    flat = usage.reshape(-1, experts.size)[:SHOWN].tolist()
    rows = [[name, *(f"{share:.0%}" for share in row)] for name, row in zip(names, flat, strict=False)]
    caption = (
        f"{experts.step}: fraction of positions that chose each of the {experts.size} experts; {k} are chosen each time"
    )
    caption += f" ({k / experts.size:.0%} each if uniform)."
    return Table(["head" if head_legs else "", *(f"{experts.leg} {i}" for i in range(experts.size))], rows, caption)
