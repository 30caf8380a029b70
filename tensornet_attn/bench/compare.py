"""Whether a contestant computes the design: its numbers beside the reference's in float64, before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from tensornet_attn import compiler
from tensornet_attn.bench.case import FORWARD, Case, leaves, runner
from tensornet_attn.bench.model import reference_bytes

Tensor = torch.Tensor
Values = dict[str, Tensor]
FLOOR = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}  # of the root mean square
SLACK = 4  # times the error that the reference itself makes in the measured dtype
SMALL = 1e-3  # gradients smaller than this part of the largest count as if they had this size


class WrongError(Exception):
    """A contestant's numbers are not the design's."""


@dataclass(frozen=True)
class Oracle:
    """The reference's values at `n`, float64, and the error allowed of each in the measured dtype."""

    n: int
    values: Values
    allowed: dict[str, float]

    def error(self, values: Mapping[str, Tensor]) -> float:
        """The largest error among these values. Raises WrongError."""
        found = errors(values, {name: self.values[name] for name in values})
        worst = max(found, key=lambda name: found[name] / self.allowed[name])
        if not found[worst] <= self.allowed[worst]:  # NaN is above every bound
            what = worst if worst == "output" else f"gradient of {worst}"
            raise WrongError(
                f"its {what} differs from the reference by {found[worst]:.1e} of its size at n = {self.n}; "
                f"allowed: {self.allowed[worst]:.1e}"
            )
        return max(found.values())


def oracle(case: Case, limit: float) -> Oracle:
    """The reference at the case's length, or at the largest half, quarter and so on that is within the limit.

    The limit is of what is predicted: where memory ends before, the length is halved once more.
    """
    n = case.n
    while True:
        while n > 1 and reference_bytes(case.at(n)) > limit:
            n //= 2
        try:
            exact, own = (reference_values(case.at(n), dtype) for dtype in ("float64", case.dtype))
        except torch.OutOfMemoryError:
            if n == 1:
                raise
            n //= 2
        else:
            allowed = {name: max(FLOOR[case.dtype], SLACK * error) for name, error in errors(own, exact).items()}
            return Oracle(n, exact, allowed)


def reference_values(case: Case, dtype: str) -> Values:
    """Output and gradients by name, computed in `dtype`, one sequence at a time: gradients of weights add up.

    Inputs and weights are those of the case, rounded to its dtype.
    """
    wide = replace(case, dtype=dtype)
    module = case.loaded(compiler.reference(case.design, case.causal)).to(wide.torch_dtype).eval()
    start, inputs = case.cotangent().to(wide.torch_dtype), [x.detach().to(wide.torch_dtype) for x in case.inputs()]
    found: dict[str, list[Tensor]] = {}
    for b in range(case.batch):
        sequence = [x[b : b + 1].requires_grad_() for x in inputs]
        y, wanted = module(*sequence), list(leaves(module, sequence).values())
        grads = torch.autograd.grad(y, wanted, start[b : b + 1], allow_unused=True)
        for name, value in named(module, sequence, [y, *grads]).items():
            found.setdefault(name, []).append(value)
    return {
        name: torch.cat(parts) if name == "output" or name.startswith("input ") else torch.stack(parts).sum(0)
        for name, parts in found.items()
    }


def named(module: nn.Module, inputs: list[Tensor], results: list[Tensor | None]) -> Values:
    """What `runner` returns, by name, float64; gradients that cannot matter are zeros."""
    own = leaves(module, inputs)
    grads = {name: torch.zeros_like(own[name]) if g is None else g for name, g in zip(own, results[1:], strict=False)}
    return {name: value.detach().double() for name, value in ({"output": results[0]} | grads).items()}  # type: ignore[union-attr]


def values_of(module: nn.Module, case: Case, kind: str) -> Values:
    """What a contestant computes in the pass that is timed; where training is random, in evaluation."""
    inputs = case.inputs()
    call = runner(module, case, inputs, kind)
    if kind != FORWARD and case.random:
        module.eval()
    return named(module, inputs, call())


def errors(values: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, float]:
    """Root mean square of the difference over that of the value wanted, by name."""
    sizes = {name: _size(value) for name, value in wanted.items()}
    largest = max((size for name, size in sizes.items() if name != "output"), default=0.0)
    least = {name: 0.0 if name == "output" else SMALL * largest for name in sizes}
    return {name: _size(values[name] - value) / max(sizes[name], least[name], 1e-300) for name, value in wanted.items()}


def _size(x: Tensor) -> float:
    return x.square().mean().sqrt().item() if x.numel() else 0.0
