"""One call beside the reference in float64: the values and gradients of all steps that can be observed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from tensornet_attn.emit.module import emit
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.hidden import EVERYTHING, seen_by_readers
from tensornet_attn.nn.executable import Arguments
from tensornet_attn.nn.runs import emitted_run
from tensornet_attn.plan.plan import Plan
from tensornet_attn.reference import ReferenceRun, evaluate

Tensor = torch.Tensor
Values = dict[str, Tensor]
# Least tolerances, relative to the largest entry. Kernels sum in another order than torch and approximate exp, which
# costs tens of units of rounding (float32: 6e-8, in steps whose rounding the softmax amplifies some ten times more).
FLOOR = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
SLACK = 4  # tolerance, in errors of the reference in the dtype of the call
LEAST_VALUE, LEAST_GRADIENT = 1e-6, 1e-2  # entries count as this part of the largest one, of all steps, at least


@dataclass(frozen=True)
class VerifiedCall:
    """A call: inputs, weights, states and noise by name, lengths by sequence leg, and masks."""

    tensors: Values
    lengths: Mapping[str, int]
    mask: Tensor | None = None
    key_mask: Tensor | None = None

    def to(self, dtype: torch.dtype) -> VerifiedCall:
        """The call in another dtype; boolean and integer tensors stay."""
        mask = None if self.mask is None else _cast(self.mask, dtype)
        return replace(self, tensors={name: _cast(x, dtype) for name, x in self.tensors.items()}, mask=mask)

    def leaves(self, graph: Graph) -> Values:
        """Copies of the inputs and trainable weights, which require gradients."""
        trained = {tensor.name for tensor in graph.tensors if tensor.role == "input" or _trainable(tensor)}
        named = ((name, x) for name, x in self.tensors.items() if name in trained and x.is_floating_point())
        return {name: x.detach().clone().requires_grad_() for name, x in named}


class Observed(NamedTuple):
    """A value in a call, and the function that lays it, or its gradient, as the diagram writes it."""

    value: Tensor
    laid: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Difference:
    """The largest difference of a value or gradient, relative to its largest entry, and the tolerance.

    `is_result`: it is an output or the gradient of an input or weight, not a step on the way.
    """

    name: str
    gradient: bool
    is_result: bool
    error: float
    allowed: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.allowed

    def __str__(self) -> str:
        what = f"{'the gradient of ' * self.gradient}'{self.name}'"
        return f"{what} differs by {self.error:.1e} of its largest entry; the tolerance is {self.allowed:.1e}"


class Expected(NamedTuple):
    """What the reference gives for a call in float64: steps, gradients, what readers see, gradients of the outputs."""

    call: VerifiedCall
    dtype: torch.dtype
    values: Values
    gradients: Values
    seen: Values
    cotangents: Values


def named_steps(graph: Graph) -> list[str]:
    """The steps to which the diagram gives a name, and its results."""
    return [step.name for step in graph.steps if "." not in step.name or step.name in graph.results]


def expected(graph: Graph, call: VerifiedCall, dtype: torch.dtype) -> Expected:
    """The results of the reference in float64 for a call of a layer in `dtype`."""
    wide = call.to(torch.float64)
    leaves = wide.leaves(graph)
    values = _evaluated(graph, wide, leaves)
    outputs = [graph.output, *graph.also]
    cotangents = {name: _drawn(values[name].shape, seed).to(values[name]) for seed, name in enumerate(outputs)}
    steps = {name: Observed(values[name], _same) for name in named_steps(graph)}
    gradients = gradients_of(steps, leaves, cotangents)
    seen, run = seen_by_readers(graph), ReferenceRun(graph, values, dict(call.lengths), False, wide.mask, wide.key_mask)
    hidden = [name for name in steps if seen.get(name, EVERYTHING) not in (EVERYTHING, frozenset())]
    visible = {name: run.seen(seen[name], graph.step[name].legs) for name in hidden}
    return Expected(
        call, dtype, {name: step.value.detach() for name, step in steps.items()}, gradients, visible, cotangents
    )


def observed_run(plan: Plan) -> Callable[..., Any]:
    """The run of a plan whose forward returns its named steps, see `emit`; of the reference, the reference itself."""
    if plan.backend == "reference":
        return lambda owner, arguments: None
    emitted = emit(plan, observed=True)
    return emitted_run(emitted.source, emitted.class_name, plan)


def observed(plan: Plan, run: Callable[..., Any], exact: Expected) -> list[Difference]:
    """The differences of what the emitted code of a plan computes: named steps, and gradients of steps and leaves.

    A step of decoding overwrites its states, and has no gradients.
    """
    graph, call = plan.graph, exact.call.to(exact.dtype)
    leaves = call.leaves(graph)
    if plan.backend == "reference":
        values = _evaluated(graph, call, leaves)
        steps = {name: Observed(values[name], _same) for name in named_steps(graph)}
    else:
        tensors = call.tensors | leaves
        owner = SimpleNamespace(training=False, **{t.name: tensors[t.name] for t in graph.tensors if t.name in tensors})
        inputs: Any = tuple(tensors.get(tensor.name) for tensor in graph.of_role("input"))
        noise = {tensor.name: tensors[tensor.name] for tensor in graph.of_role("noise") if tensor.name in tensors}
        with torch.set_grad_enabled(not graph.also):
            pairs = run(owner, Arguments(inputs, dict(call.lengths), call.mask, call.key_mask, noise or None))
        steps = {name: Observed(*pair) for name, pair in pairs.items()}
    gradients = {} if graph.also else gradients_of(steps, leaves, exact.cotangents)
    return differences(graph, exact, steps, gradients)


def differences(graph: Graph, exact: Expected, steps: Mapping[str, Observed], gradients: Values) -> list[Difference]:
    """The differences of steps in the order of the diagram, then of gradients, from the output to the leaves."""
    compared = _compared(exact, steps, gradients, {})
    if exact.dtype == torch.float64 or all(difference.agrees for difference in compared):
        return compared
    call = exact.call.to(exact.dtype)
    leaves = call.leaves(graph)
    values = _evaluated(graph, call, leaves)
    rounded = {name: Observed(values[name], _same) for name in named_steps(graph)}
    of_rounding = _compared(exact, rounded, gradients_of(rounded, leaves, exact.cotangents), {})
    slack = {(rounding.name, rounding.gradient): SLACK * rounding.error for rounding in of_rounding}
    return _compared(exact, steps, gradients, slack)


def _compared(
    exact: Expected, steps: Mapping[str, Observed], gradients: Values, slack: Mapping[tuple[str, bool], float]
) -> list[Difference]:
    """All differences; `slack`: what the tolerance has besides its least value."""
    values = {name: step.laid(step.value.detach()) for name, step in steps.items()}
    order = [*reversed([*exact.values]), *gradients]
    backward = {name: gradients[name] for name in order if name in gradients}
    compared = list[Difference]()
    for gradient, observed_values, expected_values in (
        (False, values, exact.values),
        (True, backward, exact.gradients),
    ):
        sizes = {name: _largest(_shown(exact, name, x)) for name, x in expected_values.items()}
        least = max(sizes.values(), default=0.0) * (LEAST_GRADIENT if gradient else LEAST_VALUE)
        for name, actual in observed_values.items():
            pair = _alike(actual.to(expected_values[name]), expected_values[name]) if name in expected_values else None
            if pair is not None:
                is_result = name in exact.cotangents or name not in exact.values
                allowed = FLOOR[exact.dtype] + slack.get((name, gradient), 0.0)
                pair = _shown(exact, name, pair[0]), _shown(exact, name, pair[1])
                error = _error(*pair, max(sizes[name], least, 1e-300), None if is_result else allowed)
                compared.append(Difference(name, gradient, is_result, error, allowed))
    return compared


def _error(actual: Tensor, wanted: Tensor, size: float, allowed: float | None) -> float:
    """The largest difference over `size`; infinite if entries that are not finite are not those of the reference.

    Beyond `allowed`, if it is given, a constant factor does not count: a plan may multiply it into a later step.
    """
    error = _distance(actual, wanted) / size
    if error == error < inf and (allowed is None or error <= allowed):
        return error
    infinite = ~wanted.isfinite()
    if not torch.equal(~actual.isfinite(), infinite) or not actual[infinite].allclose(wanted[infinite], equal_nan=True):
        return inf
    actual, wanted = (torch.where(x.isfinite(), x, 0) for x in (actual, wanted))
    factor = (actual * wanted).sum().item() / max(wanted.square().sum().item(), 1e-300)
    if allowed is None or factor == 0:
        return _distance(actual, wanted) / size
    return min(_distance(actual, wanted), _distance(actual, factor * wanted) / abs(factor)) / size


def _distance(actual: Tensor, wanted: Tensor) -> float:
    return (actual - wanted).abs().max().item() if actual.numel() else 0.0


def _largest(x: Tensor) -> float:
    size = x.abs().max().item() if x.numel() else 0.0
    return size if isfinite(size) else torch.where(x.isfinite(), x, 0).abs().max().item()


def _alike(actual: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor] | None:
    """Both with the same shape: a step that reads no input has no batch dimensions, on one of the sides perhaps.

    None if they have other sizes, such as those of chosen experts.
    """
    smaller, larger = sorted((actual, wanted), key=lambda x: x.ndim)
    lead = larger.ndim - smaller.ndim
    if larger.shape[lead:] != smaller.shape:
        return None
    return actual.sum_to_size(smaller.shape), wanted.sum_to_size(smaller.shape)


def _shown(exact: Expected, name: str, x: Tensor) -> Tensor:
    """The entries that a reader sees; others are 0."""
    return torch.where(exact.seen[name], x, 0) if name in exact.seen else x


def _evaluated(graph: Graph, call: VerifiedCall, leaves: Values) -> Values:
    return evaluate(graph, call.tensors | leaves, lengths=call.lengths, mask=call.mask, key_mask=call.key_mask)


def gradients_of(steps: Mapping[str, Observed], leaves: Values, cotangents: Values) -> Values:
    """The gradients of all steps and leaves, as the diagram writes them; zeros where there is none."""
    outputs = [
        steps[name].laid(steps[name].value) * weight.to(steps[name].value) for name, weight in cotangents.items()
    ]
    if not any(output.requires_grad for output in outputs):
        return {}
    wanted = {name: step for name, step in steps.items() if step.value.requires_grad and name not in cotangents}
    wanted |= {name: Observed(leaf, _same) for name, leaf in leaves.items()}
    total = torch.stack([output.sum() for output in outputs]).sum()
    tensors = [step.value for step in wanted.values()]
    gradients = torch.autograd.grad(total, tensors, allow_unused=True, materialize_grads=True)
    return {
        name: step.laid(gradient.detach()) for (name, step), gradient in zip(wanted.items(), gradients, strict=True)
    }


def _drawn(shape: Iterable[int], seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _same(x: Tensor) -> Tensor:
    return x


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def _trainable(tensor: Any) -> bool:
    return tensor.role == "weight" and not tensor.frozen
