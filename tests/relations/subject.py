"""A design on one backend beside the reference: modules with the same weights, their calls, and what comes of these."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.graph import Tensor as Leaf
from tensornet_attn.ir.arithmetic import Number, evaluate
from tests.random_call import F64, SIZES, Call, Called, assert_same, results, usable
from tests.relations.text import Data

Results = dict[str, Tensor | None]
Function = Callable[..., Any]
ZERO = Number(0)


class NotApplicable(Exception):
    """The relation says nothing about this design, backend or call."""


class Backend(NamedTuple):
    """A backend with the options that lead to other plans."""

    name: str
    options: Mapping[str, Any] = MappingProxyType({})


BACKENDS: dict[str, Backend] = {
    "reference": Backend("reference"),
    "torch": Backend("torch"),
    "blocks": Backend("torch", {"linear_memory": True}),
    "long": Backend("torch", {"n": 4096}),
    "decoding": Backend("torch", {"workload": "decoding"}),
    "inductor": Backend("inductor"),
    "cpp": Backend("cpp"),
    "triton": Backend("triton"),
}


class Rows(NamedTuple):
    """The leaves of a call, and its numbers of queries and of keys."""

    leaves: list[Tensor]
    queries: int
    keys: int


@dataclass
class Subject:
    """A design, a backend by its name in BACKENDS, and a seed for weights and calls."""

    data: Data
    backend: str
    seed: int
    dtype: torch.dtype = F64

    @cached_property
    def oracle(self) -> Any:
        return self._with_weights(ta.reference(self.data, dtype=self.dtype))

    @cached_property
    def module(self) -> Any:
        return self.compiled()

    @cached_property
    def graph(self) -> Graph:
        return self.oracle.plan.graph

    @cached_property
    def draw(self) -> random.Random:
        return random.Random(self.seed)

    def compiled(self) -> Any:
        """A new module of the backend. Raises NotApplicable if the backend has no plan for the design."""
        backend = BACKENDS[self.backend]
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*kernels (cannot be compared|differ)")  # torch would be tried instead
            try:
                return self._with_weights(ta.compile(self.data, backend.name, dtype=self.dtype, **backend.options))
            except ta.InputError as error:
                raise NotApplicable(str(error)) from None

    @cached_property
    def signed(self) -> bool:
        """Whether numbers may have any sign: no row is divided by a sum that may vanish."""
        return not any(problem.code == "negative-normalize" for problem in ta.check(self.data))

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """Weights and states; states are positive."""
        generator, state = torch.Generator().manual_seed(self.seed), {}
        for name, like in ta.reference(self.data, dtype=F64).state_dict().items():
            value = torch.rand(like.shape, generator=generator, dtype=F64)
            signed = self.signed and name not in self.data.get("state", {})
            state[name] = value * 1.2 - 0.5 if signed else 0.2 + 0.6 * value
        return state

    def _with_weights(self, module: Any) -> Any:
        """In training for every other seed, unless entries are dropped at random."""
        module.load_state_dict(self.state)
        graph = module.plan.graph
        rates = [dict(step.box.numbers).get("dropout", ZERO) for step in graph.steps if step.box is not None]
        return module.train(self.seed % 2 == 0 and not any(evaluate(rate, graph.values) for rate in rates))

    # Calls

    def call(self, *sizes: tuple[int, int]) -> Call:
        """A random call; `sizes`: the numbers of queries and keys to choose from."""
        longest = {leg.name: leg.maximum for leg in self.graph.legs if leg.sequence and leg.maximum is not None}
        n, m = (longest.get(str(leg), 999) for leg in self.pair)
        fitting = [(queries, keys) for queries, keys in sizes or SIZES if queries <= n and keys <= m]
        if not fitting:
            raise NotApplicable("the sequences of the design are shorter")
        return Call(self.graph, self.draw, self.draw.randrange(2**31), fitting)

    def arguments(self, *sizes: tuple[int, int]) -> tuple[list[Tensor], dict[str, Any]]:
        """Inputs of a random call and its options: masks, noise, losses."""
        call = self.call(*sizes)
        inputs, options = call.arguments()
        if "mask" in options and options["mask"].ndim > 2 + len(call.batch) and self.module.mask_places.apart:
            options["mask"] = options["mask"].flatten(len(call.batch), -3).select(len(call.batch), 0)
        if "mask" in options and self.module.mask_places.maps and options["mask"].is_floating_point():
            options["mask"] = options["mask"] > 0  # a sum that is planned as attention adds no mask
        return self.steadied(inputs), options | ({"losses": True} if self.graph.losses else {})

    def rows(self, batch: tuple[int, ...], n: int, m: int) -> Rows:
        """Leaves of n queries and m keys, or of n keys if these are the same positions. Raises NotApplicable if the
        design fixes another length."""
        call = self.call((n, m))
        keys = call.lengths[self.graph.key] if self.graph.key else n
        if call.lengths[self.graph.query] != n or (self.graph.key and keys != (n if self.graph.tied else m)):
            raise NotApplicable("the design fixes the number of positions")
        return Rows(self.steadied([call.normal(batch, tensor.legs) for tensor in self.leaves]), n, keys)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """What a call is given by `run`: inputs, and noise if it is drawn."""
        noise = [tensor for tensor in self.graph.of_role("noise") if self.module.training or tensor.always]
        return (*self.graph.of_role("input"), *noise)

    def run(self, *leaves: Tensor, module: Any = None, **options: Any) -> Any:
        """Calls the module with inputs and noise."""
        inputs = len(self.graph.of_role("input"))
        noise = dict(zip((tensor.name for tensor in self.leaves[inputs:]), leaves[inputs:], strict=True))
        module = self.module if module is None else module
        return module(*leaves[:inputs], **options, **({"noise": noise} if noise else {}))

    def steadied(self, leaves: list[Tensor]) -> list[Tensor]:
        return leaves if self.signed else [x.abs() for x in leaves]

    def mask(self, *shape: int, share: float = 0.7) -> Tensor:
        generator = torch.Generator().manual_seed(self.draw.randrange(2**31))
        return torch.rand(shape, generator=generator) < share

    def along(
        self, legs: Sequence[str | None], change: Callable[[Tensor, int], Tensor], leaves: Sequence[Tensor]
    ) -> list[Tensor]:
        """The leaves, or the first of them, changed along the dimension of each leg, which is counted from the last."""
        axes = [
            [own.index(leg) - len(own) for leg in legs if leg in own] for own in (leaf.legs for leaf in self.leaves)
        ]
        return [reduce(change, own, x) for x, own in zip(leaves, axes, strict=False)]

    def named(self, leaves: Sequence[Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """Those of the leaves that have these names."""
        return {leaf.name: x for leaf, x in zip(self.leaves, leaves, strict=True) if leaf.name in names}

    @property
    def pair(self) -> tuple[str | None, str | None]:
        """The query leg and the key leg."""
        return self.graph.query, self.graph.key

    def key_mask(self, *shape: int) -> dict[str, Tensor]:
        """A random key mask as an option, if the design takes one."""
        return {"key_mask": self.mask(*shape)} if self.module.mask_places.keys else {}

    @property
    def output_axis(self) -> int:
        """The dimension of the queries in the output, counted from the last."""
        legs = self.graph.legs_of(self.graph.output)
        return legs.index(self.graph.query) - len(legs)

    # Results

    def results(self, function: Function, inputs: Sequence[Tensor], module: Any = None) -> Results:
        """What a function of the inputs gives that calls the module; the states are those of before."""
        module = self.module if module is None else module
        for name, buffer in module.named_buffers():
            buffer.copy_(self.state[name])
        return results(Called(module, function), list(inputs), {})

    def same(self, function: Function, wanted: Function, inputs: Sequence[Tensor], module: Any = None) -> None:
        """Two functions of the inputs have equal outputs and gradients; `module` is the one that `wanted` calls."""
        expected = self.results(wanted, inputs, module)
        if not usable(expected):
            raise NotApplicable("the numbers are too large to compare")
        assert_same(self.results(function, inputs), expected)
