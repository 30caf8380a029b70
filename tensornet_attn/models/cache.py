"""The decoding cache of a model: one cache per design."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.module import CompiledDesign


class ModelCache(Mapping[str, Cache]):
    """The caches of a model's designs by sublayer, such as `layers.0.mixer`; created by `model.new_cache()`.

    `model(tokens, cache=cache)` reads the cache and adds the new positions. `length`: number of positions seen;
    `nbytes`: size in bytes. The caches of `cross` hold the source, all others the positions of the target.
    """

    def __init__(self, caches: Mapping[str, Cache]):
        self._caches = dict(caches)

    def __getitem__(self, sublayer: str) -> Cache:
        return self._caches[sublayer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._caches)

    def __len__(self) -> int:
        return len(self._caches)

    @property
    def length(self) -> int:
        """Number of positions seen, including dropped ones. Raises InputError after a call that failed midway."""
        lengths = dict[int, str]()
        for sublayer, cache in self._own():
            lengths.setdefault(cache.length + cache.forgotten, sublayer)
        if len(lengths) > 1:
            (longest, first), *_, (shortest, last) = sorted(lengths.items(), reverse=True)
            seen = f"'{first}' has seen {longest:,} positions, '{last}' {shortest:,}"
            raise InputError(f"a call with this cache has failed: {seen}; reset the cache.")
        return next(iter(lengths))

    @property
    def nbytes(self) -> int:
        """Size in bytes at the current length."""
        return sum(cache.nbytes for cache in self.values())

    def __repr__(self) -> str:
        return f"ModelCache({self.length:,} positions, {self.nbytes:,} bytes in {len(self)} designs)"

    def crop(self, length: int) -> None:
        """Removes all but the first `length` positions; a negative length removes that many from the end.

        Raises InputError if a design's cache cannot be cropped; the caches of earlier layers are cropped by then.
        """
        for _, cache in self._own():
            cache.crop(length)

    def keep_last(self, positions: int) -> None:
        """Drops all but the last positions; recurrent states and bands stay. See `Cache.keep_last`."""
        for _, cache in self._own():
            cache.keep_last(positions)

    @property
    def batch(self) -> int | None:
        """The batch size; None before the first call."""
        return next(filter(None, (cache.batch for cache in self.values())), None)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint stores, by name, [batch, ...] each; lengths and dtypes repeat per sequence."""
        batch, tensors = self.batch or 0, dict[str, torch.Tensor]()
        for sublayer, cache in self.items() if batch else ():
            state = cache.state_dict()
            tensors[f"{sublayer}/dtype"] = torch.zeros(batch, dtype=state["dtype"])
            for name in ("forgotten", "length"):
                tensors[f"{sublayer}/{name}"] = torch.full((batch,), state[name])
            for name, tensor in sorted(state["kept"].items()):  # processes gather them in this order
                tensors[f"{sublayer}/kept/{name}"] = tensor
        return tensors

    def with_tensors(self, named: Mapping[str, torch.Tensor]) -> ModelCache:
        """This cache, filled with the tensors that `tensors` returned."""
        for sublayer, cache in self.items():
            kept = dict[str, torch.Tensor]()
            state: dict[str, Any] = {"kept": kept}
            for path, tensor in named.items():
                where, _, name = path.partition("/")
                if where == sublayer and name in ("length", "forgotten", "dtype"):
                    state[name] = tensor.dtype if name == "dtype" else int(tensor[0])
                elif where == sublayer:
                    kept[name.removeprefix("kept/")] = tensor
            cache.load_state_dict(state)
        return self

    def reorder(self, index: torch.Tensor) -> None:
        """Replaces sequence i of the batch by sequence index[i], for beam search."""
        for cache in self.values():
            cache.reorder(index)

    select = reorder

    def repeat_interleave(self, repeats: int) -> None:
        """Repeats each sequence of the batch `repeats` times in a row."""
        for cache in self.values():
            cache.repeat_interleave(repeats)

    def reset(self) -> None:
        """Empties the cache."""
        for cache in self.values():
            cache.reset()

    def _own(self) -> Iterator[tuple[str, Cache]]:
        """The caches of the target's positions: all except those of the source."""
        return ((sublayer, cache) for sublayer, cache in self.items() if not sublayer.endswith(".cross"))


def caches_of(designs: Mapping[str, CompiledDesign], max_length: int | None, droppable: bool = False) -> ModelCache:
    """An empty cache for each design, by sublayer. Raises InputError with the sublayer of a design without one.

    `max_length`: number of target positions to allocate at once. `droppable`: the oldest positions can be dropped.
    """

    def cache_for(sublayer: str, new: Callable[..., Cache]) -> Cache:
        try:
            return new() if sublayer.endswith(".cross") else new(max_length=max_length, droppable=droppable)
        except InputError as error:
            raise InputError(f"{sublayer}: {error}") from error

    return ModelCache({sublayer: cache_for(sublayer, design.new_cache) for sublayer, design in designs.items()})
