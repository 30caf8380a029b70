"""Features of linear attention: what a side computes of its operands, entry by entry, with sums over small legs.

Kmix[m h d] = pi[h r] elu1(K[m h d] + b[r h d])      over r: pi(r) elu1(K + b(r)); operands pi, K and b
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Box, Graph, Step, Use
from tensornet_attn.ir.steps import within
from tensornet_attn.ops import OPS
from tensornet_attn.ops.given import KernelTiles
from tensornet_attn.tiles.derive import RULES, Backward
from tensornet_attn.tiles.program import At, Axes, Node, Nodes, TileOperand, below
from tensornet_attn.tiles.steps import BoxTiles, Index, Steps


@dataclass(frozen=True)
class Feature:
    """The program of an entry. `operands`: their `heads` are small legs; `axes`: "row" and "column" if entries vary so.

    `sizes`: of small legs; `values`: of what coefficients name.
    """

    nodes: Nodes
    operands: tuple[TileOperand, ...]
    result: Node
    sizes: dict[str, int]
    values: Mapping[str, int | float]

    @property
    def alone(self) -> bool:
        """Whether there is one operand, as large as the features."""
        return len(self.operands) == 1 and not self.sizes

    @property
    def slopes(self) -> dict[Node, Node]:
        """The gradient of each load, from that of the result, a node `gradient`."""
        backward = Backward(self.nodes, RULES)
        backward.give(self.result, self.nodes.node("gradient", (), (), "d"))
        for node in reversed(below([self.result])):
            backward.back(node, backward.gradient_of(node))
        return backward.leaves


def feature_of(
    graph: Graph, use: Use, inside: Mapping[str, Step], row: str, heads: Collection[str], columns: tuple[str, ...]
) -> Feature:
    """The feature that a use stands for; steps `inside` are computed, others are operands.

    `row`: the sequence leg; `columns`: the legs along a row.
    """
    builder = _Feature(graph, inside, row, heads, columns)
    result = builder.use(use, {})
    operands = tuple(builder.operands.values())
    small = {leg for operand in operands for leg in operand.heads}
    sizes = {leg: builder.size(leg) for leg in graph.leg if leg in small}
    return Feature(builder.nodes, operands, result, sizes, graph.values)


@dataclass
class _Feature(Steps):
    graph: Graph
    inside: Mapping[str, Step]
    row: str
    heads: Collection[str]
    columns: tuple[str, ...]
    nodes: Nodes = field(default_factory=lambda: Nodes(()))
    operands: dict[Use, TileOperand] = field(default_factory=dict)

    def size(self, leg: str) -> int:
        return size_of(self.graph, leg) or 1

    def axes(self, legs: tuple[str, ...]) -> Axes:
        return ()

    def indices(self, legs: Iterable[str], index: Index) -> dict[str, str]:
        return {leg: self.nodes.variable(leg, self.size(leg)) for leg in legs}

    def use(self, use: Use, index: Index) -> Node:
        if use.name in self.inside:
            return self.tile(self.inside[use.name], index)
        around = {self.row, *self.columns, *self.heads}
        small = within(self.graph.leg, {*use.legs} - around)
        sides = {"row": self.row in use.legs, "column": bool({*self.columns} & {*use.legs})}
        self.operands.setdefault(use, TileOperand(use, small, tuple(side for side, has in sides.items() if has)))
        number = [*self.operands].index(use)
        return self.nodes.node("load", (), (), use.name, (number, At(index[leg] for leg in small)))

    def box(self, step: Step, box: Box, index: Index) -> Node:
        tiles = cast(KernelTiles, BoxTiles(self, step, index))  # without masks, which maps do not ask for
        tile: Node | None = OPS[box.kind].tile(tiles, step, box)
        assert tile is not None
        return tile
