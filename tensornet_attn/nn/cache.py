"""Decoding caches: what a layer keeps of the positions it has seen, and the calls that read and write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.graph.model import Graph
from tensornet_attn.nn.made import Arguments, Made, Result
from tensornet_attn.plan.decoding import Decoding, Given, Part, decoding_of
from tensornet_attn.plan.make import make_plan
from tensornet_attn.plan.model import Plan

Tensor = torch.Tensor
FIRST = 64  # positions that a cache without a maximum has room for at first


class Cache:
    """What a compiled design keeps of the positions it has seen, by name: [batch..., legs of the result].

    `layer.new_cache()` makes one; `layer(x, cache=cache)` reads it and adds the chunk's positions. `length`: positions
    seen, without the `forgotten` that `keep_last` has dropped. `nbytes`: of what is kept; `allocated`: of the tensors
    that hold it. `copy.deepcopy` makes another one.
    """

    def __init__(self, design: str, decoding: Decoding, max_length: int | None = None, movable: bool = False):
        """`movable`: the decoding is one of a graph that moves, see `new_cache`."""
        self.movable = movable
        self.design, self.length, self.forgotten, self.max_length = design, 0, 0, max_length
        self._kept = {one.name: one for one in decoding.kept}
        self._held: dict[str, Tensor] = {}  # a growing one has room behind what is in use
        self._dtype = torch.get_default_dtype()  # of the chunks; states are of float32 at least

    def __getitem__(self, name: str) -> Tensor:
        """What is kept of a result, the oldest position first, or a state. Raises KeyError."""
        return self._held[name] if self._kept[name].leg is None else self._rows(name, self._used(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept at this length."""
        return sum(self[name].numel() * held.element_size() for name, held in self._held.items())

    @property
    def allocated(self) -> int:
        """Bytes of the tensors that hold it, room to grow included."""
        return sum(held.numel() * held.element_size() for held in self._held.values())

    def __repr__(self) -> str:
        return f"Cache({self.design}: {self.length:,} positions, {self.nbytes:,} bytes in {len(self)} tensors)"

    def crop(self, length: int) -> None:
        """Forgets all but the first positions; negative: as many less. Raises InputError where these are gone."""
        length = length + self.length if length < 0 else length
        if not 0 <= length <= self.length:
            raise InputError(f"{self.design}: a cache of {self.length:,} positions cannot be cropped to {length:,}.")
        states = [name for name, one in self._kept.items() if one.leg is None]
        if states and length < self.length:
            raise InputError(f"{self.design}: the cache cannot go back: '{states[0]}' is one for all positions.")
        rings = {name: one.reach + 1 for name, one in self._kept.items() if one.reach is not None}
        for name, rows in rings.items():
            if length < self.length and self.length > rows:
                raise InputError(
                    f"{self.design}: the cache cannot go back to {length:,} positions: of '{name}' it keeps the last "
                    f"{rows:,}."
                )
        for name in rings.keys() & self._held.keys():
            self._held[name] = self._held[name].narrow(self._axis(name), 0, min(length, rings[name])).clone()
        self.length = length

    def keep_last(self, positions: int) -> None:
        """Forgets the oldest positions of what is kept of every one. States, and bands alone, stay as they are.

        Raises InputError where what is kept says where its position stands.
        """
        rows = [name for name, one in self._kept.items() if one.leg is not None]
        if self.length <= positions or all(self._kept[name].reach is not None for name in rows):
            return
        placed = [name for name, one in self._kept.items() if one.placed]
        if placed:
            raise InputError(
                f"{self.design}: the oldest positions cannot be dropped: '{placed[0]}' says where a position stands; "
                "make the cache by new_cache(movable=True)."
            )
        for name in rows:
            count = min(positions, self._used(name))
            self._held[name] = self._rows(name, count).clone(memory_format=torch.contiguous_format)
        self.forgotten, self.length = self.forgotten + self.length - positions, positions

    def reorder(self, index: Tensor) -> None:
        """Sequence i of the batch, its first dimension, becomes what index[i] was, as a beam search needs.

        Raises InputError where there is no batch.
        """
        self._each(lambda held: held.index_select(0, index.to(held.device)))

    select = reorder

    def repeat_interleave(self, repeats: int) -> None:
        """Each sequence of the batch stands there so many times, in a row. Raises InputError without a batch."""
        self._each(lambda held: held.repeat_interleave(repeats, 0))

    def to(self, *args: Any, **kwargs: Any) -> Cache:
        """Moves what is kept, as `Tensor.to`; gives the cache. States stay of float32 at least."""
        for name, held in self._held.items():
            moved = held.to(*args, **kwargs)
            self._dtype = torch.empty(0, dtype=self._dtype).to(*args, **kwargs).dtype
            self._held[name] = moved if self._kept[name].leg else moved.to(state_dtype(moved.dtype))
        return self

    def reset(self) -> None:
        """Forgets everything."""
        self.length, self.forgotten, self._held = 0, 0, {}

    def state_dict(self) -> dict[str, Any]:
        """The length and the dtype of what was seen, and what is kept, by name."""
        seen = {"length": self.length, "forgotten": self.forgotten, "dtype": self._dtype}
        return seen | {name: self[name].clone() for name in self._held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave. Raises InputError where it is of another design."""
        names = {*state} - {"length", "forgotten", "dtype"}
        if names and names != {*self._kept}:
            of, wanted = ", ".join(sorted(names)), ", ".join(self._kept)
            raise InputError(f"{self.design}: the cache keeps {wanted}, and the state is of {of}.")
        for name, one in self._kept.items() if names else ():
            rows, wanted_rows = state[name].shape[self._axis(name)] if one.leg else 0, one.rows(int(state["length"]))
            if one.leg and rows != wanted_rows:
                raise InputError(f"{self.design}: '{name}' has {rows:,} positions, and {wanted_rows:,} are to be kept.")
        self.length, self.forgotten = int(state["length"]), int(state.get("forgotten", 0))
        self._dtype = state["dtype"]
        self._held = {name: state[name].clone() for name in names}

    def check(self, design: str, decoding: Decoding, batch: tuple[int, ...], like: Tensor, length: int) -> None:
        """Raises InputError where a chunk does not go on with what is kept, or goes beyond the maximum."""
        if (self.design, (*self._kept.values(),)) != (design, decoding.kept):
            raise InputError(f"{design}: this is a cache of '{self.design}'; make one by new_cache() of this layer.")
        if self.max_length is not None and length > self.max_length:
            raise InputError(
                f"{design}: the cache is full: it has room for {self.max_length:,} positions, not {length:,}."
            )
        for name, held in self._held.items():
            own = tuple(held.shape[: held.ndim - len(self._kept[name].legs)])
            if own != batch:
                raise InputError(f"{design}: the cache is of a batch {list(own)}, the chunk of {list(batch)}.")
        if self._held and (self._dtype, held.device) != (like.dtype, like.device):
            kinds = [f"{one} on {where}" for one, where in ((self._dtype, held.device), (like.dtype, like.device))]
            raise InputError(f"{design}: the cache holds {kinds[0]}, the chunk is {kinds[1]}.")

    @property
    def batch(self) -> int | None:
        """The sequences of the batch, its first dimension; None where nothing is kept."""
        return next((held.shape[0] for held in self._held.values()), None)

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if any(held.ndim == len(self._kept[name].legs) for name, held in self._held.items()):
            raise InputError(f"{self.design}: the cache is of one sequence, without a batch dimension.")
        self._held = {name: change(held) for name, held in self._held.items()}

    def _axis(self, name: str) -> int:
        one = self._kept[name]
        return one.legs.index(str(one.leg)) - len(one.legs)

    def _used(self, name: str) -> int:
        """Positions that are kept of a result."""
        return self._kept[name].rows(self.length)

    def _rows(self, name: str, count: int) -> Tensor:
        """The last positions of what is kept."""
        return self._held[name].narrow(self._axis(name), self._used(name) - count, count)

    def with_chunk(self, name: str, new: Tensor | None, reach: int | None) -> Tensor:
        """The positions of a chunk, if it has any, behind those that are kept, or behind the last `reach` of these."""
        if new is None:
            return self[name]
        axis, used = self._axis(name), self._used(name) if name in self._held else 0
        before = used if reach is None else min(used, reach)
        if before == 0:
            return new
        if torch.is_grad_enabled() or self._kept[name].reach is not None:  # a backward may read what stands here now
            return torch.cat((self._rows(name, before), new), axis)
        chunk = new.shape[axis]
        held = self._room(name, new, self.length + chunk)
        held.narrow(axis, self.length, chunk).copy_(new)  # behind what is in use: nothing is lost if the call fails
        return held.narrow(axis, self.length - before, before + chunk)

    def _room(self, name: str, new: Tensor, length: int) -> Tensor:
        """What holds a result, with room for so many positions."""
        axis, held = self._axis(name), self._held.get(name)
        if held is not None and held.shape[axis] >= length:
            return held
        shape = list(new.shape)
        shape[axis] = self.max_length or max(FIRST, 1 << (length - 1).bit_length())
        if axis < -2:  # heads in front of positions, as fused attention reads them
            wider = new.new_empty(torch.empty(shape, device="meta").movedim(axis, -2).shape).movedim(-2, axis)
        else:
            wider = new.new_empty(shape)
        if held is not None:
            wider.narrow(axis, 0, self.length).copy_(held.narrow(axis, 0, self.length))
        self._held[name] = wider
        return wider

    def take(self, new: Mapping[str, Tensor], chunk: int, dtype: torch.dtype) -> None:
        """Keeps the values of a chunk of this dtype."""
        self._dtype = dtype
        for name, value in new.items():
            value, reach = value.detach(), self._kept[name].reach
            if self._kept[name].leg is None:
                self._held[name] = value
                continue
            axis = self._axis(name)
            if reach is None:
                self._room(name, value, self.length + chunk).narrow(axis, self.length, chunk).copy_(value)
            else:
                rows = torch.cat((self[name], value), axis) if name in self._held else value
                count = min(rows.shape[axis], reach + 1)
                self._held[name] = rows.narrow(axis, rows.shape[axis] - count, count).clone()
        self.length += chunk


class Decoder:
    """The parts of a compiled design that run with a cache, planned for one query and for many."""

    def __init__(self, graph: Graph, make: Callable[[Plan], Made], plan: Plan, movable: bool = False):
        self.decoding = decoding_of(graph, movable)
        self._make, self._plan = make, plan
        self._made: dict[tuple[str, bool], tuple[Plan, Made]] = {}

    def call(
        self, module: Any, cache: Cache, values: Mapping[str, Tensor], given: Arguments, whole: Callable[[], Result]
    ) -> Result:
        """The output of a chunk, whose positions are then in the cache.

        `values`: the inputs by name. `given`: with the lengths of the chunk and of all keys. `whole`: the call without
        a cache, which is the same where nothing has been seen.
        """
        found, parts, memory = dict(values), self.decoding.parts, self.decoding.memory
        first = cache.length == 0
        out = whole() if first else None
        for part in parts[:-1]:
            if part.value in self._behind_kept if first else not (memory and part.value in {*cache}):
                found[part.value] = self._run(module, cache, part, found, given)
        if out is None:
            out = self._run(module, cache, parts[-1], found, given)
        if first or not memory:
            leg = self.decoding.graph.key if memory else self.decoding.graph.query
            dtype = next(iter(values.values())).dtype
            cache.take({name: found[name] for name in cache}, given.lengths[str(leg)], dtype)
        return out

    @cached_property
    def _states(self) -> set[str]:
        return {one.name for one in self.decoding.kept if one.leg is None}

    @cached_property
    def _behind_kept(self) -> set[str]:
        """The values that what is kept is made of."""
        found = {one.name for one in self.decoding.kept}
        for part in reversed(self.decoding.parts):
            if part.value in found:
                found |= {one.value for one in part.inputs if one.how == "chunk"}
        return found

    def _run(self, module: Any, cache: Cache, part: Part, values: Mapping[str, Tensor], given: Arguments) -> Tensor:
        """The value of a part."""
        graph, design = part.graph, self.decoding.graph
        chunk = given.lengths[str(design.query)]
        keys = given.lengths[str(design.key)] if design.key else cache.length + chunk
        if part.reach is not None:
            keys = min(keys, part.reach + chunk)
        plan, made = self._planned(part, chunk == 1)
        lengths = {str(graph.query): chunk, str(graph.key): keys}
        inputs = tuple(
            self._input(module, cache, part, one, values, given._replace(lengths=lengths)) for one in part.inputs
        )
        mask, key_mask = (None if mask is None else mask[..., -keys:] for mask in (given.mask, given.key_mask))
        like = next(iter(values.values())).dtype
        own = state_dtype(like) if part.carried else like
        if state_dtype(like) != like:  # what is read of states stays of their dtype until something else reads it
            inputs = tuple(value.to(own) for value in inputs)
        value = made.run(_With(module, plan, own), Arguments(inputs, lengths, mask, key_mask, None))
        assert isinstance(value, Tensor)
        return value if part.value != self.decoding.graph.output else value.to(like)

    def _input(
        self,
        module: Any,
        cache: Cache,
        part: Part,
        one: Given,
        values: Mapping[str, Tensor],
        given: Arguments,
    ) -> Tensor:
        if one.how == "chunk":
            value = values[one.value]
            legs = part.graph.tensor[one.name].legs
            if given.key_mask is None or part.value not in self._states or part.graph.query not in legs:
                return value
            visible = given.key_mask[..., -value.shape[one.axis] :]  # nothing of a hidden position reaches a state
            shape = [*visible.shape[:-1], *[1] * len(legs)]
            shape[one.axis] = visible.shape[-1]
            return torch.where(visible.view(shape), value, 0)
        if one.how == "kept":
            return cache.with_chunk(one.value, values.get(one.value), part.reach)
        chunk, keys = (given.lengths[str(leg)] for leg in (part.graph.query, part.graph.key))
        like, seen = next(iter(values.values())), cache.length + chunk
        rank = len(self.decoding.graph.tensor[next(iter(values))].legs)
        batch = like.shape[: like.ndim - rank]
        if one.how in ("state", "level"):
            sizes = (part.graph.leg[leg].size or 1 for leg in part.graph.legs_of(one.name))
            wide = state_dtype(like.dtype)
            first = torch.finfo(wide).max if one.how == "level" else 0.0
            return cache[one.value] if cache.length else like.new_full((*batch, *sizes), first, dtype=wide)
        if one.how == "place":
            return torch.arange(1, chunk + 1, dtype=state_dtype(like.dtype), device=like.device)
        if one.how == "visible":
            return like.new_ones(chunk) if given.key_mask is None else given.key_mask[..., -chunk:].to(like.dtype)
        if one.how in ("seen", "empty"):
            return like.new_zeros(()).expand(*batch, keys if one.how == "seen" else chunk)
        rows: Tensor = getattr(module, one.value)
        count = keys if part.graph.key in part.graph.tensor[one.name].legs else chunk
        return rows.narrow(one.axis, seen - count, count)

    def _planned(self, part: Part, one: bool) -> tuple[Plan, Made]:
        if (part.value, one) not in self._made:
            target = replace(self._plan.target, workload="decoding" if one else "prefill", n=None, m=None, memory=None)
            plan = make_plan(part.graph, self._plan.backend, target)
            self._made[part.value, one] = plan, self._make(plan)
        return self._made[part.value, one]


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of a state of chunks of this dtype: half a precision forgets what is small beside a sum."""
    return torch.promote_types(dtype, torch.float32)


class _With:
    """A module with another plan, and its weights in a dtype."""

    def __init__(self, module: Any, plan: Plan, dtype: torch.dtype):
        self.__dict__.update(_module=module, plan=plan, _dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return value.to(self._dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
