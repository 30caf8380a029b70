"""A step with a cache as a function: what is kept comes as tensors and goes as tensors, for torch.export and ONNX."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.plan.decoding import decoding_of

Tensor = torch.Tensor
PLACED = ("rows", "seen")  # inputs of a part that have a number for each position


def decoding_step(layer: CompiledDesign, first: bool = False) -> DecodingStep:
    """A step with a cache as a function, `step(x, *kept) -> (y, *kept after)`, for torch.export and ONNX.

    `first`: of the first chunk, `step(x)`. Raises InputError where the design cannot decode so.
    """
    return DecodingStep(layer, first)


class DecodingStep(nn.Module):
    """`step(x, *kept) -> (y, *kept after)`: a chunk behind what is kept; `first`: behind nothing, `step(x)`.

    `kept`: the names of what is kept, in order. Its tensors are [batch..., legs], those of a window with all of their
    positions. Other inputs of the design stand behind x.
    """

    def __init__(self, layer: CompiledDesign, first: bool = False):
        """Raises InputError where the length is needed and nothing that is kept has it."""
        super().__init__()
        self.kept = (*layer.new_cache(),)  # which plans, before anything is traced
        self.layer, self.first, self._decoding = layer, first, decoding_of(layer.plan.graph)
        every = any(one.leg is not None and one.reach is None for one in self._decoding.kept)
        placed = next((one.value for one in self._decoding.parts if any(i.how in PLACED for i in one.inputs)), None)
        if placed is not None and not every and not first:
            raise InputError(
                f"{layer.design.name}: a step is no function of what is kept alone: '{placed}' asks where a position "
                "stands; call the layer with new_cache()."
            )
        self.train(layer.training)

    def forward(self, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """The output, and all that is kept then."""
        count = len(others) - (0 if self.first else len(self.kept))
        if count < 0:
            wanted = ", ".join(self.kept)
            raise InputError(f"{self.layer.design.name}: {len(others)} tensors behind x; a step needs {wanted}.")
        cache = _StatelessCache(self.layer.design.name, self._decoding)
        if not self.first:
            cache.set(dict(zip(self.kept, others[count:], strict=True)), x.dtype)
        y = self.layer(x, *others[:count], cache=cache)
        return (y, *(cache[name] for name in self.kept))


class _StatelessCache(Cache):
    """A cache of one call, which changes no tensor: what is kept after it is another one."""

    def set(self, kept: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        """Takes what is kept; the longest says how many positions there are."""
        self._held, self._dtype = {name: value.detach() for name, value in kept.items()}, dtype
        every = [one for one in self._kept.values() if one.leg is not None]
        longest = next((one for one in every if one.reach is None), every[0] if every else None)
        self.length = 1 if longest is None else kept[longest.name].shape[self._axis(longest.name)]

    def __getitem__(self, name: str) -> Tensor:
        return self._held[name]

    def extended(self, name: str, new: Tensor | None, reach: int | None) -> Tensor:
        if new is None or name not in self._held:
            return self._held[name] if new is None else new
        axis, held = self._axis(name), self._held[name]
        if reach is None:
            self._written[name] = torch.cat((held, new), axis)
            return self._written[name]
        before = min(held.shape[axis], reach)
        return torch.cat((held.narrow(axis, held.shape[axis] - before, before), new), axis)

    def update(self, new: Mapping[str, Tensor], chunk: int, dtype: torch.dtype) -> None:
        for name, value in new.items():
            one, axis = self._kept[name], self._axis(name) if self._kept[name].leg else 0
            if one.leg is None or name not in self._held:
                rows = value
            elif name in self._written:
                rows = self._written[name]
            else:
                rows = torch.cat((self._held[name], value), axis)
            if one.reach is not None:
                count = min(rows.shape[axis], one.reach + 1)
                rows = rows.narrow(axis, rows.shape[axis] - count, count)
            self._held[name] = rows
        self.length += chunk
