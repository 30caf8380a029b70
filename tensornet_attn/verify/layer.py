"""A user's layer beside the reference: does it compute its diagram?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.nn.module import CompiledDesign, leaves
from tensornet_attn.reference import ReferenceRun
from tensornet_attn.verify.core import (
    Difference,
    Expected,
    Observed,
    VerifiedCall,
    differences,
    expected,
    gradients_of,
    named_steps,
    observed,
    observed_run,
)

Tensor = torch.Tensor


@dataclass(frozen=True)
class Verification:
    """What `verify` found: true if all outputs and gradients agree with the reference; printing it gives a report.

    `layer`: design, backend, dtype and lengths in words. `differences`: of each step, output and gradient the largest
    difference, relative to its largest entry, with the tolerance. `unobserved`: the steps inside kernels, whose values
    do not exist.
    """

    layer: str
    differences: tuple[Difference, ...]
    unobserved: tuple[str, ...]

    @property
    def outputs_agree(self) -> bool:
        return all(
            difference.agrees for difference in self.differences if difference.is_result and not difference.gradient
        )

    @property
    def gradients_agree(self) -> bool:
        """Whether the gradients of inputs and weights agree."""
        return all(difference.agrees for difference in self.differences if difference.is_result and difference.gradient)

    def __bool__(self) -> bool:
        return self.outputs_agree and self.gradients_agree

    @property
    def first(self) -> Difference | None:
        """The first value that differs, or the first gradient on the way back; None if outputs and gradients agree."""
        return None if self else next(difference for difference in self.differences if not difference.agrees)

    def __str__(self) -> str:
        lines = [f"{self.layer}: {'agrees with' if self else 'DIFFERS from'} the reference in float64"]
        lines += [f"  first difference: {self.first}"] if self.first else []
        for name, is_result, is_gradient in (
            ("outputs", True, False),
            ("gradients of inputs and weights", True, True),
            ("steps", False, False),
            ("gradients of steps", False, True),
        ):
            kind = [
                difference
                for difference in self.differences
                if (difference.is_result, difference.gradient) == (is_result, is_gradient)
            ]
            if kind:
                worst = max(kind, key=lambda difference: difference.error / difference.allowed)
                lines.append(f"  largest difference of {len(kind)} {name}: {worst}")
        lines += [f"  not observed, inside kernels: {', '.join(self.unobserved)}"] if self.unobserved else []
        return "\n".join(lines)

    __repr__ = __str__


def verify(
    layer: CompiledDesign,
    *inputs: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    noise: Mapping[str, Tensor] | None = None,
    **named: Tensor,
) -> Verification:
    """Compares a call of a layer, and its gradients, with the reference in float64 on the same inputs and weights.

    `layer`: a module that `ta.compile` returns, of any backend; arguments as in its call. The call runs as in
    evaluation, without autocast, and changes neither weights nor gradients. Values, and gradients for random gradients
    of the outputs, are compared for outputs, inputs, weights, and the named steps that the generated code computes one
    by one; a kernel shows only what it returns. The tolerance is that of the dtype, or four times the error of the
    reference in that dtype if this is more. The reference is dense: choose lengths of some hundred positions. Raises
    InputError.

    >>> import torch, tensornet_attn as ta
    >>> layer = ta.compile(ta.load("hard_fish", legs={"f": 32}))
    >>> bool(ta.verify(layer, torch.randn(2, 5, 32)))
    True
    """
    if not isinstance(layer, CompiledDesign):
        raise InputError(f"verify takes a compiled design, as ta.compile returns it, not a {type(layer).__name__}.")
    graph, signature = layer.plan.graph, layer._signature
    ordered = signature.ordered(inputs, named)
    lengths = signature.check(ordered, mask, key_mask, noise)
    first = next(x for x in ordered if x is not None)
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(first.device.type, enabled=False):
        tensors = {name: x.detach().clone() for name, x in leaves(layer, ordered, noise).items()}
        batch = signature.batch(ordered)
        for tensor in graph.of_role("noise"):
            if tensor.always and tensor.name not in tensors:
                sizes = ReferenceRun(graph, tensors, lengths, False, mask, key_mask).sizes(tensor.legs)
                tensors[tensor.name] = first.new_empty(*batch, *sizes).normal_()
        exact = expected(graph, VerifiedCall(tensors, lengths, mask, key_mask), first.dtype)
        steps = [
            difference
            for difference in observed(layer.plan, observed_run(layer.plan), exact)
            if not difference.is_result
        ]
        results = _called(layer, exact)
    values, gradients = ([difference for difference in steps if difference.gradient == side] for side in (False, True))
    split = sum(not difference.gradient for difference in results)
    compared = (*values, *results[:split], *gradients, *results[split:])
    words = [f"{leg} {size}" for leg, size in lengths.items()]
    kind = str(first.dtype).removeprefix("torch.")
    names = {difference.name for difference in compared}
    return Verification(
        ", ".join([layer.design.name, f"backend {layer.plan.backend}", kind, *words]),
        compared,
        tuple(name for name in named_steps(graph) if name not in names),
    )


def _called(layer: CompiledDesign, exact: Expected) -> list[Difference]:
    """The differences of the outputs of a call, and of the gradients of its inputs and weights."""
    graph, call = layer.plan.graph, exact.call
    inputs = {tensor.name for tensor in graph.of_role("input")}
    leaf_values = call.leaves(graph)
    tensors = call.tensors | leaf_values
    noise = {tensor.name: tensors[tensor.name] for tensor in graph.of_role("noise") if tensor.name in tensors}
    training = layer.training
    try:
        layer.eval()
        results = layer(
            **{name: tensors[name] for name in inputs if name in tensors},
            mask=call.mask,
            key_mask=call.key_mask,
            noise=noise or None,
        )
    finally:
        layer.train(training)
    outputs = results if isinstance(results, tuple) else (results,)
    steps = {name: Observed(x, lambda x: x) for name, x in zip((graph.output, *graph.also), outputs, strict=True)}
    trained = {name: x for name, x in layer.named_parameters() if x.requires_grad}
    leaf = {name: x for name, x in leaf_values.items() if name in inputs} | trained
    return differences(graph, exact, steps, gradients_of(steps, leaf, exact.cotangents))
