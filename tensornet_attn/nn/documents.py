"""Documents of a packed row as batches: in groups of one length, or all padded to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

Tensor = torch.Tensor
Work = Callable[[int], float]  # what a sequence of so many positions takes, in calls that do nothing


class Group(NamedTuple):
    """Documents that one call computes, each with so many queries and keys, some of them padding."""

    documents: tuple[int, ...]
    queries: int
    keys: int
    padded: bool

    def shown(self, keys: Sequence[int], device: torch.device) -> Tensor:
        """Which keys are no padding, [documents, keys]."""
        own = torch.tensor([keys[one] for one in self.documents], device=device)
        return torch.arange(self.keys, device=device) < own[:, None]


def grouped(lengths: Sequence[tuple[int, int]], work: Callable[[], Work] | None) -> list[Group]:
    """Documents with so many queries and keys each, in groups; those of one length are in one.

    `work`: where documents may be padded. A length then joins a longer one if its padding takes less than a call.
    Queries and keys get as many rows of padding, so that their distances stay. A document without queries is in none,
    but for the first where all are so.
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
    """Lengths from the longest on: each joins the one before, with its padding, or begins a group."""
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
    """The rows of all groups along one sequence leg; what is padding repeats the last row of its document.

    `index`: which row of the packed ones each is, [documents, positions]; `shown`: which are no padding; `back`: where
    in these, as one dimension, each packed row went.
    """

    shapes: tuple[tuple[int, int], ...]  # of each group: documents, positions
    index: Tensor | None
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
        for one, first in zip(order, firsts, strict=False):
            moved[one] = first - starts[one]
        rows = [
            [starts[one], lengths[one] - 1, first, size] for one, first, size in zip(order, firsts, sizes, strict=False)
        ]
        start, last, first, size = torch.tensor(rows, device=device).unbind(1)
        of = torch.repeat_interleave(size, output_size=firsts[-1])
        inside = torch.minimum(torch.arange(firsts[-1], device=device) - first[of], last[of])
        index = (start[of] + inside).clamp(min=0)  # a document without keys has padding of the row before it
        move, own = torch.tensor([moved, [*lengths]], device=device)
        back = torch.arange(starts[-1], device=device) + move.repeat_interleave(own, output_size=starts[-1])
        return Rows(shapes, index, back)

    def split(self, value: Tensor, axis: int) -> list[Tensor]:
        """A tensor of the packed row as one a group, [documents, ...] with the documents' positions on the axis."""
        value = value.movedim(axis, 0)
        value = value if self.index is None else value.index_select(0, self.index)
        parts = value.split([count * length for count, length in self.shapes])
        return [part.unflatten(0, shape).movedim(1, 1 + axis) for part, shape in zip(parts, self.shapes, strict=True)]

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Results of the groups, [documents * positions, ...] each, as the packed row has them."""
        value = parts[0] if len(parts) == 1 else torch.cat([*parts])
        return value if self.back is None else value.index_select(0, self.back)

    def places(self, device: torch.device) -> list[Tensor]:
        """Where the rows of each group stand in the packed row, [documents, positions]."""
        sizes = [count * length for count, length in self.shapes]
        index = torch.arange(sum(sizes), device=device) if self.index is None else self.index
        return [part.unflatten(0, shape) for part, shape in zip(index.split(sizes), self.shapes, strict=True)]

    def pairs(self, keys: Rows, value: Tensor, query: int, key: int) -> list[Tensor]:
        """A tensor with both sequence legs, at these axes, as one of pairs within each document, a group."""
        places = zip(self.places(value.device), keys.places(value.device), strict=True)
        return [_pairs(value, query, key, rows, columns) for rows, columns in places]


class Padded(NamedTuple):
    """All documents padded to one length, with rows of their own.

    `index`: which row of the packed ones each is, [documents, positions]; `shown`: which are no padding; `back`: where
    in these, as one dimension, each packed row went.
    """

    index: Tensor
    shown: Tensor
    back: Tensor

    @staticmethod
    def of(offsets: Tensor, rows: int, most: int, before: bool) -> Padded:
        """Padded to `most` behind their last row, or `before` their first; shapes do not depend on the offsets."""
        offsets = offsets.long()
        start, size = offsets[:-1, None], offsets.diff()[:, None]
        place, row = torch.arange(most, device=offsets.device), torch.arange(rows, device=offsets.device)
        place = place - (most - size) if before else place
        inside = torch.minimum(place.clamp(min=0), (size - 1).clamp(min=0))
        index = (start + inside).clamp(max=rows - 1)  # an empty document at the end has the last row
        own = torch.searchsorted(offsets, row, right=True) - 1
        back = own * most + row - offsets[own]
        return Padded(index, (place >= 0) & (place < size), back + (most - size[own, 0]) if before else back)

    def split(self, value: Tensor, axis: int) -> Tensor:
        """A tensor of the packed row as [documents, ...], with the documents' positions on the axis."""
        value = value.movedim(axis, 0).index_select(0, self.index.flatten())
        return value.unflatten(0, self.index.shape).movedim(1, 1 + axis)

    def pairs(self, keys: Padded, value: Tensor, query: int, key: int) -> Tensor:
        """A tensor with both sequence legs, at these axes, as pairs within each document."""
        return _pairs(value, query, key, self.index, keys.index)

    def joined(self, value: Tensor) -> Tensor:
        """A result [documents * positions, ...] as the packed row has it."""
        return value.index_select(0, self.back)


def _pairs(value: Tensor, query: int, key: int, rows: Tensor, columns: Tensor) -> Tensor:
    found = value.movedim((query, key), (0, 1))[rows[:, :, None], columns[:, None, :]]
    return found.movedim((1, 2), (1 + query, 1 + key))
