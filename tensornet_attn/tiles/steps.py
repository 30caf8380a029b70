"""Steps as nodes: the code that is common to tiles in a kernel and to whole rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tensornet_attn.graph.graph import Box, Step, Term, Use
from tensornet_attn.tiles.program import Axes, Node, Nodes

Index = Mapping[str, str]  # the index variable of a leg, empty if a program has one tile of it


class Steps(ABC):
    """Creates the nodes of steps."""

    nodes: Nodes

    @abstractmethod
    def use(self, use: Use, index: Index) -> Node:
        """The tile of a use, for the given index variables of its legs."""

    @abstractmethod
    def axes(self, legs: tuple[str, ...]) -> Axes:
        """The sides of a tile with these legs."""

    @abstractmethod
    def indices(self, legs: Iterable[str], index: Index) -> dict[str, str]:
        """New index variables for these legs, different from those in `index`."""

    @abstractmethod
    def box(self, step: Step, box: Box, index: Index) -> Node:
        """The tile of a box."""

    def tile(self, step: Step, index: Index) -> Node:
        if step.contraction is not None:
            return self.nodes.add([self.term(step, term, index) for term in step.terms], step.name)
        assert step.box is not None
        return self.box(step, step.box, index)

    def term(self, step: Step, term: Term, index: Index) -> Node:
        """The product of a term, summed over the legs that it sums."""
        wanted, name = self.axes(step.legs), step.name
        summed = self.indices((leg for use in term.factors for leg in use.legs if leg not in step.legs), index)
        factors = [self.use(use, {**index, **summed}) for use in term.factors]
        if not factors:
            return self.nodes.number(term.coefficient)
        product = self.nodes.total(factors[0], wanted, name)
        if len(factors) == 2:
            product = self.nodes.product(factors[0], factors[1], wanted, name)
        for variable in reversed([*summed.values()]):
            product = self.nodes.over(product, variable, "add", name)
        return self.nodes.scaled(product, term.coefficient, name)


Maker = TypeVar("Maker", bound=Steps)


@dataclass(frozen=True)
class BoxTiles(Generic[Maker]):
    """The context in which a box creates its tile, see `ops.given.TilesOfBox`. `index`: of its operands."""

    maker: Maker
    step: Step
    index: Index
    variable: str = ""
    result_index: str = ""

    @property
    def nodes(self) -> Nodes:
        return self.maker.nodes

    def value(self, use: Use) -> Node:
        return self.maker.use(use, self.index)
