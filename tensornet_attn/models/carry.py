"""Checks whether a design's decoding cache can carry its memory between segments in training."""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.errors import InputError
from tensornet_attn.graph.build import build
from tensornet_attn.graph.model import Graph
from tensornet_attn.graph.visibility import by_distance
from tensornet_attn.models.fit import Fitted, Place
from tensornet_attn.plan.decoding import PLACES, decoding_of
from tensornet_attn.plan.parts import Decoding


def check_carried(place: Place, part: Fitted) -> None:
    """Refuses a design whose cache cannot be carried, in a model with `memory_kind: cache`."""
    reason = not_carried(build(part.design, part.causal), bool(part.design.loss_weights))
    if reason:
        place.refuse(reason, "leave out 'memory_kind: cache': a memory of inputs has fewer requirements.")


def not_carried(graph: Graph, losses: bool) -> str | None:
    """The reason why a design's cache cannot be carried; None if it can, or if it is empty."""
    try:
        decoding = decoding_of(graph, droppable=True)
    except InputError as error:
        return str(error)
    if not decoding.kept:
        return None
    stored = [tensor for tensor in graph.tensors if tensor.role in ("weight", "state")]
    ends = [leg.name for leg in graph.legs if leg.name in _sequence(graph, graph.leg) and leg.maximum is not None]
    reasons = [
        *(f"training updates the state '{state}', once per segment" for state, _ in graph.updates),
        *(f"training draws '{name}' anew in each of the two parts of a segment" for name in decoding.drawn),
        *(["its losses are computed over whole sequences"] if losses else []),
        *(f"'{tensor.name}' has a row for each position" for tensor in stored if _sequence(graph, tensor.legs)),
        *(f"leg '{leg}' has a maximum, and the number of segments is unlimited" for leg in ends),
        *_placed(graph, decoding),
    ]
    return next((f"the cache of '{graph.name}' cannot be carried: {reason}." for reason in reasons), None)


def _sequence(graph: Graph, legs: Iterable[str]) -> list[str]:
    return [leg for leg in legs if leg in (graph.query, graph.key)]


def _placed(graph: Graph, decoding: Decoding) -> list[str]:
    """Reasons that use absolute positions, which dropping the oldest positions would change."""
    if all(one.leg is None or one.reach is not None for one in decoding.kept):
        return []
    graph = decoding.graph
    turned = [one.name for one in decoding.kept if one.placed]
    tables = [
        tensor.name
        for tensor in graph.tensors
        if tensor.init is not None and tensor.init.name in PLACES and _sequence(graph, tensor.legs)
    ]
    masks = [step.name for step in graph.steps if not by_distance(graph.masks(step))]
    return [f"'{name}' uses absolute positions, and the oldest are dropped" for name in (*turned, *tables, *masks)]
