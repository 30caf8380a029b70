"""Decoding caches: the values that a layer stores for earlier positions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.plan.carried import HIDDEN
from tensornet_attn.plan.parts import Decoding
from tensornet_attn.runtime.precision import wide_dtype

Tensor = torch.Tensor
FIRST = 64  # initial capacity in positions of a cache without a maximum


class Cache:
    """The decoding cache of one compiled design: step values [batch..., legs of the step], by step name.

    Create it with `layer.new_cache()`. `layer(x, cache=cache)` reads it and appends the positions of the chunk.
    `length` counts the positions in the cache, `forgotten` those that `keep_last` has dropped. `nbytes` is the size of
    the stored values, `allocated` that of the tensors that hold them, both in bytes. `copy.deepcopy` copies a cache.
    """

    def __init__(self, design: str, decoding: Decoding, max_length: int | None = None, droppable: bool = False):
        """`droppable`: `keep_last` can drop the oldest positions, see `CompiledDesign.new_cache`."""
        self.droppable = droppable
        self.design, self.length, self.forgotten, self.max_length = design, 0, 0, max_length
        self._kept = {cached.name: cached for cached in decoding.kept}
        self._axes = {
            cached.name: cached.legs.index(cached.leg) - len(cached.legs) for cached in decoding.kept if cached.leg
        }
        self._sizes = decoding.sizes
        self._wide = {part.value_name for part in decoding.parts if part.wide}  # at least float32, as all states are
        self._levels = {
            operand.value_name for part in decoding.parts for operand in part.inputs if operand.how == "level"
        }
        self._held: dict[str, Tensor] = {}  # name -> tensor; a growing tensor has spare room after the rows in use
        self._written: dict[str, Tensor] = {}  # rows that the running call wrote after the rows in use
        self.shown: Tensor | None = None  # packed documents: [batch, positions], False = padding
        self._dtype = torch.get_default_dtype()  # dtype of the chunks; states are at least float32
        self.last: tuple[Any, ...] | None = None  # the previous call, if an equal call needs no checks
        self._stays = False  # whether states keep their memory
        self._own = set[str]()  # states in memory that nothing else reads, which a step overwrites
        self.spoiled = False  # whether a step has failed after it began to overwrite states

    def __getstate__(self) -> dict[str, Any]:
        """Without the previous call, whose serial number is valid in this process only."""
        return self.__dict__ | {"last": None}

    def allocate(self, batch: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        """Allocates all tensors of an empty cache, [batch..., legs]; they are reused until they are too short."""
        like = torch.empty(0, dtype=dtype, device=device)
        self._dtype, self._stays = dtype, True
        self._own = {*self._kept}
        for name, cached in self._kept.items():
            if cached.leg is None:
                self._held[name] = self.state(name, batch, like)
            else:
                like = like.to(wide_dtype(dtype) if name in self._wide else dtype)
                self._room(name, like.new_empty(()).expand(*batch, *self._sizes[name]), 1)

    @property
    def croppable(self) -> bool:
        """Whether `crop` works for every length: it does not if the cache has a state or a window."""
        return all(cached.leg is not None and cached.reach is None for cached in self._kept.values())

    def state(self, name: str, batch: Sequence[int], like: Tensor) -> Tensor:
        """The state `name`, or its initial value in an empty cache."""
        if name in self._held:
            return self._held[name]
        wide = wide_dtype(like.dtype)
        first = HIDDEN if name in self._levels else 0.0
        return like.new_full((*batch, *self._sizes[name]), first, dtype=wide)

    def to_overwrite(self, name: str) -> Tensor:
        """The state `name`, which the running step overwrites: a copy, if others may read its memory."""
        self.spoiled = True
        if name not in self._own:
            self._held[name] = self._held[name].clone()
            self._own.add(name)
        return self._held[name]

    def __getitem__(self, name: str) -> Tensor:
        """Returns the stored values of a step, oldest position first, or a state. Raises KeyError for other names."""
        if self._kept[name].leg is not None:
            return self._rows(name, self._used(name))
        self._own -= set() if self._stays else {name}
        return self._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Size of the stored values in bytes."""
        return sum(self[name].numel() * held.element_size() for name, held in self._held.items())

    @property
    def allocated(self) -> int:
        """Size of the allocated tensors in bytes, spare room included."""
        return sum(held.numel() * held.element_size() for held in self._held.values())

    def __repr__(self) -> str:
        return f"Cache({self.design}: {self.length:,} positions, {self.nbytes:,} bytes in {len(self)} tensors)"

    def crop(self, length: int) -> None:
        """Keeps the first `length` positions; a negative `length` drops that many positions from the end.

        Raises InputError if the cache is shorter, or if a state or a window cannot be rewound.
        """
        length = self._whole("crop", length)
        length = length + self.length if length < 0 else length
        if not 0 <= length <= self.length:
            raise InputError(f"{self.design}: a cache of {self.length:,} positions cannot be cropped to {length:,}.")
        states = [name for name, cached in self._kept.items() if cached.leg is None]
        if states and length < self.length:
            raise InputError(
                f"{self.design}: cropping needs the values of each position, and '{states[0]}' is a state: one value "
                "for all positions."
            )
        for name, cached in self._kept.items():
            if cached.reach is not None and length < self.length and self.length > cached.reach + 1:
                raise InputError(
                    f"{self.design}: the cache cannot be cropped to {length:,} positions: it keeps only the last "
                    f"{cached.reach + 1:,} of '{name}'."
                )
        self.length, self.shown = length, None if self.shown is None or length == 0 else self.shown[..., :length]

    def keep_last(self, positions: int) -> None:
        """Drops the oldest positions, so that at most `positions` remain. States and windows do not change.

        Raises InputError if stored values depend on their absolute position; use `new_cache(droppable=True)` then.
        """
        positions = self._whole("keep_last", positions, 1)
        self._leave_inference_mode()
        rows = [name for name, cached in self._kept.items() if cached.leg is not None]
        if self.length <= positions or all(self._kept[name].reach is not None for name in rows):
            return
        placed = [name for name, cached in self._kept.items() if cached.placed]
        if placed:
            raise InputError(
                f"{self.design}: the oldest positions cannot be dropped: '{placed[0]}' depends on absolute positions; "
                "create the cache with new_cache(droppable=True)."
            )
        for name in rows:
            count = min(positions, self._used(name))
            last = self._rows(name, count).clone(memory_format=torch.contiguous_format)
            if self._stays:
                self._held[name].narrow(self._axes[name], 0, count).copy_(last)
            else:
                self._held[name] = last
        self.forgotten, self.length = self.forgotten + self.length - positions, positions
        self.shown = None if self.shown is None else self.shown[..., -positions:]

    @property
    def has_room(self) -> bool:
        """Whether one more position fits into the allocated tensors."""
        return all(self._held[name].shape[axis] > self.length for name, axis in self._axes.items())

    def appended(self, name: str, new: Tensor) -> Tensor:
        """All rows of a step with one more appended in place."""
        axis, held = self._axes[name], self._held[name]
        held.narrow(axis, self.length, 1).copy_(new)
        self._written[name] = new
        return held.narrow(axis, 0, self.length + 1)

    def step(self, new: Mapping[str, Tensor]) -> None:
        """Appends the values of one position, among `new`; the caller checks `has_room`."""
        for name, held in self._held.items():
            tensor = new[name]
            if self._kept[name].leg is None:
                if held is not tensor:
                    self._keep(name, tensor)
            elif self._written.pop(name, None) is not tensor:
                held.narrow(self._axes[name], self.length, 1).copy_(tensor)
        self.length, self.spoiled = self.length + 1, False

    def _keep(self, name: str, state: Tensor) -> None:
        """Stores a state that a call has computed."""
        if self._stays and name in self._held and not torch.is_grad_enabled():  # a backward may read it
            self._held[name].copy_(state)
        else:
            self._held[name] = state
            self._own.discard(name)

    def reorder(self, index: Tensor) -> None:
        """Reorders the batch, its first dimension, for beam search: sequence i becomes the old sequence index[i].

        index: integers, [sequences]. Raises InputError if the cache has no batch dimension, or an index is beyond it.
        """
        of_tensor = isinstance(index, Tensor)
        if not of_tensor or index.dtype not in (torch.int64, torch.int32) or index.ndim != 1 or index.is_meta:
            received = f"{index.dtype} {[*index.shape]}" if of_tensor else f"a {type(index).__name__}"
            received += " on meta" * (of_tensor and index.is_meta)
            raise InputError(f"{self.design}: reorder takes a tensor of indices, int64 [sequences], not {received}.")
        try:
            self._each(lambda held: held.index_select(0, index.to(held.device)))
        except IndexError:
            problem = f"an index is not one of the {self.batch} sequences of the cache"
            raise InputError(f"{self.design}: reorder: {problem}: {index.tolist()}.") from None

    select = reorder

    def repeat_interleave(self, repeats: int) -> None:
        """Repeats each sequence of the batch `repeats` times. Raises InputError if there is no batch dimension."""
        count = self._whole("repeat_interleave", repeats, 0)
        self._each(lambda held: held.repeat_interleave(count, 0))

    def to(self, *args: Any, **kwargs: Any) -> Cache:
        """Moves the cache, as `Tensor.to`, and returns it. States and sums of decays stay at least float32."""
        try:
            dtype = torch.empty(0, dtype=self._dtype).to(*args, **kwargs).dtype
            if not dtype.is_floating_point:
                raise TypeError(f"{dtype} has no floating-point numbers")
        except (RuntimeError, AssertionError, TypeError) as error:
            reason = str(error).partition("\n")[0].rstrip(".:")
            hint = "give a device, such as 'cpu' or 'cuda', or a dtype, such as torch.float32"
            raise InputError(f"{self.design}: the cache cannot be moved: {reason}; {hint}.") from None
        self.last, self._dtype = None, dtype
        for name, held in self._held.items():
            moved = held.to(*args, **kwargs)
            self._held[name] = moved.to(wide_dtype(moved.dtype)) if name in self._wide else moved
            self.shown = None if self.shown is None else self.shown.to(moved.device)
        return self

    def reset(self) -> None:
        """Empties the cache. Tensors that `new_cache(batch=...)` allocated are reused."""
        self.length, self.forgotten, self.last, self.shown, self.spoiled = 0, 0, None, None, False
        self._leave_inference_mode()
        self._written.clear()
        if not self._stays:
            self._held = {}
        for name in (name for name in self._held if self._kept[name].leg is None):
            self._held[name].fill_(HIDDEN if name in self._levels else 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Returns a dict: `length`, `forgotten`, `dtype` of the chunks, and `kept`, copies of the values by name."""
        kept = {name: self[name].clone() for name in self._held}
        shown = {} if self.shown is None else {"shown": self.shown.clone()}
        return {"length": self.length, "forgotten": self.forgotten, "dtype": self._dtype, "kept": kept, **shown}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`. Raises InputError if it is damaged, from another design or exceeds `max_length`."""
        stored = state if isinstance(state, Mapping) else {}
        for name in ("length", "forgotten", "dtype", "kept"):
            if name not in stored:
                raise InputError(f"{self.design}: the state dict has no '{name}': give the state_dict() of a cache.")
        length, forgotten = (
            self._whole(f"'{name}' of a state dict", state[name], 0) for name in ("length", "forgotten")
        )
        kept, shown = state["kept"], state.get("shown")
        for problem in self._problems(length, state["dtype"], kept, shown):
            raise InputError(f"{self.design}: {problem}.")
        self.reset()
        self._dtype = state["dtype"] if kept and not self._stays else self._dtype
        for name, tensor in kept.items():
            if self._kept[name].leg is not None:
                axis = self._axes[name]
                rows = tensor.shape[axis]
                like = self._held.get(name, tensor)
                self._room(name, tensor.to(like), rows).narrow(axis, 0, rows).copy_(tensor)
            elif self._stays:
                self._held[name].copy_(tensor)
            else:
                self._held[name] = tensor.to(wide_dtype(self._dtype), copy=True)
        self.length, self.forgotten = length, forgotten
        like = next(iter(self._held.values()), None)
        self.shown = None if shown is None or like is None else shown.to(like.device, copy=True)

    def _problems(self, length: int, dtype: Any, kept: Any, shown: Any) -> Iterator[str]:
        """Why the values of a state dict cannot be restored."""
        if getattr(dtype, "is_floating_point", None) is not True or not isinstance(kept, Mapping):
            yield "'dtype' or 'kept' of the state dict is damaged: give the state_dict() of a cache"
        if {*kept} != {*self._kept} and (kept or length):
            stored = ", ".join(map(str, kept)) or "nothing"
            yield f"the cache stores {', '.join(self._kept)}; the state dict has {stored}"
        if self.max_length is not None and length > self.max_length:
            yield f"the state dict has {length:,} positions; the cache has room for {self.max_length:,}"
        batches = {self._batch(name, held) for name, held in self._held.items() if self._stays and kept}
        for name, tensor in kept.items():
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.is_meta:
                yield f"'{name}' is no tensor of floating-point numbers in the state dict"
            cached = self._kept[name]
            sizes = [
                cached.rows(length) if leg == cached.leg else size
                for leg, size in zip(cached.legs, self._sizes[name], strict=True)
            ]
            batch = self._batch(name, tensor)
            stored_sizes = [*tensor.shape[len(batch) :]]
            if stored_sizes != sizes:
                yield f"'{name}' is [{' '.join(cached.legs)}] = {stored_sizes} in the state dict and {sizes} here"
            batches.add(batch)
        if len(batches) > 1:
            yield f"all tensors of a cache have the same batch dimensions, not {sorted(batches)}"
        shapes = {(*batch, length) for batch in batches}
        if shown is not None and kept and (getattr(shown, "dtype", None) != torch.bool or shown.shape not in shapes):
            yield "'shown' is no tensor of booleans, [batch, positions], in the state dict"

    def check(self, design: str, decoding: Decoding, batch: tuple[int, ...], like: Tensor, length: int) -> None:
        """Raises InputError if a chunk does not match the cache or exceeds the maximum length."""
        if (self.design, (*self._kept.values(),), self._sizes) != (design, decoding.kept, decoding.sizes):
            whose = f"{'another ' * (self.design == design)}'{self.design}'"
            raise InputError(f"{design}: this cache belongs to {whose}; create one with new_cache() of this layer.")
        if self.spoiled:
            raise InputError(f"{design}: a step has failed while it overwrote the states of this cache: call reset().")
        self._leave_inference_mode()
        if self.max_length is not None and length > self.max_length:
            raise InputError(
                f"{design}: the cache is full: it has room for {self.max_length:,} positions, not {length:,}."
            )
        for name, held in self._held.items():
            held_batch = self._batch(name, held)
            if held_batch != batch:
                raise InputError(
                    f"{design}: the cache has batch dimensions {list(held_batch)}, the chunk has {list(batch)}."
                )
        if self._held and (self._dtype, held.device) != (like.dtype, like.device):
            raise InputError(
                f"{design}: the cache holds {self._dtype} on {held.device}, the chunk is {like.dtype} on {like.device}."
            )

    @property
    def batch(self) -> int | None:
        """Size of the batch, its first dimension. Returns None if the cache is empty."""
        return next((held.shape[0] for held in self._held.values()), None)

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if any(held.ndim == len(self._kept[name].legs) for name, held in self._held.items()):
            raise InputError(f"{self.design}: the cache has no batch dimension.")
        self.last = None
        for name, held in self._held.items():
            axis = self._axes[name] if self._kept[name].leg else -1
            to = max(axis, -2)  # heads stay before positions, as `_room` lays them out
            self._held[name] = change(held.movedim(axis, to)).movedim(to, axis)
        self.shown = None if self.shown is None else change(self.shown)

    def visible(self, chunk: Tensor | None, length: int) -> Tensor | None:
        """Which of `length` keys are not padding of packed documents, [batch, keys]. Returns None if none is padding.

        `chunk`: visibility of the new keys.
        """
        masks = [mask for mask in (self.shown, chunk) if mask is not None]
        if not masks:
            return None
        before = masks[0].new_ones(len(masks[0]), self.length) if self.shown is None else self.shown
        now = before.new_ones(len(before), length - before.shape[-1]) if chunk is None else chunk
        return torch.cat((before, now), -1)

    def _leave_inference_mode(self) -> None:
        """Copies the tensors of torch.inference_mode after it has ended: they cannot be written, or have gradients."""
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return
        self._held = {name: held.clone() if held.is_inference() else held for name, held in self._held.items()}
        if self.shown is not None and self.shown.is_inference():
            self.shown = self.shown.clone()

    def _whole(self, method: str, number: int, least: int | None = None) -> int:
        """A whole number, of any type of integers, from `least`. Raises InputError."""
        with suppress(TypeError):
            count = int(operator.index(number))
            if least is None or count >= least:
                return count
        wanted = "" if least is None else f", {least} or more"
        raise InputError(f"{self.design}: {method} takes a whole number{wanted}, not {number!r}.")

    def _batch(self, name: str, held: Tensor) -> tuple[int, ...]:
        """Batch dimensions of the values of a step."""
        return tuple(held.shape[: max(0, held.ndim - len(self._kept[name].legs))])

    def _used(self, name: str) -> int:
        """Stored positions of a step."""
        return self._kept[name].rows(self.length)

    def _rows(self, name: str, count: int) -> Tensor:
        """The last `count` stored positions of a step."""
        return self._held[name].narrow(self._axes[name], self._used(name) - count, count)

    def extended(self, name: str, new: Tensor | None, reach: int | None) -> Tensor:
        """The stored rows, at most the last `reach`, followed by those of the chunk, if it has any."""
        if new is None:
            return self[name]
        axis, used = self._axes[name], self._used(name) if name in self._held else 0
        before = used if reach is None else min(used, reach)
        if before == 0:
            return new
        if self._held[name].dtype != new.dtype:
            raise InputError(
                f"{self.design}: the cache holds '{name}' in {self._held[name].dtype}, and this call computes it in "
                f"{new.dtype}: use autocast in both calls or in neither."
            )
        if torch.is_grad_enabled() or self._kept[name].reach is not None:  # a backward may still read the old rows
            return torch.cat((self._rows(name, before), new), axis)
        chunk = new.shape[axis]
        held = self._room(name, new, self.length + chunk)
        held.narrow(axis, self.length, chunk).copy_(new)  # after the rows in use: a failing call loses nothing
        self._written[name] = new
        return held.narrow(axis, self.length - before, before + chunk)

    def _room(self, name: str, new: Tensor, length: int) -> Tensor:
        """The tensor of a step, reallocated if it has no room for `length` positions."""
        axis, held, used = self._axes[name], self._held.get(name), self._used(name)
        if held is not None and held.shape[axis] >= length:
            return held
        shape = list(new.shape)
        shape[axis] = self._kept[name].rows(self.max_length or max(FIRST, 1 << (length - 1).bit_length()))
        to = max(axis, -2)  # heads before positions, as fused attention reads them
        grown = new.new_empty(torch.empty(shape, device="meta").movedim(axis, to).shape).movedim(to, axis)
        if held is not None:
            grown.narrow(axis, 0, used).copy_(held.narrow(axis, 0, used))
        self._held[name] = grown
        return grown

    def update(self, new: Mapping[str, Tensor], chunk: int, dtype: torch.dtype) -> None:
        """Stores the values of a chunk. Allocates everything first, so that a failure leaves the cache unchanged."""
        copies: list[tuple[Tensor, Tensor]] = []
        states: dict[str, Tensor] = {}
        for name, tensor in new.items():
            cached, written, tensor = self._kept[name], self._written.pop(name, None) is tensor, tensor.detach()
            if cached.leg is None:
                states[name] = tensor
            elif cached.reach is None:
                if not written:
                    room = self._room(name, tensor, self.length + chunk)
                    copies.append((room.narrow(self._axes[name], self.length, chunk), tensor))
            else:
                axis, count = self._axes[name], cached.rows(self.length + chunk)
                rows = torch.cat((self[name], tensor), axis) if name in self._held else tensor
                room = self._room(name, tensor, count).narrow(axis, 0, count)
                copies.append((room, rows.narrow(axis, rows.shape[axis] - count, count)))
        for room, tensor in copies:
            room.copy_(tensor)
        for name, tensor in states.items():
            self._keep(name, tensor)
        self._dtype, self.length = dtype, self.length + chunk


def check_cache(design: str, cache: object) -> None:
    """Raises InputError if a caller's cache is none of this package, such as a pair (keys, values)."""
    if not isinstance(cache, Cache):
        raise InputError(f"{design}: 'cache' is a {type(cache).__name__}; give a cache from new_cache() of this layer.")
