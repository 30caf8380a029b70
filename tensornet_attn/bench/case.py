"""A benchmark case: a design at one length, with inputs and weights; and its passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from tensornet_attn import compiler
from tensornet_attn.bench.measure import is_gpu
from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.sizes import dtype_bytes, lengths_of, whole
from tensornet_attn.cost.target import CurrentOptions
from tensornet_attn.errors import InputError
from tensornet_attn.graph import Graph, build
from tensornet_attn.ir import arithmetic
from tensornet_attn.spec import Design, library

Tensor = torch.Tensor
Module = TypeVar("Module", bound=nn.Module)
FORWARD, TRAINING = "forward", "forward+backward"
PASSES = (FORWARD, TRAINING)
DECODING = "decoding"  # the next position after those in a cache
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, eq=False)
class Case:
    """A design at length n. `seed` determines all random values; `causal` overrides that of the design.

    `costs`: the device that our plans are optimised for, at this length, batch size and pass. If it is None, plans have
    the compiler's defaults. `tune`: tune our Triton kernels before measuring.
    """

    design: Design
    n: int
    batch: int = 1
    causal: bool | None = None
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    costs: Device | None = None
    tune: bool = False

    @cached_property
    def graph(self) -> Graph:
        return build(self.design, self.causal)

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Lengths of the sequence legs, n on both. Raises InputError beyond the maximum of a leg."""
        return lengths_of(self.graph, self.n)

    def check(self) -> None:
        """Raises InputError for an invalid length, batch size, dtype or device."""
        whole("batch", self.batch)
        dtype_bytes(self.dtype)
        device = torch.device(self.device) if self.device.partition(":")[0] in DEVICES else None
        if device is None or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
            available = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])
            raise InputError(f"there is no device '{self.device}' here: {available}.")
        assert self.lengths is not None

    @cached_property
    def sizes(self) -> dict[str, Any]:
        """Legs and settings by name."""
        return {**self.design.legs, **self.design.settings}

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for cases with the same values."""
        sizes = tuple(self.sizes.items())
        return self.design.name, sizes, self.n, self.batch, self.graph.causal, self.dtype, self.device, self.seed

    def wanted(self, kind: str) -> CurrentOptions:
        """The target of our plans for a pass."""
        if self.costs is None:
            return {}
        workload = "training" if kind == TRAINING else "prefill"
        return {"workload": workload, "device_costs": self.costs, "n": self.n, "batch": self.batch}

    @property
    def on_gpu(self) -> bool:
        return is_gpu(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def shipped(self) -> bool:
        """Whether the design is a shipped file, possibly with other sizes and settings."""
        path = self.design.document.path
        return path is not None and Path(path) == library.folder() / Path(path).parent.name / f"{self.design.name}.yaml"

    @property
    def random(self) -> bool:
        """Whether training calls differ, because of noise, dropout or a state."""
        trees = [tree for s in self.graph.steps for name, tree in getattr(s.op, "numbers", ()) if name == "dropout"]
        dropping = any(arithmetic.evaluate(tree, {**self.graph.values, **self.lengths}) for tree in trees)
        return bool(self.graph.of_role("noise") or self.graph.of_role("state") or dropping)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The initial values of the design, drawn in float64 on the CPU."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return compiler.reference(self.design, self.causal, dtype=torch.float64).state_dict()

    def inputs(self) -> list[Tensor]:
        """Random values from N(0, 1) for the inputs without a default; all contestants share their memory."""
        return [x.detach().requires_grad_() for x in self._drawn]

    @cached_property
    def _drawn(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self.seed + 1)
        inputs = [tensor for tensor in self.graph.of_role("input") if tensor.default is None]
        return [self._normal(tensor.legs, generator) for tensor in inputs]

    @cached_property
    def cotangent(self) -> Tensor:
        """The gradient of the output: random values from N(0, 1)."""
        return self._normal(self.graph.legs_of(self.graph.output), torch.Generator().manual_seed(self.seed + 2))

    def _normal(self, legs: tuple[str, ...], generator: torch.Generator) -> Tensor:
        """Random values [batch, legs] from N(0, 1), drawn in float64 and rounded to the dtype."""
        shape = [self.batch, *(self.lengths.get(leg) or self.sizes[leg] for leg in legs)]
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(self.device, self.torch_dtype)

    def loaded(self, module: Module) -> Module:
        """The module with this case's weights, dtype and device."""
        module.load_state_dict(self.weights)
        return module.to(self.device, self.torch_dtype)

    def at(self, n: int) -> Case:
        return replace(self, n=n)

    def of_softmax(self, **legs: int) -> Case:
        """The same case for mhsa of these sizes."""
        return replace(self, design=compiler.load("mhsa", legs=legs), causal=self.graph.causal)


def leaves(module: nn.Module, inputs: list[Tensor]) -> dict[str, Tensor]:
    """The tensors with gradients, by name: inputs and trainable weights."""
    named = {name.removeprefix("_orig_mod."): parameter for name, parameter in module.named_parameters()}
    weights = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    return {f"input {index}": x for index, x in enumerate(inputs)} | weights


def runner(module: nn.Module, case: Case, inputs: list[Tensor], kind: str) -> Callable[[], list[Tensor | None]]:
    """A function that runs a forward in evaluation mode, or a forward and backward in training mode."""
    module.train(kind != FORWARD)
    if kind == FORWARD:
        return torch.no_grad()(lambda: [module(*inputs)])
    tensors = list(leaves(module, inputs).values())
    start = case.cotangent

    def forward_and_backward() -> list[Tensor | None]:
        y = module(*inputs)
        return [y, *torch.autograd.grad(y, tensors, start, allow_unused=True)]

    return forward_and_backward
