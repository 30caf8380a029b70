"""The memory of a running primitive graph: sizes, batch dimensions, views, and which tensors get gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tensornet_attn.errors import InputError
from tensornet_attn.graph.alike import one_row
from tensornet_attn.graph.attention import ahead, behind
from tensornet_attn.graph.graph import Graph, Step, Tensor, Use
from tensornet_attn.graph.pairs import batched, split_products
from tensornet_attn.ir.arithmetic import Arith, evaluate, parse, to_text
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs

HELD = frozenset({"weight", "constant", "state"})  # roles of tensors that belong to the module


@dataclass(frozen=True)
class SizedGraph:
    """A primitive graph with the sizes of its legs and a batch size.

    `stepwise`: each step stores its result, as on a GPU and in a diagram as written. `in_tiles`: steps whose results a
    kernel computes a tile at a time, again in the backward.
    """

    graph: Graph
    sizes: Mapping[str, int]
    batch: int = 1
    stepwise: bool = False
    in_tiles: frozenset[str] = frozenset()

    @property
    def query(self) -> str:
        """The query leg."""
        return self.graph.query

    @property
    def key(self) -> str:
        """The key leg."""
        return str(self.graph.key)

    @property
    def keys(self) -> int:
        return self.sizes[self.key]

    def at(self, sizes: Mapping[str, int]) -> SizedGraph:
        """The scene with other sizes of some legs."""
        return replace(self, sizes={**self.sizes, **sizes})

    def batch_of(self, what: Step | Use | Tensor) -> int:
        """The batch elements for which a tensor or step is computed: one if it has no batch dimensions."""
        return self.batch if self.batch > 1 and what.name in batched(self.graph) else 1

    @cached_property
    def learned(self) -> frozenset[str]:
        """Names of tensors that get gradients: inputs, trainable weights, and all steps computed from them.

        States pass none on to the steps that only they need.
        """
        graph = self.graph
        passing = behind(graph, (graph.output, *graph.also, *(loss.step for loss in graph.losses)))
        learned = {t.name for t in graph.tensors if t.role == "input" or (t.role == "weight" and not t.frozen)}
        return frozenset(learned | (ahead(graph.steps, learned) & passing))

    @cached_property
    def expanded(self) -> tuple[SizedGraph, dict[str, str]]:
        """The scene with the steps of each kernel in its place, in primitive steps, and the step that each is part of.

        A kernel whose result is not that of a step inside, such as a join, stays behind these.
        """
        steps = list[Step]()
        for step in self.graph.steps:
            body = step.kernel.body if step.kernel is not None else ()
            steps += (*body, step) if all(inner.name != step.name for inner in body) else body
        whole = replace(self.graph, steps=tuple(dict.fromkeys(steps)))
        graph = split_products(whole)
        owners = {step.name: step.name if step.name in whole.step else _owner(step.name) for step in graph.steps}
        return replace(self, graph=graph), owners

    @cached_property
    def inside(self) -> frozenset[str]:
        """The constants without memory: those of queries x keys in kernels."""
        pair, readers = {self.graph.query, self.graph.key}, self.graph.readers
        constants = (
            tensor for tensor in self.graph.of_role("constant") if pair <= {*tensor.legs} and not tensor.stored
        )
        return frozenset(
            constant.name for constant in constants if all(step.kernel for step, _ in readers.get(constant.name, ()))
        )

    @cached_property
    def storage(self) -> dict[str, str]:
        """The tensor or step whose memory a name uses: its own, except for views.

        An optional input uses the memory of its default if both have the same size.
        """
        memories = {tensor.name: tensor.name for tensor in self.graph.tensors}
        for tensor in self.graph.of_role("input"):
            default = self.graph.tensor.get(str(tensor.default))
            if default is not None and self.size(tensor.legs) == self.size(default.legs):
                memories[tensor.name] = memories[default.name]
        for step in self.graph.steps:
            memories[step.name] = memories[step.uses[0].name] if self.view(step) else step.name
        return memories

    def view(self, step: Step) -> bool:
        """Whether a step only renames or transposes legs: one factor, coefficient 1."""
        product = step.contraction
        if product is None or len(product.terms) != 1 or len(product.uses) != 1:
            return False
        return self.number(product.terms[0].coefficient) == 1 and set(step.uses[0].legs) == set(step.legs)

    def number(self, expression: Arith) -> int | float:
        """The value of arithmetic; a sequence leg counts as its length. Raises InputError if there is no value."""
        try:
            return evaluate(expression, {**self.graph.values, **self.sizes})
        except Refusal as refusal:
            lengths = ", ".join(f"{leg.name} = {self.sizes[leg.name]}" for leg in self.graph.legs if leg.sequence)
            raise InputError(f"at {lengths or 'these sizes'}: {refusal.message}") from None

    def size(self, legs: Iterable[str]) -> int:
        """Elements on these legs, without batch dimensions; a `word` among them counts as its value."""
        return prod(self.sizes[leg] if leg in self.sizes else int(self.number(parse(leg))) for leg in legs)

    def elements(self, what: Step | Use, without: str | None = None) -> int:
        """Elements of a result or use, including the batch; `without`: a leg to skip, to count rows.

        Without a mask, a result that all queries read alike has one row.
        """
        skipped = {without, self.graph.query} if what.name in one_row(self.graph) else {without}
        legs = [leg for leg in what.legs if leg not in skipped]
        return self.size(legs) * self.batch_of(what)

    def ordered(self, legs: Iterable[str]) -> Legs:
        """The legs, each once, in the order of their declaration."""
        wanted = {*legs}
        return tuple(leg.name for leg in self.graph.legs if leg.name in wanted)

    def distinct(self, uses: Iterable[Use]) -> list[Use]:
        """The uses, one per memory."""
        return list({self.storage[use.name]: use for use in uses}.values())

    @cached_property
    def stored(self) -> dict[str, int]:
        """Elements in the memory of each tensor and step; tensors of the module count in their stored shape."""
        counts = {step.name: self.elements(step) for step in self.graph.steps}
        for tensor in self.graph.tensors:
            if tensor.role in HELD:
                counts[tensor.name] = self.shape(tensor.name)
            else:
                counts[tensor.name] = self.size(tensor.legs) * self.batch_of(tensor)
        return counts | dict.fromkeys(self.inside, 0)

    def kept(self, uses: Iterable[Use]) -> dict[str, int]:
        """Elements of the memories of these uses, without those of the module."""
        module_tensors = held(self.graph)
        names = (self.storage[use.name] for use in uses)
        return {name: self.stored[name] for name in names if name not in module_tensors}

    def shape(self, name: str) -> int:
        """Elements of a stored weight, constant or state; a leg without a fixed size counts with its current length."""
        if name in self.graph.tensor and self.graph.tensor[name].stored:
            return prod(size or 1 for size in self.graph.shape_of(name))
        legs = self.graph.legs_of(name)
        return prod(stored or self.sizes[leg] for leg, stored in zip(legs, self.graph.shape_of(name), strict=True))


def held(graph: Graph) -> frozenset[str]:
    """The tensors of the module, which can be weights of experts."""
    return frozenset(tensor.name for tensor in graph.tensors if tensor.role in HELD)


def _owner(name: str) -> str:
    """The step that a product was split from."""
    head, _, tail = name.rpartition(".")
    return head if tail[:1] == "p" and tail[1:].isdigit() else name


def word(count: Arith) -> str:
    """A count as a factor of a monomial: a setting's name, or arithmetic in parentheses.

    >>> word(parse("k")), word(parse(2))
    ('k', '(2)')
    """
    factor = to_text(count)
    return factor if factor.isidentifier() else f"({factor})"
