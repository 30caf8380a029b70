"""Which legs of a weight its first product sums away: what the default initialiser scales by."""

from __future__ import annotations

from tensornet_attn.graph.model import Graph, Tensor


def summed_dims(graph: Graph, weight: Tensor) -> tuple[int, ...]:
    """The places of those legs in the first product that uses the weight, as written; none where none does."""
    for step in graph.steps:
        for use in step.op.uses if step.contraction is not None else ():
            if use.name == weight.name:
                return tuple(place for place, leg in enumerate(use.legs) if leg not in step.legs)
    return ()
