"""What an evaluation of the oracle knows: the graph, the values so far, and the call they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tensornet_attn.graph.model import Graph
from tensornet_attn.spec import arithmetic

Tensor = torch.Tensor
Legs = tuple[str, ...]


@dataclass
class Run:
    """One evaluation: the values so far, and the call they belong to."""

    graph: Graph
    values: dict[str, Tensor]
    lengths: dict[str, int]
    training: bool
    mask: Tensor | None
    key_mask: Tensor | None

    def number(self, tree: arithmetic.Arith) -> int | float:
        return arithmetic.evaluate(tree, self.graph.values | self.lengths)

    def size(self, leg: str) -> int:
        """The size at run time: a relative leg without a reach runs from 1 - n to m - 1."""
        if self.graph.leg[leg].sequence:
            return self.lengths[leg]
        return self.graph.leg[leg].size or self.lengths[self.graph.query] + self.lengths[self.graph.key] - 1

    def sizes(self, legs: Legs) -> list[int]:
        return [self.size(leg) for leg in legs]

    def positions(self, leg: str) -> Tensor:
        """Where the entries of a leg stand: the last query stands at the last key."""
        kind, reach, first = self.graph.leg[leg].kind, self.graph.leg[leg].reach, 0
        if kind == "query":
            first = self.first_query
        elif kind == "relative":
            first = 1 - self.lengths[self.graph.query] if reach is None else -reach
        return torch.arange(first, first + self.size(leg), device=self.device)

    @property
    def first_query(self) -> int:
        """The position of the first query, m - n; 0 in a design without keys."""
        n = self.lengths.get(self.graph.query, 0)
        return self.lengths.get(self.graph.key, n) - n

    @property
    def inputs(self) -> list[Tensor]:
        return [self.values[tensor.name] for tensor in self.graph.of_role("input")]

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs[0].dtype

    @property
    def batch(self) -> tuple[int, ...]:
        ranks = [len(tensor.legs) for tensor in self.graph.of_role("input")]
        batches = [value.shape[: value.ndim - rank] for value, rank in zip(self.inputs, ranks, strict=True)]
        return tuple(torch.broadcast_shapes(*batches))
