"""The report: a page of figures and plots on the attention boxes and experts of some layers, each with its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensornet_attn.analyse.box_report import box_report
from tensornet_attn.analyse.experts import Selections
from tensornet_attn.analyse.figures import BAND, BoxFigures, Given, LayerFigures, all_figures, averages
from tensornet_attn.analyse.maps import Maps
from tensornet_attn.analyse.overview import overview
from tensornet_attn.analyse.plot_experts import plot_experts
from tensornet_attn.analyse.plots import need_matplotlib
from tensornet_attn.analyse.section import Section
from tensornet_attn.analyse.steps import attention_steps
from tensornet_attn.draw.text import step_lines
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.report.page import Block, Table, page, picture, plot

SHOWN = 16  # rows of a table of experts


def report(
    sections: Iterable[Given], title: str = "Attention report", band: int = BAND, notes: Sequence[str] = ()
) -> str:
    """A page of HTML in one file: for each (title, module, inputs) its diagram, figures, spectra, maps and experts.

    A Section, as `model_sections` gives them, stands for its tuple. Each attention box gets the stable rank of its
    core, distances and principal components between heads, and by head the rank of its maps, whole and without `band`
    diagonals, their entropy, reach and, where the section has repeated tokens, induction score; singular values,
    eigenvalues and mean maps. The page starts with all boxes in one table, with their means, the maximum over heads and
    the induction scores. Each topk gets how often each expert is used, and what one sequence chose. Raises
    InputError, also where no section has attention or experts, and MissingPartError without matplotlib.

    >>> import torch, tensornet_attn as ta
    >>> layer = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))
    >>> page = report([("first layer", layer, [torch.randn(2, 8, 16)])])
    >>> page.startswith("<!DOCTYPE html>") and "first layer" in page
    True
    """
    need_matplotlib()
    return page_of(all_figures(sections, band), title, notes)


def page_of(layers: Sequence[LayerFigures], title: str, notes: Sequence[str]) -> str:
    """The page on figures that have been computed."""
    several = sum(len(layer.boxes) for layer in layers) > 1
    return page(
        "analyse.html", title, notes=notes, several=several, overview=overview(layers), layers=list(map(_layer, layers))
    )


def report_data(
    sections: Iterable[Given], title: str = "Attention report", band: int = BAND, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The figures of `report` as data that JSON takes: the sections with their boxes and experts, and means over boxes.

    Figures by head are lists in the order of `heads`; what is not defined is None. Needs no matplotlib. Raises
    InputError.

    >>> import torch, tensornet_attn as ta
    >>> layer = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))
    >>> data = report_data([("first layer", layer, [torch.randn(2, 8, 16)])])
    >>> data["sections"][0]["boxes"][0]["effective_heads"]
    2.0
    """
    layers = all_figures(sections, band)
    parts = [layer.as_dict() for layer in layers]
    return {
        "tensornet_attn_analyse": 1,
        "title": title,
        "notes": list(notes),
        "means": averages(layers),
        "sections": parts,
    }


def _layer(layer: LayerFigures) -> dict[str, Any]:
    """What the template shows of a layer."""
    part, design = layer.section, layer.section.module.design
    blocks: list[Block] = [text for text in (_facts(part), design.source, *part.notes) if text]
    blocks.append(picture(design, f"Tensor diagram of {design.name}."))
    if not layer.boxes:
        blocks.append("This design has no attention box, so there are no maps.")
    written = {step.name: text for step, text in _written(part.module)}
    boxes = [
        {"step": box.maps.step, "written": written[box.maps.step], "blocks": box_report(box)} for box in layer.boxes
    ]
    experts = _experts(layer.experts, layer.boxes) if layer.experts else []
    return {"title": part.title, "about": design.about, "blocks": blocks, "boxes": boxes, "experts": experts}


def _written(module: CompiledDesign) -> Iterable[tuple[Any, str]]:
    """Each attention box with its line of the diagram; one nested in another step has the line of that step."""
    lines = {line.partition("[")[0]: " ".join(line.split()) for line in step_lines(module.plan.graph)}
    for step in attention_steps(module.plan.graph):
        name = step.name
        while name not in lines:
            name = name.rpartition(".")[0]
        yield step, lines[name]


def _facts(part: Section) -> str:
    graph, legs = part.module.plan.graph, part.module.design.legs
    sizes = ", ".join(f"{leg} {size}" for leg, size in legs.items() if size is not None)
    shapes = ", ".join(
        f"{leaf.name} {list(value.shape)}"
        for leaf, value in zip(graph.of_role("input"), part.inputs, strict=False)
        if value is not None
    )
    count = sum(value.numel() for value in part.module.parameters())
    causal = "causal" if graph.causal else "not causal"
    return f"Design {graph.name}: {sizes}; {count:,} parameters; {causal}. Inputs: {shapes}."


def _experts(chosen: dict[str, Selections], boxes: Sequence[BoxFigures]) -> list[Block]:
    beside: Maps | None = boxes[0].maps if boxes else None
    words = "What the first sequence chose: gates in colour, white where an expert was not chosen."
    words += " Selections by query at the right of the attention map, selections by key under it." if beside else ""
    return [*map(_usage, chosen.values()), plot(plot_experts(chosen, beside), words)]


def _usage(found: Selections) -> Table:
    usage = found.usage.double().cpu()
    others = [leg for leg in found.legs if leg != found.position]
    flat = usage.reshape(-1, found.size)[:SHOWN]
    k = found.indices.shape[-1]
    names = [_place(others, usage.shape[:-1], place) for place in range(len(flat))]
    rows = [[name, *(f"{part:.0%}" for part in row.tolist())] for name, row in zip(names, flat, strict=True)]
    caption = f"{found.step}: part of positions that chose each of the {found.size} experts; {k} are chosen each time"
    caption += f" ({k / found.size:.0%} each if even)."
    return Table(["head" if others else "", *(f"{found.leg} {i}" for i in range(found.size))], rows, caption)


def _place(legs: list[str], sizes: Sequence[int], index: int) -> str:
    words = []
    for leg, size in zip(reversed(legs), reversed(list(sizes)), strict=True):
        words.append(f"{leg} {index % size}")
        index //= size
    return ", ".join(reversed(words)) or "all"
