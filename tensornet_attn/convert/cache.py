"""The layer of a Hugging Face cache that a converted attention keeps its past in."""

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

Replay = Callable[[Cache, int], object]  # computes the first positions of a call once more, into a cache
REPLACED = ("DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer", "StaticSlidingWindowLayer")


class ConvertedLayer(DesignCacheLayer):
    """What a design keeps, and how far the positions of the call were from those that it counts, [batch, 1 or m].

    Where `generate` asks for it, as it does of windows that have an assistant, it goes back further than what is kept
    allows: to the cache as it was before a call, and over the positions of the call that stay, computed again.
    """

    def __init__(self, cache: Cache, records: bool = False):
        super().__init__(cache)
        self.shifts: Tensor | None = None
        self.records = records
        self._calls: list[tuple[Cache, Replay]] = []  # since the last crop

    def activate_past_recording(self) -> None:
        self.records = True

    def record(self, replay: Replay) -> None:
        """Remembers the cache before a call, and how to compute the first positions of the call once more."""
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
        """Of the batch: calls before it are of another one."""
        self._calls = []
        if self.shifts is not None and len(self.shifts) > 1:
            self.shifts = change(self.shifts)


class TrainedLayer(ConvertedLayer):
    """The layer of a call in training, which keeps nothing: a later call with this cache raises InputError."""

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
    records = getattr(held, "record_past", False)
    found = past.layers[index] = ConvertedLayer(design.new_cache(max_length=room), records)
    return found
