"""Checks the arguments of a packed call, which have the names that FlashAttention uses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import torch

from tensornet_attn.errors import InputError

Tensor = torch.Tensor
INTEGERS = (torch.int32, torch.int64)
Value = TypeVar("Value")
Mask = TypeVar("Mask", Tensor, None, Tensor | None)
MOST = 4  # values kept: a model reads offsets, or the masks of a source and a target
_kept: list[tuple[ref[Tensor], int | None, Callable[[Tensor], Any], Any]] = []  # read last, so that a GPU waits once


class Packed(NamedTuple):
    """The packing arguments of a call."""

    cu_seqlens: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen: int | None = None
    position_ids: Tensor | None = None

    @property
    def is_packed(self) -> bool:
        """Whether any argument is given, which makes the call packed."""
        return any(argument is not None for argument in self)

    @property
    def word(self) -> str:
        """The first given argument, for messages."""
        return next(name for name, argument in zip(self._fields, self, strict=True) if argument is not None)

    def refuse(self, design: str, mask: Tensor | None, noise: object) -> None:
        """Raises InputError for arguments that a packed call does not accept."""
        if mask is not None:
            raise InputError(
                f"{design}: a call with {self.word} accepts no 'mask': documents are already separated; hide "
                "keys with 'key_mask'."
            )
        if noise is not None:
            raise InputError(f"{design}: a call with {self.word} accepts no 'noise': each document draws its own.")

    def offsets(self, design: str, rows: int, device: torch.device) -> tuple[str, Tensor]:
        """Returns the name and the unchecked offsets of the queries, [documents + 1]. Raises InputError."""
        name = "cu_seqlens" if self.cu_seqlens_q is None else "cu_seqlens_q"
        offsets = self.cu_seqlens if self.cu_seqlens_q is None else self.cu_seqlens_q
        if self.cu_seqlens is not None and self.cu_seqlens_q is not None:
            raise InputError(f"{design}: 'cu_seqlens' and 'cu_seqlens_q' are both given: leave one out.")
        if offsets is not None:
            return name, _offsets(design, name, offsets, device)
        if self.position_ids is None:
            raise InputError(f"{design}: {self.word} is given without 'cu_seqlens': give the offsets of the documents.")
        if torch.compiler.is_compiling():
            raise InputError(
                f"{design}: torch.compile cannot count the documents in 'position_ids': give 'cu_seqlens'."
            )
        starts = _positions(design, self.position_ids, rows, device) == 0
        starts[:1] = True  # `check_positions` reports positions that do not begin at 0
        return "position_ids", torch.cat((starts.nonzero()[:, 0], torch.tensor([rows], device=device)))

    def key_offsets(self, design: str, device: torch.device) -> tuple[str, Tensor] | None:
        """Returns the name and the offsets of the keys, or None if they have none of their own."""
        if self.cu_seqlens_k is None:
            return None
        return "cu_seqlens_k", _offsets(design, "cu_seqlens_k", self.cu_seqlens_k, device)

    def check_longest(self, design: str, longest: int | None = None) -> int | None:
        """Returns `max_seqlen`. Raises InputError if it is not an int or below the longest document."""
        limit = self.max_seqlen
        if limit is None:
            return None
        if isinstance(limit, bool) or not isinstance(limit, (int, torch.SymInt)):
            raise InputError(
                f"{design}: max_seqlen is a {type(limit).__name__}; give an int, the length of the longest document."
            )
        if longest is not None and limit < longest:
            raise InputError(f"{design}: max_seqlen is {limit}, but the longest document has {longest} positions.")
        return limit

    def check_positions(self, design: str, name: str, offsets: Tensor) -> None:
        """Raises InputError if `position_ids` do not match the offsets."""
        if self.position_ids is None:
            return
        expected = positions_in(offsets, self.position_ids.shape[-1])
        ids = _positions(design, self.position_ids, len(expected), offsets.device)
        if torch.compiler.is_compiling():
            torch._assert_async((ids == expected).all(), f"'position_ids' do not restart at the offsets in '{name}'.")
            return
        wrong = (ids != expected).nonzero()
        if len(wrong):
            at = int(wrong[0, 0])
            why = "they count from 0 in each document" if name == "position_ids" else f"see '{name}'"
            raise InputError(
                f"{design}: 'position_ids' is {int(ids[at])} at position {at}, but must be {int(expected[at])}: {why}."
            )


def positions_in(offsets: Tensor, rows: int) -> Tensor:
    """The position of each row in its document, [rows]."""
    position = torch.arange(rows, device=offsets.device)
    return position - offsets[(torch.searchsorted(offsets.long(), position, right=True) - 1).clamp(0, len(offsets) - 1)]


def lengths_of(design: str, name: str, offsets: Tensor, rows: int) -> list[int]:
    """Returns the length of each document, which may be 0. Raises InputError if the offsets do not fit `rows` rows."""
    bounds: list[int] = on_host(offsets, torch.Tensor.tolist)
    if bounds[0] != 0:
        raise InputError(f"{design}: '{name}' begins at {bounds[0]}; it must begin at 0.")
    for index, (start, end) in enumerate(pairwise(bounds), 1):
        if end < start:
            raise InputError(f"{design}: '{name}' decreases: {end} at index {index} follows {start}.")
    if bounds[-1] != rows:
        raise InputError(f"{design}: '{name}' ends at {bounds[-1]}, but there are {rows} positions.")
    return [end - start for start, end in pairwise(bounds)]


def check_traced(design: str, name: str, offsets: Tensor, rows: int, max_length: int, least: int = 0) -> None:
    """The checks of `lengths_of` in a traced program, as assertions. `least`: the shortest length allowed."""
    sizes = offsets.diff()
    valid = (offsets[0] == 0) & (offsets[-1] == rows) & (sizes >= least).all() & (sizes <= max_length).all()
    empty = ", or a document is empty, so that it has no losses and states" if least else ""
    rule = f"'{name}' decreases, does not run from 0 to the number of positions, or exceeds max_seqlen{empty}"
    torch._assert_async(valid, f"{design}: {rule}.")


def _offsets(design: str, name: str, offsets: Tensor, device: torch.device) -> Tensor:
    if not isinstance(offsets, torch.Tensor):
        raise InputError(
            f"{design}: '{name}' is a {type(offsets).__name__}; give a tensor, torch.int32 [documents + 1]."
        )
    if offsets.dtype not in INTEGERS:
        raise InputError(f"{design}: '{name}' is {offsets.dtype}; give torch.int32.")
    if offsets.dim() != 1 or offsets.shape[0] < 2:
        raise InputError(f"{design}: '{name}' has shape {list(offsets.shape)}; give [documents + 1], at least 2.")
    if offsets.device != device:
        raise InputError(f"{design}: '{name}' is on {offsets.device}, but the inputs are on {device}.")
    return offsets


def on_host(tensor: Tensor, read: Callable[[Tensor], Value]) -> Value:
    """Returns `read(tensor)`, which waits for a GPU, and keeps it: all layers of a model receive the same tensor."""
    untracked = tensor.is_inference()
    unseen = untracked or tensor.is_cpu or torch.is_inference_mode_enabled()  # NumPy changes tensors too
    if unseen and not hasattr(tensor, "of_one_forward"):
        return read(tensor)
    version = None if untracked else tensor._version
    for reference, seen_version, reader, host_value in _kept:
        if reference() is tensor and version == seen_version and reader is read:
            return host_value
    host_value = read(tensor)
    _kept[:] = [*_kept[1 - MOST :], (ref(tensor), version, read, host_value)]
    return host_value


def of_one_forward(mask: Mask) -> Mask:
    """A mask, or offsets, as a tensor for the layers of one forward, in which it does not change: it is read once."""
    if mask is None or mask.is_floating_point() or torch.compiler.is_compiling():
        return mask
    mask = mask.view_as(mask)
    mask.of_one_forward = True  # type: ignore[attr-defined]
    return mask


def _positions(design: str, positions: Tensor, rows: int, device: torch.device) -> Tensor:
    if not isinstance(positions, torch.Tensor) or positions.dtype not in INTEGERS:
        kind = positions.dtype if isinstance(positions, torch.Tensor) else f"a {type(positions).__name__}"
        raise InputError(f"{design}: 'position_ids' is {kind}; give integers.")
    if tuple(positions.shape) not in ((rows,), (1, rows)):
        raise InputError(f"{design}: 'position_ids' has shape {list(positions.shape)}; give [1, {rows}].")
    if positions.device != device:
        raise InputError(f"{design}: 'position_ids' is on {positions.device}, but the inputs are on {device}.")
    return positions.reshape(-1)
