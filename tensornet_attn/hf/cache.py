"""Decoding caches of designs as Hugging Face caches."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

from tensornet_attn.errors import InputError
from tensornet_attn.models.cache import ModelCache
from tensornet_attn.nn import cache as decoding


class DesignCacheLayer(CacheLayerMixin):
    """The cache of one design as a layer for `transformers.Cache(layers=[...])`, which `generate` reorders and crops.

    `cache` is the cache from `layer.new_cache()`; calls of the design read and write it.

    >>> import tensornet_attn as ta
    >>> layer = ta.compile(ta.load("mla", legs={"f": 32}), causal=True).eval()
    >>> kept = DesignCacheLayer(layer.new_cache())
    >>> y = layer(torch.zeros(2, 3, 32), cache=kept.cache)
    >>> kept.batch_repeat_interleave(2)
    >>> kept.crop(-1)
    >>> kept.get_seq_length(), kept.cache["C"].shape[0]
    (2, 4)
    """

    supports_early_init = False  # tensors are created by the first call; there are no heads to create them for earlier

    def __init__(self, cache: decoding.Cache):
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> NoReturn:
        raise InputError(
            f"{self.cache.design}: a design does not cache external keys and values; pass its cache to the call."
        )

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> NoReturn:
        self.lazy_initialization(key_states, value_states)

    def get_seq_length(self) -> int:
        return self.cache.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.length + query_length, 0

    def get_max_length(self) -> int:
        return -1 if self.cache.max_length is None else self.cache.max_length

    def crop(self, tokens_to_remove: int) -> None:
        """Drops the last `-tokens_to_remove` positions. Raises InputError if the design cannot be cropped."""
        if tokens_to_remove > 0:
            raise InputError(
                f"{self.cache.design}: 'tokens_to_remove' is {tokens_to_remove}; give minus the number of positions to "
                "drop."
            )
        self.cache.crop(max(0, self.cache.length + tokens_to_remove))

    def reset(self) -> None:
        self.cache.reset()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.cache.reorder(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.cache.repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps these sequences of the batch, given as indices or as one boolean each."""
        self.cache.select(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)


class TensornetCache(Cache):
    """The cache of a model: one layer per design that sees the positions of the chunk. `kept`: the caches by place."""

    def __init__(self, kept: ModelCache):
        caches = {place: cache for place, cache in kept.items() if not place.endswith(".cross")}
        super().__init__(layers=[DesignCacheLayer(cache) for cache in caches.values()])
        self.kept = kept


class TensornetEncoderDecoderCache(EncoderDecoderCache):
    """The cache of a decoder: the target positions, and the source. `kept`: the caches by place."""

    def __init__(self, kept: ModelCache):
        cross = (cache for place, cache in kept.items() if place.endswith(".cross"))
        super().__init__(TensornetCache(kept), Cache(layers=[DesignCacheLayer(cache) for cache in cross]))
        self.kept = kept

    def check_dynamic_cache(self, method: str) -> None:
        """Accepts every method: caches of designs support cropping, repeating and selecting."""
