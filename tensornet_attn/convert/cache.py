"""The layer of a converted attention in a Hugging Face cache."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tensornet_attn.errors import InputError
from tensornet_attn.hf.cache import DesignCacheLayer
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.module import CompiledDesign

Replay = Callable[[Cache, int], object]  # computes the first positions of a call again, into a cache
REPLACED = ("DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer", "StaticSlidingWindowLayer")


class ConvertedLayer(DesignCacheLayer):
    """The decoding cache of a design, and the offsets of the call's positions from its own, [batch, 1 or m].

    If `generate` requests recording, as for windows with assisted decoding, `crop` can remove positions that the cache
    itself cannot: it restores the cache from before a call, and computes the remaining positions of the call again.
    """

    def __init__(self, cache: Cache, records: bool = False):
        super().__init__(cache)
        self.shifts: Tensor | None = None
        self.records = records
        self._calls: list[tuple[Cache, Replay]] = []  # since the last crop

    def activate_past_recording(self) -> None:
        self.records = True

    def record(self, replay: Replay) -> None:
        """Records the cache before a call, and a function that computes the first positions of the call again."""
        if self.records:
            self._calls.append((copy.deepcopy(self.cache), replay))

    def crop(self, tokens_to_remove: int) -> None:
        length = max(0, self.cache.length + tokens_to_remove)
        before = [call for call in self._calls if call[0].length <= length]
        try:
            super().crop(tokens_to_remove)
        except InputError:
            if tokens_to_remove > 0 or not before:
                raise
            cache, replay = before[-1]
            if count := length - cache.length:
                replay(cache, count)
            self.cache = cache
        self._calls = []
        if self.shifts is not None and self.shifts.shape[-1] > 1:
            self.shifts = self.shifts[:, :length]

    def reset(self) -> None:
        super().reset()
        self.shifts, self._calls = None, []

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._change(lambda shifts: shifts.index_select(0, beam_idx.to(shifts.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._change(lambda shifts: shifts.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._change(lambda shifts: shifts[indices.to(shifts.device)])

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Changes the batch of the offsets, and drops recorded calls, which have the old batch."""
        self._calls = []
        if self.shifts is not None and len(self.shifts) > 1:
            self.shifts = change(self.shifts)


class TrainedLayer(ConvertedLayer):
    """The layer of a training call, which stores nothing. A later call with this cache raises InputError."""

    def __init__(self, cache: Cache, where: str):
        super().__init__(cache)
        self.where = where

    def get_seq_length(self) -> int:
        raise InputError(f"{self.where}: a training call with gradients fills no cache; call model.eval() before it.")


def layer_of(past: Any, index: int, design: CompiledDesign, where: str, training: bool) -> ConvertedLayer | None:
    """The cache layer of a design. It replaces an empty layer of the model's own class.

    Returns None in training with gradients, because a model then creates a cache that is never read. Raises InputError
    if the class of the cache is not supported, or if it already contains keys and values of another attention.
    """
    past = getattr(past, "self_attention_cache", past)
    while len(past.layers) <= index and past.layer_class_to_replicate is not None:
        past.layers.append(past.layer_class_to_replicate())
    layer = past.layers[index]
    if isinstance(layer, ConvertedLayer):
        layer.get_seq_length()
        return layer
    if type(layer).__name__ not in REPLACED or past.offloading:
        kind = f"offloaded {type(past).__name__}" if past.offloading else type(layer).__name__
        raise InputError(f"{where}: {kind} is not supported with a design; leave out cache_implementation.")
    if int(layer.get_seq_length()):
        raise InputError(f"{where}: the cache contains keys and values of another model; give an empty cache.")
    if training and torch.is_grad_enabled():
        past.layers[index] = TrainedLayer(design.new_cache(), where)
        return None
    room = layer.max_cache_len if type(layer).__name__ == "StaticLayer" else None
    records = getattr(layer, "record_past", False)
    converted = past.layers[index] = ConvertedLayer(design.new_cache(max_length=room), records)
    return converted
