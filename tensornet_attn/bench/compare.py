"""Compares the results of a contestant with those of the reference in float64, before it is timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from tensornet_attn import compiler
from tensornet_attn.bench.case import FORWARD, Case, leaves, runner
from tensornet_attn.bench.floor import reference_bytes

Tensor = torch.Tensor
Values = dict[str, Tensor]
FLOOR = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}  # minimum tolerance
SLACK = 4  # tolerance, in errors of the reference in the measured dtype
SMALL = 1e-3  # minimum size of a gradient, relative to the largest, in relative errors


class WrongError(Exception):
    """The results of a contestant differ from the reference."""


@dataclass(frozen=True)
class Oracle:
    """The float64 results of the reference at `n`, and the tolerance of each in the measured dtype."""

    n: int
    values: Values
    allowed: dict[str, float]

    def error(self, values: Mapping[str, Tensor]) -> float:
        """The largest error among these values. Raises WrongError."""
        relative_errors = errors(values, {name: self.values[name] for name in values})
        worst = max(relative_errors, key=lambda name: relative_errors[name] / self.allowed[name])
        if not relative_errors[worst] <= self.allowed[worst]:  # NaN is above every bound
            what = worst if worst == "output" else f"gradient of {worst}"
            raise WrongError(
                f"the relative error of its {what} is {relative_errors[worst]:.1e} at n = {self.n}; "
                f"the tolerance is {self.allowed[worst]:.1e}"
            )
        return max(relative_errors.values())


def oracle(case: Case, limit: float) -> Oracle:
    """The reference's results at the case's length, which is halved until predicted memory is within the limit.

    If memory runs out nevertheless, the length is halved again.
    """
    n = case.n
    while True:
        while n > 1 and reference_bytes(case.at(n)) > limit:
            n //= 2
        try:
            exact, rounded = (reference_values(case.at(n), dtype) for dtype in ("float64", case.dtype))
        except torch.OutOfMemoryError:
            if n == 1:
                raise
            n //= 2
        else:
            allowed = {name: max(FLOOR[case.dtype], SLACK * error) for name, error in errors(rounded, exact).items()}
            return Oracle(n, exact, allowed)


def reference_values(case: Case, dtype: str) -> Values:
    """Output and gradients by name, computed in `dtype`, one sequence at a time.

    Inputs and weights are those of the case, rounded to its dtype.
    """
    wide = replace(case, dtype=dtype)
    module = case.loaded(compiler.reference(case.design, case.causal)).to(wide.torch_dtype).eval()
    start, inputs = case.cotangent.to(wide.torch_dtype), [x.detach().to(wide.torch_dtype) for x in case.inputs()]
    pieces: dict[str, list[Tensor]] = {}
    for b in range(case.batch):
        sequence = [x[b : b + 1].requires_grad_() for x in inputs]
        y, tensors = module(*sequence), list(leaves(module, sequence).values())
        grads = torch.autograd.grad(y, tensors, start[b : b + 1], allow_unused=True)
        for name, piece in named(module, sequence, [y, *grads]).items():
            pieces.setdefault(name, []).append(piece)
    return {
        name: torch.cat(sequence_pieces)
        if name == "output" or name.startswith("input ")
        else torch.stack(sequence_pieces).sum(0)
        for name, sequence_pieces in pieces.items()
    }


def named(module: nn.Module, inputs: list[Tensor], results: list[Tensor | None]) -> Values:
    """The results of `runner` by name, in float64. Missing gradients are zeros."""
    tensors = leaves(module, inputs)
    grads = {
        name: torch.zeros_like(tensors[name]) if grad is None else grad
        for name, grad in zip(tensors, results[1:], strict=False)
    }
    return {name: tensor.detach().double() for name, tensor in ({"output": results[0]} | grads).items()}  # type: ignore[union-attr]


def values_of(module: nn.Module, case: Case, kind: str) -> Values:
    """The results of a contestant's pass. If training is random, it runs in evaluation mode."""
    inputs = case.inputs()
    call = runner(module, case, inputs, kind)
    if kind != FORWARD and case.random:
        module.eval()
    return named(module, inputs, call())


def errors(values: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """The relative root mean square error of each value, by name."""
    sizes = {name: _size(tensor) for name, tensor in expected.items()}
    largest = max((size for name, size in sizes.items() if name != "output"), default=0.0)
    least = {name: 0.0 if name == "output" else SMALL * largest for name in sizes}
    return {
        name: _size(values[name] - tensor) / max(sizes[name], least[name], 1e-300) for name, tensor in expected.items()
    }


def _size(x: Tensor) -> float:
    return x.square().mean().sqrt().item() if x.numel() else 0.0
