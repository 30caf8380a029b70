"""The words of a packed call, checked: where each document of a row begins, in the words of FlashAttention."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple
from weakref import ref

import torch

from tensornet_attn.errors import InputError

Tensor = torch.Tensor
INTEGERS = (torch.int32, torch.int64)
_last: list[tuple[ref[Tensor], int, list[int]]] = []  # the offsets that were read last: a GPU is waited for once


class Packed(NamedTuple):
    """What a call says of its documents: offsets of both sequence legs, or of either; positions; the longest one."""

    cu_seqlens: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen: int | None = None
    position_ids: Tensor | None = None

    @property
    def given(self) -> bool:
        """Whether any of it is given, which makes a packed call."""
        return any(value is not None for value in self)

    @property
    def word(self) -> str:
        """What makes it a packed call, for messages."""
        return next(name for name, value in zip(self._fields, self, strict=True) if value is not None)

    def refuse(self, design: str, mask: Tensor | None, noise: object) -> None:
        """Raises InputError for what no packed call takes."""
        if mask is not None:
            raise InputError(
                f"{design}: a call with {self.word} takes no 'mask': documents do not see each other as it is; hide "
                "keys by 'key_mask'."
            )
        if noise is not None:
            raise InputError(f"{design}: a call with {self.word} takes no 'noise': each document draws its own.")

    def offsets(self, design: str, rows: int, device: torch.device) -> tuple[str, Tensor]:
        """The offsets of the queries with their name, [documents + 1], not yet checked. Raises InputError."""
        name = "cu_seqlens" if self.cu_seqlens_q is None else "cu_seqlens_q"
        given = self.cu_seqlens if self.cu_seqlens_q is None else self.cu_seqlens_q
        if self.cu_seqlens is not None and self.cu_seqlens_q is not None:
            raise InputError(f"{design}: 'cu_seqlens' and 'cu_seqlens_q' are both given: leave one of them out.")
        if given is not None:
            return name, _offsets(design, name, given, device)
        if self.position_ids is None:
            raise InputError(f"{design}: {self.word} is given without 'cu_seqlens', the offsets of the documents.")
        if torch.compiler.is_compiling():
            raise InputError(f"{design}: how many documents 'position_ids' have is not known here: give 'cu_seqlens'.")
        starts = _positions(design, self.position_ids, rows, device) == 0
        starts[:1] = True  # where they do not begin at 0, `check_positions` says so
        return "position_ids", torch.cat((starts.nonzero()[:, 0], torch.tensor([rows], device=device)))

    def key_offsets(self, design: str, device: torch.device) -> tuple[str, Tensor] | None:
        """Those of the keys, where they have their own."""
        if self.cu_seqlens_k is None:
            return None
        return "cu_seqlens_k", _offsets(design, "cu_seqlens_k", self.cu_seqlens_k, device)

    def check_longest(self, design: str, longest: int | None = None) -> int | None:
        """`max_seqlen`. Raises InputError where it is no number, or below the longest document."""
        most = self.max_seqlen
        if most is None:
            return None
        if isinstance(most, bool) or not isinstance(most, (int, torch.SymInt)):
            raise InputError(f"{design}: max_seqlen is a {type(most).__name__}; give an int, the longest document.")
        if longest is not None and most < longest:
            raise InputError(f"{design}: max_seqlen is {most}, and the longest document has {longest} positions.")
        return most

    def check_positions(self, design: str, name: str, offsets: Tensor) -> None:
        """Raises InputError where `position_ids` are not those of the offsets."""
        if self.position_ids is None:
            return
        wanted = positions_in(offsets, self.position_ids.shape[-1])
        own = _positions(design, self.position_ids, len(wanted), offsets.device)
        if torch.compiler.is_compiling():
            torch._assert_async((own == wanted).all(), f"'position_ids' do not restart where '{name}' says.")
            return
        wrong = (own != wanted).nonzero()
        if len(wrong):
            at = int(wrong[0, 0])
            why = "they count from 0 in each document" if name == "position_ids" else f"as '{name}' says"
            raise InputError(
                f"{design}: position_ids are {int(own[at])} at position {at}, and must be {int(wanted[at])}: {why}."
            )


def positions_in(offsets: Tensor, rows: int) -> Tensor:
    """Where each row stands in its document, [rows]."""
    place = torch.arange(rows, device=offsets.device)
    return place - offsets[(torch.searchsorted(offsets.long(), place, right=True) - 1).clamp(0, len(offsets) - 1)]


def lengths_of(design: str, name: str, offsets: Tensor, rows: int) -> list[int]:
    """How many positions each document has, perhaps none. Raises InputError where these are not so many rows."""
    found = _on_host(offsets)
    if found[0] != 0:
        raise InputError(f"{design}: '{name}' begins at {found[0]}, not at 0.")
    for place, (one, other) in enumerate(pairwise(found), 1):
        if other < one:
            raise InputError(f"{design}: '{name}' falls: {other} at place {place} follows {one}.")
    if found[-1] != rows:
        raise InputError(f"{design}: '{name}' ends at {found[-1]}, and there are {rows} positions.")
    return [other - one for one, other in pairwise(found)]


def check_traced(design: str, name: str, offsets: Tensor, rows: int, most: int, least: int = 0) -> None:
    """The same where a traced program runs, which then ends. `least`: how many positions a document has there."""
    sizes = offsets.diff()
    right = (offsets[0] == 0) & (offsets[-1] == rows) & (sizes >= least).all() & (sizes <= most).all()
    empty = ", or a document is empty, whose losses and states are none" if least else ""
    sentence = f"{design}: '{name}' does not rise from 0 to the number of positions, or a document is above max_seqlen"
    sentence += f"{empty}."
    torch._assert_async(right, sentence)


def _offsets(design: str, name: str, given: Tensor, device: torch.device) -> Tensor:
    if not isinstance(given, torch.Tensor):
        raise InputError(f"{design}: '{name}' is a {type(given).__name__}; give a tensor, torch.int32 [documents + 1].")
    if given.dtype not in INTEGERS:
        raise InputError(f"{design}: '{name}' is {given.dtype}; give torch.int32.")
    if given.dim() != 1 or given.shape[0] < 2:
        raise InputError(f"{design}: '{name}' has shape {list(given.shape)}; give [documents + 1], at least 2.")
    if given.device != device:
        raise InputError(f"{design}: '{name}' is on {given.device}, the inputs are on {device}.")
    return given


def _on_host(offsets: Tensor) -> list[int]:
    """The numbers; of a tensor that was read before, as all layers of a model are given one, those of then."""
    if offsets.device.type == "cpu" or offsets.is_inference():  # no wait, or it does not say when it was changed
        return offsets.tolist()  # type: ignore[no-any-return]
    held, version, found = _last[0] if _last else (None, 0, [])
    if held is None or held() is not offsets or version != offsets._version:
        found = offsets.tolist()
        _last[:] = [(ref(offsets), offsets._version, found)]
    return found


def _positions(design: str, given: Tensor, rows: int, device: torch.device) -> Tensor:
    if not isinstance(given, torch.Tensor) or given.dtype not in INTEGERS:
        kind = given.dtype if isinstance(given, torch.Tensor) else f"a {type(given).__name__}"
        raise InputError(f"{design}: 'position_ids' is {kind}; give integers.")
    if tuple(given.shape) not in ((rows,), (1, rows)):
        raise InputError(f"{design}: 'position_ids' has shape {list(given.shape)}; give [1, {rows}].")
    if given.device != device:
        raise InputError(f"{design}: 'position_ids' is on {given.device}, the inputs are on {device}.")
    return given.reshape(-1)
