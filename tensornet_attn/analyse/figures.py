"""All figures of the attention boxes and experts of a layer, computed once: what a report shows and what JSON holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tensornet_attn.analyse.core import core_matrix, stable_rank
from tensornet_attn.analyse.maps import (
    Maps,
    Selections,
    attention_steps,
    compiled,
    expert_selections,
    maps_and_scores,
    topk_steps,
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
)
from tensornet_attn.analyse.section import Section
from tensornet_attn.errors import InputError

Tensor = torch.Tensor
BAND = 5


@dataclass(frozen=True, eq=False)
class Measured:
    """A figure of a box; `value` is None where it is not defined, for the reason in `why`."""

    value: Any
    why: str = ""

    @staticmethod
    def of(function: Callable[..., Any], *arguments: Any) -> Measured:
        try:
            return Measured(function(*arguments))
        except InputError as error:
            return Measured(None, str(error))


@dataclass(frozen=True, eq=False)
class BoxFigures:
    """The figures of one attention box of a section.

    `repeated`: its maps on repeated random tokens, None where the section has none.
    """

    section: Section
    maps: Maps
    scores: Maps
    repeated: Maps | None
    band: int

    @property
    def title(self) -> str:
        """Section and step, such as `layers.0.mixer: mhsa, A`."""
        return f"{self.section.title}, {self.maps.step}"

    @cached_property
    def spectra(self) -> dict[int, Tensor]:
        """Singular values of the maps without 0, `band` and 4 `band` diagonals: [batch, heads, values] each."""
        return {each: singular_values(self.maps, each).cpu() for each in sorted({0, self.band, 4 * self.band})}

    @cached_property
    def ranks(self) -> dict[int, Tensor]:
        """Ranks by the number of diagonals removed: [batch, heads] each."""
        return {each: rank_of(found) for each, found in self.spectra.items()}

    @cached_property
    def core(self) -> Measured:
        """The core, a matrix."""
        return Measured.of(core_matrix, self.section.module, self.maps.step)

    @cached_property
    def distances(self) -> HeadDistances | None:
        """None for one head."""
        return head_distances(self.maps) if len(self.maps.labels) > 1 else None

    @cached_property
    def eigenvalues(self) -> Eigenvalues:
        """Of the maps."""
        return map_eigenvalues(self.maps)

    @cached_property
    def score_eigenvalues(self) -> Measured:
        """Of the scores, which may be infinite."""
        return Measured.of(map_eigenvalues, self.scores)

    @cached_property
    def entropy(self) -> Measured:
        """By head, [heads]."""
        return Measured.of(lambda: map_entropy(self.maps).flatten())

    @cached_property
    def reach(self) -> Measured:
        """By head, [heads]."""
        return Measured.of(lambda: map_reach(self.maps).flatten())

    @cached_property
    def induction(self) -> Measured:
        """By head, [heads]."""
        if self.repeated is None:
            return Measured(None, "")
        return Measured.of(lambda maps: induction_scores(maps).flatten(), self.repeated)

    @property
    def summary(self) -> dict[str, float | None]:
        """One figure of each kind for the box as a whole, None for what is not defined."""
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
        """The figures as data for JSON; None for what is not defined."""
        distances, scores = self.distances, self.score_eigenvalues.value
        n, m = self.maps.values.shape[-2:]
        return {
            "step": self.maps.step,
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
            "rank": {str(each): _numbers(found.double().mean(0)) for each, found in self.ranks.items()},
            "entropy": _numbers(self.entropy.value),
            "reach": _numbers(self.reach.value),
            "induction": _numbers(self.induction.value),
        }


@dataclass(frozen=True, eq=False)
class LayerFigures:
    """A section with its boxes, and the selections of its topk boxes that choose no positions."""

    section: Section
    boxes: tuple[BoxFigures, ...]
    experts: dict[str, Selections]

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
                {"step": found.step, "of": found.size, "chosen": found.indices.shape[-1], "usage": found.usage.tolist()}
                for found in self.experts.values()
            ],
        }


Given = Section | tuple[str, Any, Sequence[Tensor]]


def all_figures(sections: Iterable[Given], band: int) -> list[LayerFigures]:
    """The figures of sections, or of (title, module, inputs). Raises InputError where there is nothing to analyse."""
    parts = [part if isinstance(part, Section) else Section(part[0], part[1], tuple(part[2])) for part in sections]
    for part in parts:
        compiled(part.module, "report")
    graphs = [part.module.plan.graph for part in parts]
    if not any(attention_steps(graph) or topk_steps(graph) for graph in graphs):
        names = ", ".join(dict.fromkeys(graph.name for graph in graphs)) or "report"
        raise InputError(
            f"{names}: there is nothing to analyse: no attention box (softmax, normalize or keep over the key leg) and "
            "no topk."
        )
    layers = []
    for part, graph in zip(parts, graphs, strict=True):
        maps, scores = maps_and_scores(part.module, part.inputs, None, **part.see)
        again = part.repeated
        repeated = maps_and_scores(part.module, again.inputs, None, **again.see)[0] if again is not None else {}
        boxes = tuple(BoxFigures(part, maps[step], scores[step], repeated.get(step), band) for step in maps)
        chosen = expert_selections(part.module, *part.inputs, **part.see)
        experts = {name: found for name, found in chosen.items() if not graph.leg[found.leg].sequence}
        layers.append(LayerFigures(part, boxes, experts))
    return layers


def averages(layers: Iterable[LayerFigures]) -> dict[str, float | None]:
    """The mean of each entry of `summary` over the attention boxes that have it, as the papers average over layers."""
    summaries = [box.summary for layer in layers for box in layer.boxes]
    found = {key: [row[key] for row in summaries if row[key] is not None] for row in summaries[:1] for key in row}
    return {key: math.fsum(values) / len(values) if values else None for key, values in found.items()}


def _numbers(values: Tensor | None) -> list[float | None] | None:
    if values is None:
        return None
    return [value if math.isfinite(value) else None for value in values.flatten().tolist()]
