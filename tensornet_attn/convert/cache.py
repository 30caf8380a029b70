"""The layer of a Hugging Face cache that a converted attention keeps its past in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensornet_attn.errors import InputError
from tensornet_attn.hf.cache import DesignCacheLayer
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.module import CompiledDesign

REPLACED = ("DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer", "StaticSlidingWindowLayer")


class ConvertedLayer(DesignCacheLayer):
    """What a design keeps, and how far the positions of the call were from those that it counts, [batch, 1 or m]."""

    def __init__(self, cache: Cache):
        super().__init__(cache)
        self.shifts: Tensor | None = None

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if self.shifts is not None and self.shifts.shape[-1] > 1:
            self.shifts = self.shifts[:, : self.cache.length]

    def reset(self) -> None:
        super().reset()
        self.shifts = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        if self.shifts is not None and len(self.shifts) > 1:
            self.shifts = self.shifts.index_select(0, beam_idx.to(self.shifts.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        if self.shifts is not None and len(self.shifts) > 1:
            self.shifts = self.shifts.repeat_interleave(repeats, 0)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        if self.shifts is not None and len(self.shifts) > 1:
            self.shifts = self.shifts[indices.to(self.shifts.device)]


class TrainedLayer(ConvertedLayer):
    """Stands for a call in training, which keeps nothing; whoever would go on from it is told so."""

    def __init__(self, cache: Cache, where: str):
        super().__init__(cache)
        self.where = where

    def get_seq_length(self) -> int:
        raise InputError(
            f"{self.where}: a call in training with gradients keeps no cache; call model.eval() before it."
        )


def layer_of(past: Any, index: int, design: CompiledDesign, where: str, training: bool) -> ConvertedLayer | None:
    """The layer of a cache that a design keeps its past in; it takes the place of an empty one of the model's own kind.

    None in training with gradients, where a model makes a cache that nobody reads: nothing is kept then. Raises
    InputError where the cache is of a kind that a design cannot serve, or holds keys and values of others.
    """
    past = getattr(past, "self_attention_cache", past)
    while len(past.layers) <= index and past.layer_class_to_replicate is not None:
        past.layers.append(past.layer_class_to_replicate())
    held = past.layers[index]
    if isinstance(held, ConvertedLayer):
        held.get_seq_length()
        return held
    if type(held).__name__ not in REPLACED or past.offloading:
        kind = f"offloaded {type(past).__name__}" if past.offloading else type(held).__name__
        raise InputError(f"{where}: a design keeps its past in no {kind}; leave out cache_implementation.")
    if int(held.get_seq_length()):
        raise InputError(f"{where}: the cache holds keys and values of another model; give an empty one.")
    if training and torch.is_grad_enabled():
        past.layers[index] = TrainedLayer(design.new_cache(), where)
        return None
    room = held.max_cache_len if type(held).__name__ == "StaticLayer" else None
    found = past.layers[index] = ConvertedLayer(design.new_cache(max_length=room))
    return found
