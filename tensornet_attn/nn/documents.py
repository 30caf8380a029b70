"""Batches of the documents of a packed row: groups of equal length, or all padded to one length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

Tensor = torch.Tensor
Work = Callable[[int], float]  # length -> work of a sequence, in units of an empty call


class Group(NamedTuple):
    """Documents computed by one call, with their common numbers of queries and keys, padding included."""

    documents: tuple[int, ...]
    queries: int
    keys: int
    padded: bool

    def shown(self, keys: Sequence[int], device: torch.device) -> Tensor:
        """Which keys are not padding, [documents, keys]."""
        own = torch.tensor([keys[one] for one in self.documents], device=device)
        return torch.arange(self.keys, device=device) < own[:, None]


def grouped(lengths: Sequence[tuple[int, int]], work: Callable[[], Work] | None) -> list[Group]:
    """Groups documents, given as (queries, keys), so that each group has one length.

    `work`: given if padding is allowed. Lengths are then merged if the padding costs less than another call. Queries
    and keys are padded by the same number of rows, so that distances do not change. A document without queries is in no
    group, except the first document if all are empty.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for place, length in enumerate(lengths):
        if length[0]:
            alike.setdefault(length, []).append(place)
    alike = alike or {lengths[0]: [0]}
    if work is None or len(alike) == 1:
        found = [Group(tuple(own), *length, False) for length, own in alike.items()]
    else:
        found = _padded(alike, work())
    return sorted(found)


def _padded(alike: dict[tuple[int, int], list[int]], work: Work) -> list[Group]:
    """Merges lengths, longest first: each joins the previous group with padding, or starts a new group."""
    buckets: list[list[tuple[int, int]]] = []
    for length in sorted(alike, key=lambda length: (length[1] - length[0], -length[0])):
        longest = buckets[-1][0] if buckets else None
        steady = longest is not None and longest[1] - longest[0] == length[1] - length[0]
        if longest is not None and steady and len(alike[length]) * (work(longest[0]) - work(length[0])) <= 1:
            buckets[-1].append(length)
        else:
            buckets.append([length])
    return [
        Group(tuple(sorted(one for length in bucket for one in alike[length])), *bucket[0], len(bucket) > 1)
        for bucket in buckets
    ]


class Rows(NamedTuple):
    """Index tensors that gather and scatter all groups along one sequence leg; padding repeats a document's last row.

    `index`: packed row of each group row, groups concatenated. `back`: position among these of each packed row. Both
    are None if they change nothing.
    """

    shapes: tuple[tuple[int, int], ...]  # (documents, positions) of each group
    index: Tensor | None  # type: ignore[assignment]  # hides the method of tuples
    back: Tensor | None

    @staticmethod
    def of(groups: Sequence[Group], lengths: Sequence[int], side: str, device: torch.device) -> Rows:
        shapes = tuple((len(group.documents), int(getattr(group, side))) for group in groups)
        order = [one for group in groups for one in group.documents]
        if order == [*range(len(lengths))] and not any(group.padded for group in groups):
            return Rows(shapes, None, None)
        starts = [0, *accumulate(lengths)]
        sizes = [length for count, length in shapes for _ in range(count)]
        firsts = [0, *accumulate(sizes)]
        moved = [0] * len(lengths)  # of documents that are in no group there is nothing to move
        for one, at in zip(order, firsts, strict=False):
            moved[one] = at - starts[one]
        rows = [[starts[one], lengths[one] - 1, at, size] for one, at, size in zip(order, firsts, sizes, strict=False)]
        start, last, begin, size = torch.tensor(rows, device=device).unbind(1)
        of = torch.repeat_interleave(size, output_size=firsts[-1])
        inside = torch.minimum(torch.arange(firsts[-1], device=device) - begin[of], last[of])
        index = (start[of] + inside).clamp(min=0)  # a document without keys has padding of the row before it
        move, own = torch.tensor([moved, [*lengths]], device=device)
        back = torch.arange(starts[-1], device=device) + move.repeat_interleave(own, output_size=starts[-1])
        return Rows(shapes, index, back)

    def split(self, value: Tensor, axis: int) -> list[Tensor]:
        """Splits a tensor of the packed row into one per group, [documents, ...] with the positions on the axis."""
        value = value.movedim(axis, 0)
        value = value if self.index is None else value.index_select(0, self.index)
        parts = value.split([count * length for count, length in self.shapes])
        return [part.unflatten(0, shape).movedim(1, 1 + axis) for part, shape in zip(parts, self.shapes, strict=True)]

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenates the results of the groups, [documents * positions, ...] each, in packed order."""
        value = parts[0] if len(parts) == 1 else torch.cat([*parts])
        return value if self.back is None else value.index_select(0, self.back)

    def places(self, device: torch.device) -> list[Tensor]:
        """The packed rows of each group, [documents, positions]."""
        sizes = [count * length for count, length in self.shapes]
        index = torch.arange(sum(sizes), device=device) if self.index is None else self.index
        return [part.unflatten(0, shape) for part, shape in zip(index.split(sizes), self.shapes, strict=True)]

    def pairs(self, keys: Rows, value: Tensor, query: int, key: int) -> list[Tensor]:
        """Splits a tensor with both sequence legs, at these axes, into the pairs within documents, one per group."""
        places = zip(self.places(value.device), keys.places(value.device), strict=True)
        return [_pairs(value, query, key, rows, columns) for rows, columns in places]


class Padded(NamedTuple):
    """Index tensors that pad all documents to one length.

    `index`: packed row of each padded row, [documents, positions]. `shown`: False = padding. `back`: position of each
    packed row among the padded ones, flattened.
    """

    index: Tensor  # type: ignore[assignment]  # hides the method of tuples
    shown: Tensor
    back: Tensor

    @staticmethod
    def of(offsets: Tensor, rows: int, most: int, before: bool) -> Padded:
        """Pads to `most` after the last row, or `before` the first; shapes do not depend on the offsets."""
        offsets = offsets.long()
        start, size = offsets[:-1, None], offsets.diff()[:, None]
        place, row = torch.arange(most, device=offsets.device), torch.arange(rows, device=offsets.device)
        place = place - (most - size) if before else place
        inside = torch.minimum(place.clamp(min=0), (size - 1).clamp(min=0))
        index = (start + inside).clamp(max=rows - 1)  # an empty document at the end repeats the last row
        own = torch.searchsorted(offsets, row, right=True) - 1
        back = own * most + row - offsets[own]
        return Padded(index, (place >= 0) & (place < size), back + (most - size[own, 0]) if before else back)

    def split(self, value: Tensor, axis: int) -> Tensor:
        """A tensor of the packed row as [documents, ...] with the positions on the axis."""
        value = value.movedim(axis, 0).index_select(0, self.index.flatten())
        return value.unflatten(0, self.index.shape).movedim(1, 1 + axis)

    def pairs(self, keys: Padded, value: Tensor, query: int, key: int) -> Tensor:
        """The pairs within each document of a tensor with both sequence legs, at these axes."""
        return _pairs(value, query, key, self.index, keys.index)

    def joined(self, value: Tensor) -> Tensor:
        """A result [documents * positions, ...] in packed order."""
        return value.index_select(0, self.back)


def _pairs(value: Tensor, query: int, key: int, rows: Tensor, columns: Tensor) -> Tensor:
    found = value.movedim((query, key), (0, 1))[rows[:, :, None], columns[:, None, :]]
    return found.movedim((1, 2), (1 + query, 1 + key))
