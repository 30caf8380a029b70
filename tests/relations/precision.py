"""The yardstick of half precision: the reference in float64, each result of a step rounded to the dtype; its relation.

Constants, decays and their sums are not rounded, see `graph/precision.py`. Errors are relative to the reference in
float64 on the same rounded inputs and weights.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.precision import kept_wide
from tensornet_attn.nn.module import leaves
from tensornet_attn.ops import OPS
from tensornet_attn.reference import ReferenceRun, add_leaves, box, contraction
from tests.designs.cases import drawn, normal, steadied
from tests.designs.sizes import CASES
from tests.relations.relations import checked, narrow, refusals
from tests.relations.subject import NotApplicable, Subject
from tests.shipped import graph_of

F64 = torch.float64
HALF = (torch.bfloat16, torch.float16)
KINKED = ("relu", "leaky_relu", "abs", "hardswish", "hardsigmoid", "clamp", "clamp_min", "clamp_max")
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
        return rounded_steps(self.oracle, self.inputs, self.inputs[0].shape[1], self.inputs[-1].shape[1], self.dtype)

    def gradients(self, backend: str) -> dict[str, Tensor]:
        """The gradients by a backend of inputs and weights, for four gradients of the output: [4, ...]."""
        module = self.module(backend)
        return drawn_gradients(module, [x.requires_grad_() for x in self.halves], module(*self.halves))

    @cached_property
    def gradients_of_steps(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The right `gradients`, and those if each step, and the gradient of each step, is rounded."""
        inputs = [x.clone().requires_grad_() for x in self.inputs]
        lengths = inputs[0].shape[1], inputs[-1].shape[1]
        outputs = self.oracle(*inputs), rounded_steps(self.oracle, inputs, *lengths, self.dtype)
        right, stepwise = (drawn_gradients(self.oracle, inputs, output, self.dtype) for output in outputs)
        return right, stepwise

    def error(self, found: Tensor, last: int = 0) -> float:
        """The relative error of an output, or of its last positions."""
        right = self.right[:, -last:]
        assert found[:, -last:].isfinite().all()
        return float((found[:, -last:].to(F64) - right).norm() / right.norm())


