"""What stands in memory when a primitive graph runs: sizes, batch dimensions, views, and what gets a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tensornet_attn.errors import InputError
from tensornet_attn.graph.model import Graph, Step, Use
from tensornet_attn.graph.pairs import batched
from tensornet_attn.ir.arithmetic import Arith, evaluate, parse, to_text
from tensornet_attn.ir.tokens import Refusal

HELD = frozenset({"weight", "constant", "state"})  # roles of tensors that belong to the module, not to a call


@dataclass(frozen=True)
class Scene:
    """A primitive graph at given sizes of its legs and a batch."""

    graph: Graph
    sizes: Mapping[str, int]
    batch: int = 1

    @cached_property
    def batched(self) -> frozenset[str]:
        return batched(self.graph)

    @cached_property
    def learned(self) -> frozenset[str]:
        """Names a gradient flows to: inputs, trainable weights, and all steps made from them."""
        found = {t.name for t in self.graph.tensors if t.role == "input" or (t.role == "weight" and not t.frozen)}
        for step in self.graph.steps:
            if any(use.name in found for use in step.op.uses):
                found.add(step.name)
        return frozenset(found)

    @cached_property
    def storage(self) -> dict[str, str]:
        """The tensor or step whose memory a name is: itself, but for a step that is a view.

        An input that may be left out is the one it defaults to, where both have one length.
        """
        found = {tensor.name: tensor.name for tensor in self.graph.tensors}
        for tensor in self.graph.of_role("input"):
            default = self.graph.tensor.get(str(tensor.default))
            if default is not None and self.size(tensor.legs) == self.size(default.legs):
                found[tensor.name] = found[default.name]
        for step in self.graph.steps:
            found[step.name] = found[step.op.uses[0].name] if self.view(step) else step.name
        return found

    def view(self, step: Step) -> bool:
        """Whether a step only renames or transposes legs: one factor, coefficient 1."""
        product = step.contraction
        if product is None or len(product.terms) != 1 or len(product.uses) != 1:
            return False
        return self.number(product.terms[0].coefficient) == 1 and set(step.op.uses[0].legs) == set(step.legs)

    def number(self, value: Arith) -> int | float:
        """What arithmetic comes to; a sequence leg stands for its length. Raises InputError where it has no value."""
        try:
            return evaluate(value, {**self.graph.values, **self.sizes})
        except Refusal as refusal:
            lengths = ", ".join(f"{leg.name} = {self.sizes[leg.name]}" for leg in self.graph.legs if leg.sequence)
            raise InputError(f"at {lengths or 'these sizes'}: {refusal.message}") from None

    def size(self, legs: Iterable[str]) -> int:
        """Numbers on these legs, without batch dimensions; the `word` of a count stands for as many entries."""
        return prod(self.sizes[leg] if leg in self.sizes else int(self.number(parse(leg))) for leg in legs)

    def elements(self, what: Step | Use, without: str | None = None) -> int:
        """Numbers in a result or a use, batch included, optionally without one leg: its rows."""
        legs = [leg for leg in what.legs if leg != without]
        return self.size(legs) * (self.batch if what.name in self.batched else 1)

    def distinct(self, uses: Iterable[Use]) -> list[Use]:
        """The uses, one for each memory."""
        return list({self.storage[use.name]: use for use in uses}.values())

    @cached_property
    def stored(self) -> dict[str, int]:
        """Numbers in the memory of each tensor and step; a tensor of the module has the shape it is stored in."""
        found = {step.name: self.elements(step) for step in self.graph.steps}
        for tensor in self.graph.tensors:
            if tensor.role in HELD:
                found[tensor.name] = self.shape(tensor.name)
            else:
                found[tensor.name] = self.size(tensor.legs) * (self.batch if tensor.name in self.batched else 1)
        return found

    def shape(self, name: str) -> int:
        """Elements of a weight, constant or state as stored; on a leg sized at run time alone, its length now."""
        if name in self.graph.tensor and self.graph.tensor[name].stored:
            return prod(size or 1 for size in self.graph.shape_of(name))
        legs = self.graph.legs_of(name)
        return prod(stored or self.sizes[leg] for leg, stored in zip(legs, self.graph.shape_of(name), strict=True))


def word(count: Arith) -> str:
    """A count as it stands among the legs of a monomial: a setting's name, or arithmetic in brackets.

    >>> word(parse("k")), word(parse(2))
    ('k', '(2)')
    """
    text = to_text(count)
    return text if text.isidentifier() else f"({text})"
