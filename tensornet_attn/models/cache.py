"""What a model keeps of the positions it has seen: a decoding cache for each of its designs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.module import CompiledDesign


class ModelCache(Mapping[str, Cache]):
    """The caches of a model's designs by their places, such as `layers.0.mixer`; `model.new_cache()` makes it.

    `model(tokens, cache=cache)` reads it and adds the chunk's positions. `length`: positions seen; `nbytes`: of what is
    kept. Those of `cross` keep the source, all others the positions of the target.
    """

    def __init__(self, caches: Mapping[str, Cache]):
        self._caches = dict(caches)

    def __getitem__(self, place: str) -> Cache:
        return self._caches[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._caches)

    def __len__(self) -> int:
        return len(self._caches)

    @property
    def length(self) -> int:
        """Positions seen, those that `keep_last` has dropped too.

        Raises InputError after a call that failed between two layers.
        """
        lengths = dict[int, str]()
        for place, cache in self._own():
            lengths.setdefault(cache.length + cache.forgotten, place)
        if len(lengths) > 1:
            (most, first), *_, (least, last) = sorted(lengths.items(), reverse=True)
            seen = f"'{first}' has seen {most:,} positions, '{last}' {least:,}"
            raise InputError(f"a call with this cache has failed: {seen}; reset it.")
        return next(iter(lengths))

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept at this length."""
        return sum(cache.nbytes for cache in self.values())

    def __repr__(self) -> str:
        return f"ModelCache({self.length:,} positions, {self.nbytes:,} bytes in {len(self)} designs)"

    def crop(self, length: int) -> None:
        """Forgets all but the first positions; negative: as many less.

        Raises InputError where a design cannot go back; those before it have.
        """
        for _, cache in self._own():
            cache.crop(length)

    def keep_last(self, positions: int) -> None:
        """Forgets the oldest positions where all are kept; states and bands stay. See `Cache.keep_last`."""
        for _, cache in self._own():
            cache.keep_last(positions)

    @property
    def batch(self) -> int | None:
        """The sequences of the batch; None before the first call."""
        return next(filter(None, (cache.batch for cache in self.values())), None)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds of it, by name, [batch, ...] each: numbers and dtypes once for each sequence."""
        found = dict[str, torch.Tensor]()
        for place, cache in self.items() if self.batch else ():
            state = cache.state_dict()
            found[f"{place}/dtype"] = torch.zeros(self.batch, dtype=state["dtype"])
            for name in ("forgotten", "length"):
                found[f"{place}/{name}"] = torch.full((self.batch,), state[name])
            for name, value in sorted(state["kept"].items()):  # processes gather them in this order
                found[f"{place}/kept/{name}"] = value
        return found

    def with_tensors(self, named: Mapping[str, torch.Tensor]) -> ModelCache:
        """This cache, holding what `tensors` gave."""
        for place, cache in self.items():
            kept = dict[str, torch.Tensor]()
            state: dict[str, Any] = {"kept": kept}
            for path, value in named.items():
                where, _, name = path.partition("/")
                if where == place and name in ("length", "forgotten", "dtype"):
                    state[name] = value.dtype if name == "dtype" else int(value[0])
                elif where == place:
                    kept[name.removeprefix("kept/")] = value
            cache.load_state_dict(state)
        return self

    def reorder(self, index: torch.Tensor) -> None:
        """Sequence i of the batch becomes what index[i] was, as a beam search needs."""
        for cache in self.values():
            cache.reorder(index)

    select = reorder

    def repeat_interleave(self, repeats: int) -> None:
        """Each sequence of the batch stands there so many times, in a row."""
        for cache in self.values():
            cache.repeat_interleave(repeats)

    def reset(self) -> None:
        """Forgets everything."""
        for cache in self.values():
            cache.reset()

    def _own(self) -> Iterator[tuple[str, Cache]]:
        """The caches of the chunk's positions: all but those of a source."""
        return ((place, cache) for place, cache in self.items() if not place.endswith(".cross"))


def caches_of(designs: Mapping[str, CompiledDesign], max_length: int | None, droppable: bool = False) -> ModelCache:
    """An empty cache for each design, by its place. Raises InputError where one can keep none, with its place.

    `max_length`: positions of the target that there is room for from the first call on. `droppable`: the oldest can be
    dropped.
    """

    def made(place: str, new: Callable[..., Cache]) -> Cache:
        try:
            return new() if place.endswith(".cross") else new(max_length=max_length, droppable=droppable)
        except InputError as error:
            raise InputError(f"{place}: {error}") from error

    return ModelCache({place: made(place, design.new_cache) for place, design in designs.items()})