def drawn_gradients(
    module: nn.Module, inputs: list[Tensor], output: Tensor, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The gradients [4, ...] of inputs and weights for four drawn gradients of the output, of numbers of a dtype."""
    generator = torch.Generator().manual_seed(3)
    drawn_shape = (4, *output.shape)
    output_gradients = torch.randn(drawn_shape, generator=generator, dtype=F64).to(dtype or output.dtype).to(output)
    leaves_by_name = {f"input {i}": x for i, x in enumerate(inputs)}
    leaves_by_name |= {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    by_draw = [
        torch.autograd.grad(
            output, [*leaves_by_name.values()], gradient, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for gradient in output_gradients
    ]
    return {name: torch.stack([draw[i] for draw in by_draw]).to(F64) for i, name in enumerate(leaves_by_name)}


def rounded_steps(oracle: nn.Module, inputs: list[Tensor], queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """The output of a reference in float64 if each step is rounded to the dtype."""
    graph = oracle.plan.graph
    lengths = {leg: length for leg, length in ((graph.query, queries), (graph.key, keys)) if leg is not None}
    run = ReferenceRun(graph, leaves(oracle, tuple(inputs), None), lengths, False, None, None)
    add_leaves(run)
    wide = kept_wide(graph)
    for step in graph.steps:
        value = contraction(run, step) if step.box is None else box(run, step)
        run.values[step.name] = value if step.name in wide else value.to(dtype).to(F64)
    return run.values[graph.output]


def halves_are_as_exact_as_rounded_steps(subject: Subject) -> None:
    """Errors of half precision, also with a cache, are at most three times those of steps rounded one by one.

    Compared are medians over sequences; of the steps, an error is at least that of the rounded output.
    """
    dtype, graph = subject.draw.choice(HALF), subject.graph
    rows, half = subject.rows((32,), 9, 11), replace(subject, dtype=dtype)
    inputs = [x.to(dtype).to(F64) for x in rows.leaves]
    state = {name: value.to(dtype).to(F64) for name, value in subject.state.items()}
    for module in (subject.oracle.eval(), half.module.eval()):
        module.load_state_dict(state)
    with torch.no_grad():
        right = subject.oracle(*inputs)
        stepwise = rounded_steps(subject.oracle, inputs, rows.queries, rows.keys, dtype)
        checked({"output": right, "steps": stepwise})

        def error(output: Tensor) -> float:
            difference, size = ((x.reshape(len(right), -1)).norm(dim=1) for x in (output.to(F64) - right, right))
            return float((difference / size.clamp(min=torch.finfo(dtype).tiny)).median())

        allowed = 3 * max(error(stepwise), error(right.to(dtype)))
        if allowed > 0.5:
            raise NotApplicable("rounding decides")
        halves = [x.to(dtype) for x in inputs]
        outputs = {"a call": half.module(*halves)}
        if graph.tied:
            with suppress(NotApplicable), refusals():
                cache, parts = half.module.new_cache(), [(0, 6), (6, 1), (7, 1), (8, 1)]
                chunks = [half.module(*half.along(half.pair, narrow(*part), halves), cache=cache) for part in parts]
                outputs["steps with a cache"] = torch.cat(chunks, half.output_axis)
    for name, output in outputs.items():
        assert error(output) <= allowed, f"{name}: error {error(output):.1e} of {dtype}, {allowed:.1e} allowed"


def gradients_of_halves_are_as_exact_as_rounded_steps(subject: Subject) -> None:
    """Errors of gradients in bfloat16 are at most ten times those of rounded steps, where these are below a third.

    Not where all numbers are positive: gradients are then small differences of large numbers, however they are rounded.
    """
    if not subject.signed:
        raise NotApplicable("sums that may vanish: all numbers are positive")
    rows, half = subject.rows((4,), 24, 26), replace(subject, dtype=torch.bfloat16)
    inputs = [x.to(half.dtype).to(F64).requires_grad_() for x in rows.leaves]
    state = {name: value.to(half.dtype).to(F64) for name, value in subject.state.items()}
    for module in (subject.oracle.eval(), half.module.eval()):
        module.load_state_dict(state)
    halves = [x.detach().to(half.dtype).requires_grad_() for x in inputs]
    outputs = subject.oracle(*inputs), rounded_steps(subject.oracle, inputs, rows.queries, rows.keys, half.dtype)
    output = half.module(*halves)
    if not all(x.requires_grad and x.isfinite().all() for x in (*outputs, output)):
        raise NotApplicable("no gradients")
    right, stepwise = (drawn_gradients(subject.oracle, inputs, x, half.dtype) for x in outputs)
    for name, gradient in drawn_gradients(half.module, halves, output).items():
        size, rounding = right[name].norm(), (right[name].to(half.dtype).to(F64) - right[name]).norm()
        of_steps = torch.maximum((stepwise[name] - right[name]).norm(), rounding)
        error = (gradient - right[name]).norm()
        assert not of_steps < size / 3 or error <= 10 * of_steps, (
            f"{name}: error {error / size:.1e} of its gradient, {of_steps / size:.1e} by rounded steps"
        )


def jumps(graph: Graph) -> bool:
    """Whether a slope jumps, so that rounding may change a gradient by much."""
    boxes = [step.box for step in graph.steps if step.box is not None]
    return any(box.kind == "max" or (box.function is not None and box.function.name in KINKED) for box in boxes)


def chooses(graph: Graph) -> bool:
    """Whether a design makes discrete choices, which rounding may change."""
    return any(step.box is not None and OPS[step.box.kind].selects for step in graph.steps)
