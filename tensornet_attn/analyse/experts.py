"""Which experts each position chose: the entries that every topk box keeps, their gates, and how often each is used."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tensornet_attn.analyse.steps import compiled, topk_steps, values_of
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.ops.operation import aligned
from tensornet_attn.spec import arithmetic

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Selections:
    """What one topk box chose along its leg, the largest first; equal ones in order of their index.

    `indices` and `gates`: [batch..., legs, k], the legs of the step but for `leg`, then the k chosen entries of that
    leg, which has `size`. `position`: the sequence leg among `legs`, None where there is none.
    """

    step: str
    leg: str
    size: int
    legs: tuple[str, ...]
    position: str | None
    indices: Tensor
    gates: Tensor

    @property
    def dense(self) -> Tensor:
        """The gates where they belong, zeros elsewhere: [batch..., legs, leg]."""
        zeros = self.gates.new_zeros(*self.gates.shape[:-1], self.size)
        return zeros.scatter(-1, self.indices, self.gates)

    @property
    def chosen(self) -> Tensor:
        """True at the chosen entries: [batch..., legs, leg]."""
        none = torch.zeros(*self.indices.shape[:-1], self.size, device=self.indices.device, dtype=torch.bool)
        return none.scatter(-1, self.indices, True)

    @property
    def usage(self) -> Tensor:
        """The part of batch and positions that chose each expert: [other legs..., leg]; a row sums to k."""
        chosen = self.chosen.float()
        batch = range(chosen.ndim - 1 - len(self.legs))
        over = [*batch, *(len(batch) + i for i, leg in enumerate(self.legs) if leg == self.position)]
        return chosen.mean(over) if over else chosen

    def __repr__(self) -> str:
        words = ", ".join(f"{leg} {size}" for leg, size in zip(self.legs, self.sizes, strict=True))
        return f"Selections of '{self.step}': {self.indices.shape[-1]} of {self.leg} {self.size}, by {words}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of `legs`."""
        return tuple(self.indices.shape[self.indices.ndim - 1 - len(self.legs) : -1])


def expert_selections(
    module: CompiledDesign, *inputs: Tensor, mask: Tensor | None = None, key_mask: Tensor | None = None, **named: Tensor
) -> dict[str, Selections]:
    """What every topk box of a design chose in a call, by step: experts, gates, and how often each is used.

    Inputs, `mask` and `key_mask` as in the call of the module; evaluated as written and as in evaluation. A design
    without a topk box has none. Raises InputError.

    Source: after Csordas et al., Few Heads Are Enough (EPA; later SwitchHead), fig. 2.

    >>> import torch, tensornet_attn as ta
    >>> layer = ta.compile(ta.load("epa", legs={"f": 16, "h": 2}))
    >>> chosen = expert_selections(layer, torch.randn(3, 7, 16))
    >>> chosen["Gs"]
    Selections of 'Gs': 2 of e 5, by m 7, h 2
    >>> chosen["Gs"].indices.shape, chosen["Gs"].usage.shape
    (torch.Size([3, 7, 2, 2]), torch.Size([2, 5]))
    """
    graph = compiled(module, "expert_selections").plan.graph
    steps = topk_steps(graph)
    values, lengths = values_of(module, [step.name for step in steps], inputs, named, mask, key_mask)
    return {step.name: _chosen(graph, step, values, lengths) for step in steps}


def _chosen(graph: Graph, step: Step, values: dict[str, Tensor], lengths: dict[str, int]) -> Selections:
    operands = dict(step.op.operands)
    legs = tuple(leg for leg in step.legs if leg != step.op.leg)
    by = operands.get("by", operands["of"])
    gate = aligned(values[step.name], step.legs, (*legs, step.op.leg))
    order, gate = torch.broadcast_tensors(aligned(values[by.name], by.legs, (*legs, step.op.leg)), gate)
    count = int(arithmetic.evaluate(step.op.number("k"), graph.values | lengths))
    indices = order.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    position = next((leg for leg in legs if graph.leg[leg].sequence), None)
    return Selections(step.name, step.op.leg, gate.shape[-1], legs, position, indices, gate.gather(-1, indices))
