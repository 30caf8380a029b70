"""MACs that routing saves: work whose result is multiplied by the zeros of a topk.

`topk` along leg e keeps k entries at each position of its other legs and sets the others to zero. A product of two with
such a factor needs k entries along e, not all. Tensors that are multiplied by it later are needed only at those
entries, so the products that compute them need k as well, also through boxes that do not mix the entries:

    V: x[m f] Wv[h e f d] -> m h e d, then Gs[m h e]     m f h k d instead of m f h e d
    A: softmax over m of Q[n e d] K[m d], then G[n e]    n m k d instead of n m e d

A backend that gathers the chosen entries can save this work; dense products, counted in `macs`, compute all entries. If
two choices are along one leg, the smaller k counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tensornet_attn.cost.scene import SizedGraph, word
from tensornet_attn.cost.work import Monomials, work_of
from tensornet_attn.graph.diagram import operation_of, producer_of
from tensornet_attn.graph.graph import Graph, Step, Use, body_graph
from tensornet_attn.ir.arithmetic import Arith, evaluate
from tensornet_attn.ops import OPS
from tensornet_attn.rewrite.change import plain_number


@dataclass(frozen=True)
class TopEntries:
    """At most k entries of a tensor along `leg`, at each position of the legs `by`."""

    leg: str
    k: Arith
    by: frozenset[str]

    def within(self, legs: Iterable[str]) -> bool:
        return {self.leg, *self.by} <= set(legs)

    def renamed(self, names: Mapping[str, str]) -> TopEntries:
        return TopEntries(names[self.leg], self.k, frozenset(names[leg] for leg in self.by))


Choices = frozenset[TopEntries]
NONE: Choices = frozenset()


@dataclass(frozen=True)
class Routing:
    """The choices of a primitive graph by step: entries that may be nonzero, and entries that are needed."""

    graph: Graph
    nonzero: Mapping[str, Choices]
    needed: Mapping[str, Choices]

    @staticmethod
    def of(graph: Graph, asked: Mapping[str, Choices] | None = None) -> Routing:
        """Two passes: nonzero entries from the first step on, needed entries from the last step back.

        `asked`: the entries that are needed of results; all by default.
        """
        nonzero: dict[str, Choices] = {}
        needed = dict(asked or dict.fromkeys(graph.results, NONE))
        routing = Routing(graph, nonzero, needed)
        for step in graph.steps:
            nonzero[step.name] = routing.left_by(step)
        for step in reversed(graph.steps):
            for use, choices in routing.asked_by(step):
                needed[use.name] = needed.get(use.name, choices) & choices
        return routing

    def left_by(self, step: Step) -> Choices:
        """The entries where the result of a step may be nonzero."""
        box = step.box
        if box is not None and box.leg is not None and OPS[box.kind].zeros_elsewhere(box):
            return frozenset({TopEntries(box.leg, box.number("k"), frozenset(step.legs) - {box.leg})})
        if (root := chosen_behind(self.graph, step.name)) is not None:
            return self.left_by(root)
        if step.contraction is None:
            return NONE
        terms = [self.zeros(term.factors) for term in step.terms]
        return frozenset(choice for choice in frozenset.intersection(*terms) if choice.within(step.legs))

    def zeros(self, uses: Iterable[Use]) -> Choices:
        """The choices of a product's factors, in the leg names of the product."""
        return NONE.union(*(self.seen(use) for use in uses))

    def seen(self, use: Use) -> Choices:
        names = dict(zip(self.graph.legs_of(use.name), use.legs, strict=True))
        return frozenset(choice.renamed(names) for choice in self.nonzero.get(use.name, NONE))

    def asked_by(self, step: Step) -> Iterable[tuple[Use, Choices]]:
        """The entries that a step needs of each operand, in the operand's own leg names."""
        box, asked = step.box, self.needed.get(step.name, NONE)
        if step.kernel is not None:
            inside = Routing.of(body_graph(self.graph, step), {step.name: asked}).needed
            yield from ((use, inside[use.name]) for use in step.uses)
            return
        if step.contraction is not None:
            operands = [
                (use, asked | self.zeros((*term.factors[:index], *term.factors[index + 1 :])))
                for term in step.terms
                for index, use in enumerate(term.factors)
            ]
        elif box is None or OPS[box.kind].selects or OPS[box.kind].recurrent:  # these need all entries
            operands = [(use, NONE) for use in step.uses]
        else:
            operands = [(use, _apart(asked, OPS[box.kind].legs_mixed(box))) for use in box.uses]
        for use, choices in operands:
            names = dict(zip(use.legs, self.graph.legs_of(use.name), strict=True))
            yield use, frozenset(choice.renamed(names) for choice in choices if choice.within(use.legs))

    def acting(self, step: Step) -> Choices:
        """The choices that reduce the work of a step."""
        asked = self.needed.get(step.name, NONE)
        return asked | self.zeros(step.uses) if step.contraction is not None else asked


def chosen_behind(graph: Graph, name: str) -> Step | None:
    """The choice whose zeros a step inherits through boxes, or the step itself if it is a choice; otherwise None."""
    step = graph.step.get(name)
    if step is None or step.box is None or len(step.box.uses) != (1 + operation_of(step).selects):
        return None
    box, op = step.box, operation_of(step)
    if op.zeros_elsewhere(box):
        return step
    use = box.of
    source = producer_of(graph, use)
    if source is None or source.box is None or use.legs != source.legs or {*use.legs} != {*step.legs}:
        return None
    if op.zero_where_hidden and not graph.masked(step) and operation_of(source).nothing_elsewhere(source.box):
        scale = dict(box.numbers).get("scale")
        positive = scale is None or (plain_number(graph, scale) and evaluate(scale, graph.values) > 0)
        return _with_zeros(source) if box.leg == source.box.leg and positive else None
    return chosen_behind(graph, source.name) if op.zero_at_zero(graph, box) and not op.makes_leg else None


def _with_zeros(step: Step) -> Step:
    """A choice with zeros instead of minus infinity."""
    assert step.box is not None
    return replace(
        step, op=replace(step.box, numbers=tuple(number for number in step.box.numbers if number[0] != "fill"))
    )


def routed_products(scene: SizedGraph, step: Step, routing: Routing) -> tuple[Monomials, int]:
    """The MACs of a step with routing: by legs, with k for chosen ones, and as a number over the batch."""
    batch = scene.batch_of(step)
    monomials: Monomials = Counter()
    total = 0
    for legs, count in work_of(scene, step).products.items():
        chosen = _chosen(scene, legs, routing.acting(step))
        monomials[tuple(word(chosen[leg]) if leg in chosen else leg for leg in legs)] += count
        size = 1
        for leg in legs:
            size *= int(scene.number(chosen[leg])) if leg in chosen else scene.size((leg,))
        total += batch * count * size
    return monomials, total


def _chosen(scene: SizedGraph, legs: tuple[str, ...], choices: Choices) -> dict[str, Arith]:
    chosen: dict[str, Arith] = {}
    for choice in choices:
        k = int(scene.number(choice.k))
        smallest = int(scene.number(chosen[choice.leg])) if choice.leg in chosen else scene.sizes[choice.leg]
        if choice.within(legs) and k < smallest:
            chosen[choice.leg] = choice.k
    return chosen


def _apart(choices: Choices, legs: Iterable[str | None]) -> Choices:
    """The choices that do not involve these legs."""
    mixed = set(legs)
    return frozenset(choice for choice in choices if not {choice.leg, *choice.by} & mixed)
