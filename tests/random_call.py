"""A random call of a design: lengths, batch shapes, masks of every form, noise; and the results to compare."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.graph.graph import Box, Graph
from tensornet_attn.graph.hidden import omits_hidden_keys
from tensornet_attn.ops import OPS

F64 = torch.float64
SIZES = ((1, 1), (3, 3), (2, 4), (4, 2), (5, 3))  # queries, keys


@dataclass
class Call:
    """Draws arguments; `lengths` are those of the sequence legs."""

    graph: Graph
    draw: random.Random
    seed: int
    sizes: Sequence[tuple[int, int]] = SIZES

    def __post_init__(self) -> None:
        graph, (n, m) = self.graph, self.draw.choice(self.sizes)
        on_inputs = {leg for tensor in graph.of_role("input") for leg in tensor.legs}
        self.lengths = {graph.query: n, graph.key: n if graph.tied else m}
        for leg in graph.legs:
            if leg.sequence and leg.maximum is not None and leg.name not in on_inputs and not graph.tied:
                self.lengths[leg.name] = leg.maximum
        self.generator = torch.Generator().manual_seed(self.seed)
        self.batch = self.draw.choice([(), (1,), (2,), (2, 3)])

    def size(self, leg: str) -> int:
        if self.graph.leg[leg].sequence:
            return self.lengths[leg]
        return self.graph.leg[leg].size or self.lengths[self.graph.query] + self.lengths[self.graph.key] - 1

    def normal(self, batch: tuple[int, ...], legs: tuple[str, ...]) -> Tensor:
        return torch.randn((*batch, *(self.size(leg) for leg in legs)), generator=self.generator, dtype=F64)

    def arguments(self) -> tuple[list[Tensor], dict[str, Any]]:
        shapes = [self.batch, self.batch, self.batch[1:], tuple(1 for _ in self.batch)]
        inputs = self.graph.of_role("input")
        batches = [self.draw.choice(shapes) for _ in inputs]
        self.batch = tuple(torch.broadcast_shapes(*batches))
        tensors = [self.normal(batch, tensor.legs) for batch, tensor in zip(batches, inputs, strict=True)]
        return tensors, self.masks() | self.noise()

    def noise(self) -> dict[str, Any]:
        noise = {tensor.name: self.normal(self.batch, tensor.legs) for tensor in self.graph.of_role("noise")}
        return {"noise": noise} if noise else {}

    def masks(self) -> dict[str, Any]:
        boxes = [(step, step.op) for step in self.graph.steps if isinstance(step.op, Box)]
        fast = any(box.kind in ("delta_rule", "scan") for _, box in boxes)
        masked = [box for step, box in boxes if self.graph.masked(step)]
        pairs = [box for box in masked if self.graph.query in box.operand("of").legs]
        found: dict[str, Any] = {}
        if pairs and not fast and self.draw.random() < 0.5:
            found["mask"] = self.mask(pairs)
        if (masked or fast or omits_hidden_keys(self.graph)) and self.draw.random() < 0.5:
            shape = (*self.batch, self.lengths[self.graph.key])
            found["key_mask"] = torch.rand(shape, generator=self.generator) < 0.7
        return found

    def mask(self, boxes: list[Box]) -> Tensor:
        """[n, m], [batch..., n, m] or, where all boxes agree on them, [batch..., other legs, n, m]."""
        pair = (self.graph.query, self.graph.key)
        others = {tuple(leg for leg in box.operand("of").legs if leg not in pair) for box in boxes}
        forms: list[tuple[int, ...]] = [(), self.batch]
        running = any(step.name.endswith(".each") for step in self.graph.steps)  # sums that may be planned as attention
        if len(others) == 1 and not running:
            forms.append((*self.batch, *(self.size(leg) for leg in min(others))))
        shape = (*self.draw.choice(forms), *(self.lengths[leg] for leg in pair))
        keep = torch.rand(shape, generator=self.generator) < 0.6
        boolean = running or not all(OPS[box.kind].takes_float_mask for box in boxes)
        if boolean or self.draw.random() < 0.5:
            return keep
        return torch.where(keep, torch.randn(shape, generator=self.generator, dtype=F64), -torch.inf)


def results(module: nn.Module, inputs: Sequence[Tensor], options: Mapping[str, Any]) -> dict[str, Tensor | None]:
    """Output, losses, gradients of their random projection, and states after the call, by name."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    module.zero_grad()
    y = module(*inputs, **options)
    y, losses = y if isinstance(y, tuple) else (y, {})
    projection = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=F64).to(y.dtype)
    total = (y * projection).sum() + sum(losses.values())
    if total.requires_grad:
        total.backward()
    found: dict[str, Tensor | None] = {"output": y.detach()}
    found |= {f"loss {name}": value.detach() for name, value in losses.items()}
    found |= {f"gradient of input {i}": x.grad for i, x in enumerate(inputs)}
    found |= {f"gradient of {name}": parameter.grad for name, parameter in module.named_parameters()}
    return found | {f"state {name}": value.clone() for name, value in module.named_buffers()}


class Called(nn.Module):
    """The parameters of a module, called by a function."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]):
        super().__init__()
        self._own, self.call = [module], call

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(*inputs)

    def named_parameters(self, *arguments: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self._own[0].named_parameters()

    def named_buffers(self, *arguments: Any, **options: Any) -> Iterator[tuple[str, Tensor]]:
        return self._own[0].named_buffers()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._own[0].zero_grad(set_to_none)


def usable(found: Mapping[str, Tensor | None]) -> bool:
    """Whether numbers are finite and not so large that rounding decides."""
    return all(x is None or (x.isfinite().all() and (x.numel() == 0 or x.abs().max() < 1e8)) for x in found.values())


def assert_same(found: Mapping[str, Tensor | None], wanted: Mapping[str, Tensor | None]) -> None:
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        got = found[name]
        if want is None or got is None:
            assert want is None or not want.any(), f"{name} is missing"
            assert got is None or not got.any(), f"{name} should be missing"
            continue
        scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        torch.testing.assert_close(got, want, rtol=0, atol=1e-8 * scale, msg=lambda text, name=name: f"{name}: {text}")


def same_results(
    module: nn.Module, oracle: nn.Module, inputs: Sequence[Tensor], options: Mapping[str, Any] | None = None
) -> None:
    assert_same(results(module, inputs, options or {}), results(oracle, inputs, options or {}))


def same_if_usable(module: nn.Module, oracle: nn.Module, inputs: Sequence[Tensor], options: Mapping[str, Any]) -> bool:
    """Whether the numbers of the oracle can be compared; then they are the same."""
    wanted = results(oracle, inputs, options)
    if usable(wanted):
        assert_same(results(module, inputs, options), wanted)
    return usable(wanted)
