"""A decoding step as a pure function: cached values are inputs and outputs, for torch.export and ONNX."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.plan.decoding import decoding_of

Tensor = torch.Tensor
PLACED = ("rows", "seen")  # kinds of inputs that depend on the position


def decoding_step(layer: CompiledDesign, first: bool = False) -> DecodingStep:
    """Returns a step with a cache as a pure function, `step(x, *kept) -> (y, *new_kept)`, for torch.export and ONNX.

    `first`: the step for the first chunk, `step(x)`. Raises InputError if the design cannot decode this way.
    """
    return DecodingStep(layer, first)


class DecodingStep(nn.Module):
    """A decoding step as a module: `step(x, *kept) -> (y, *new_kept)`; with `first`, `step(x)` starts a sequence.

    `kept` lists the names of the cached values in order; their tensors are [batch..., legs], a window with all of its
    positions. Give further inputs of the design after x.
    """

    def __init__(self, layer: CompiledDesign, first: bool = False):
        """Raises InputError if the step needs the number of positions and no cached value has it."""
        super().__init__()
        if not isinstance(layer, CompiledDesign):
            kind = type(layer).__name__
            raise InputError(f"decoding_step takes a compiled design, as ta.compile returns it, not a {kind}.")
        self.kept = (*layer.new_cache(),)  # plans all parts before tracing
        self.layer, self.first, self._decoding = layer, first, decoding_of(layer.plan.graph)
        has_all_positions = any(cached.leg is not None and cached.reach is None for cached in self._decoding.kept)
        placed = next(
            (part.value_name for part in self._decoding.parts if any(operand.how in PLACED for operand in part.inputs)),
            None,
        )
        if placed is not None and not has_all_positions and not first:
            raise InputError(
                f"{layer.design.name}: the step depends on more than the cached values: '{placed}' needs the absolute "
                "position; call the layer with new_cache()."
            )
        self.train(layer.training)

    def forward(self, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Returns the output and the new cached values."""
        count = len(others) - (0 if self.first else len(self.kept))
        if count < 0:
            expected = ", ".join(self.kept)
            raise InputError(f"{self.layer.design.name}: {len(others)} tensors after x; give {expected}.")
        cache = _StatelessCache(self.layer.design.name, self._decoding)
        if not self.first:
            cache.set(dict(zip(self.kept, others[count:], strict=True)), x.dtype)
        y = self.layer(x, *others[:count], cache=cache)
        return (y, *(cache[name] for name in self.kept))


class _StatelessCache(Cache):
    """A cache for one call that modifies no tensor; it returns new ones."""

    def set(self, kept: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        """Sets the cached values; the longest gives the number of positions."""
        self._held, self._dtype = {name: tensor.detach() for name, tensor in kept.items()}, dtype
        growing = [cached for cached in self._kept.values() if cached.leg is not None]
        longest = next((cached for cached in growing if cached.reach is None), growing[0] if growing else None)
        self.length = 1 if longest is None else kept[longest.name].shape[self._axes[longest.name]]

    def __getitem__(self, name: str) -> Tensor:
        return self._held[name]

    def extended(self, name: str, new: Tensor | None, reach: int | None) -> Tensor:
        if new is None or name not in self._held:
            return self._held[name] if new is None else new
        axis, held = self._axes[name], self._held[name]
        if reach is None:
            self._written[name] = torch.cat((held, new), axis)
            return self._written[name]
        before = min(held.shape[axis], reach)
        return torch.cat((held.narrow(axis, held.shape[axis] - before, before), new), axis)

    def update(self, new: Mapping[str, Tensor], chunk: int, dtype: torch.dtype) -> None:
        for name, tensor in new.items():
            cached, axis = self._kept[name], self._axes[name] if self._kept[name].leg else 0
            if cached.leg is None or name not in self._held:
                rows = tensor
            elif name in self._written:
                rows = self._written[name]
            else:
                rows = torch.cat((self._held[name], tensor), axis)
            if cached.reach is not None:
                count = min(rows.shape[axis], cached.reach + 1)
                rows = rows.narrow(axis, rows.shape[axis] - count, count)
            self._held[name] = rows
        self.length += chunk
