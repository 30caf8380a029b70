"""The yardstick of half precision: the reference in float64, each result of a step rounded to the dtype.

Constants, decays and their sums are not rounded, see `graph/precision.py`. Errors are relative to the reference in
float64 on the same rounded inputs and weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tensornet_attn.graph.precision import kept_wide
from tensornet_attn.nn.module import leaves
from tensornet_attn.ops import OPS
from tensornet_attn.reference import ReferenceRun, add_leaves, box, contraction
from tests.designs.cases import drawn, normal, steadied
from tests.designs.sizes import CASES
from tests.shipped import graph_of

F64 = torch.float64
HEADS = {"retnet": {"f": 32, "h": 8}, "minimax": {"f": 32, "h": 8}, "alibi": {"f": 32, "h": 8}}  # decays of many heads


@dataclass
class Rounded:
    """A design at a small size, with weights and inputs rounded to a dtype: `length` queries, and keys."""

    name: str
    dtype: torch.dtype
    causal: bool | None
    length: int
    batch: int = 2

    def __post_init__(self) -> None:
        case = CASES[self.name]
        self.design = ta.load(self.name, legs=HEADS.get(self.name, case.legs), settings=case.settings)
        self.oracle = drawn(ta.reference(self.design, self.causal, dtype=F64), positive=case.positive)
        generator, width = torch.Generator().manual_seed(1), dict(self.design.legs).get("f")
        size = HEADS.get(self.name, case.legs)["f"] if width is not None else 1
        maxima = [leg.maximum for leg in graph_of(self.name).legs if leg.sequence and leg.maximum]
        lengths = [min([self.length - place, *maxima]) for place in range(len(case.inputs))]
        drawn_inputs = [normal(generator, self.batch, length, size) for length in lengths]
        inputs = steadied(self.name, self.oracle, drawn_inputs)
        self.inputs = [x.detach().to(self.dtype).to(F64) for x in inputs]
        self.state = {key: value.to(self.dtype).to(F64) for key, value in self.oracle.state_dict().items()}
        self.oracle.load_state_dict(self.state)

    def module(self, backend: str) -> nn.Module:
        module = ta.compile(self.design, backend, self.causal, dtype=self.dtype).eval()
        module.load_state_dict(self.state)
        return module

    @cached_property
    def halves(self) -> list[Tensor]:
        """The inputs in the dtype."""
        return [x.to(self.dtype) for x in self.inputs]

    @cached_property
    def right(self) -> Tensor:
        return self.oracle(*self.inputs)

    @cached_property
    def yardstick(self) -> Tensor:
        """The output if each step is rounded."""
        graph = self.oracle.plan.graph
        lengths = {graph.query: self.inputs[0].shape[1], graph.key: self.inputs[-1].shape[1]}
        tensors = leaves(self.oracle, tuple(self.inputs), None)
        run = ReferenceRun(graph, tensors, {leg: n for leg, n in lengths.items() if leg is not None}, False, None, None)
        add_leaves(run)
        wide = kept_wide(graph)
        for step in graph.steps:
            value = contraction(run, step) if step.box is None else box(run, step)
            run.values[step.name] = value if step.name in wide else value.to(self.dtype).to(F64)
        return run.values[graph.output]

    def error(self, found: Tensor, last: int = 0) -> float:
        """The relative error of an output, or of its last positions."""
        right = self.right[:, -last:]
        assert found[:, -last:].isfinite().all()
        return float((found[:, -last:].to(F64) - right).norm() / right.norm())


def chooses(name: str) -> bool:
    """Whether a design makes discrete choices, which rounding may change."""
    return any(step.box is not None and OPS[step.box.kind].selects for step in graph_of(name).steps)
