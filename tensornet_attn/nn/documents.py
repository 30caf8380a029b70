"""Batches of the documents of a packed row: groups of equal length, or all padded to one length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

Tensor = torch.Tensor
Work = Callable[[int], float]  # length -> work of a sequence, in units of an empty call


class DocumentGroup(NamedTuple):
    """Documents computed by one call, with their common numbers of queries and keys, padding included."""

    documents: tuple[int, ...]
    queries: int
    keys: int
    padded: bool

    def shown(self, keys: Sequence[int], device: torch.device) -> Tensor:
        """Which keys are not padding, [documents, keys]."""
        key_counts = torch.tensor([keys[document] for document in self.documents], device=device)
        return torch.arange(self.keys, device=device) < key_counts[:, None]


def grouped(lengths: Sequence[tuple[int, int]], work: Callable[[], Work] | None) -> list[DocumentGroup]:
    """Groups documents, given as (queries, keys), so that each group has one length.

    `work`: given if padding is allowed. Lengths are then merged if the padding costs less than another call. Queries
    and keys are padded by the same number of rows, so that distances do not change. A document without queries is in no
    group, except the first document if all are empty.
    """
    by_length: dict[tuple[int, int], list[int]] = {}
    for document, length in enumerate(lengths):
        if length[0]:
            by_length.setdefault(length, []).append(document)
    by_length = by_length or {lengths[0]: [0]}
    if work is None or len(by_length) == 1:
        groups = [DocumentGroup(tuple(documents), *length, False) for length, documents in by_length.items()]
    else:
        groups = _padded(by_length, work())
    return sorted(groups)


def _padded(by_length: dict[tuple[int, int], list[int]], work: Work) -> list[DocumentGroup]:
    """Merges lengths, longest first: each joins the previous group with padding, or starts a new group."""
    buckets: list[list[tuple[int, int]]] = []
    for length in sorted(by_length, key=lambda length: (length[1] - length[0], -length[0])):
        longest = buckets[-1][0] if buckets else None
        steady = longest is not None and longest[1] - longest[0] == length[1] - length[0]
        if longest is not None and steady and len(by_length[length]) * (work(longest[0]) - work(length[0])) <= 1:
            buckets[-1].append(length)
        else:
            buckets.append([length])
    return [
        DocumentGroup(
            tuple(sorted(document for length in bucket for document in by_length[length])), *bucket[0], len(bucket) > 1
        )
        for bucket in buckets
    ]


class RowIndices(NamedTuple):
    """Index tensors that gather and scatter all groups along one sequence leg; padding repeats a document's last row.

    `index`: packed row of each group row, groups concatenated. `back`: position among these of each packed row. Both
    are None if they change nothing.
    """

    shapes: tuple[tuple[int, int], ...]  # (documents, positions) of each group
    index: Tensor | None  # type: ignore[assignment]  # hides the method of tuples
    back: Tensor | None

    @staticmethod
    def of(groups: Sequence[DocumentGroup], lengths: Sequence[int], side: str, device: torch.device) -> RowIndices:
        shapes = tuple((len(group.documents), int(getattr(group, side))) for group in groups)
        order = [document for group in groups for document in group.documents]
        if order == [*range(len(lengths))] and not any(group.padded for group in groups):
            return RowIndices(shapes, None, None)
        starts = [0, *accumulate(lengths)]
        sizes = [length for count, length in shapes for _ in range(count)]
        firsts = [0, *accumulate(sizes)]
        moved = [0] * len(lengths)  # of documents that are in no group there is nothing to move
        for document, first in zip(order, firsts, strict=False):
            moved[document] = first - starts[document]
        rows = [
            [starts[document], lengths[document] - 1, first, size]
            for document, first, size in zip(order, firsts, sizes, strict=False)
        ]
        start, last, begin, size = torch.tensor(rows, device=device).unbind(1)
        owner = torch.repeat_interleave(size, output_size=firsts[-1])
        inside = torch.minimum(torch.arange(firsts[-1], device=device) - begin[owner], last[owner])
        index = (start[owner] + inside).clamp(min=0)  # a document without keys has padding of the row before it
        move, document_lengths = torch.tensor([moved, [*lengths]], device=device)
        inverse = torch.arange(starts[-1], device=device) + move.repeat_interleave(
            document_lengths, output_size=starts[-1]
        )
        return RowIndices(shapes, index, inverse)

    def split(self, tensor: Tensor, axis: int) -> list[Tensor]:
        """Splits a tensor of the packed row into one per group, [documents, ...] with the positions on the axis."""
        tensor = tensor.movedim(axis, 0)
        tensor = tensor if self.index is None else tensor.index_select(0, self.index)
        chunks = tensor.split([count * length for count, length in self.shapes])
        return [
            chunk.unflatten(0, shape).movedim(1, 1 + axis) for chunk, shape in zip(chunks, self.shapes, strict=True)
        ]

    def joined(self, outputs: Sequence[Tensor]) -> Tensor:
        """Concatenates the results of the groups, [documents * positions, ...] each, in packed order."""
        output = outputs[0] if len(outputs) == 1 else torch.cat([*outputs])
        return output if self.back is None else output.index_select(0, self.back)

    def places(self, device: torch.device) -> list[Tensor]:
        """The packed rows of each group, [documents, positions]."""
        rows = sum(count * length for count, length in self.shapes) if self.back is None else len(self.back)
        return self.split(torch.arange(rows, device=device), 0)

    def pairs(self, keys: RowIndices, tensor: Tensor, query: int, key: int) -> list[Tensor]:
        """Splits a tensor with both sequence legs, at these axes, into the pairs within documents, one per group."""
        indices = zip(self.places(tensor.device), keys.places(tensor.device), strict=True)
        return [_pairs(tensor, query, key, rows, columns) for rows, columns in indices]


class Padded(NamedTuple):
    """Index tensors that pad all documents to one length.

    `index`: packed row of each padded row, [documents, positions]. `shown`: False = padding. `back`: position of each
    packed row among the padded ones, flattened.
    """

    index: Tensor  # type: ignore[assignment]  # hides the method of tuples
    shown: Tensor
    back: Tensor

    @staticmethod
    def of(offsets: Tensor, rows: int, max_length: int, before: bool) -> Padded:
        """Pads to `max_length` after the last row, or `before` the first; shapes do not depend on the offsets."""
        offsets = offsets.long()
        start, size = offsets[:-1, None], offsets.diff()[:, None]
        position, row = torch.arange(max_length, device=offsets.device), torch.arange(rows, device=offsets.device)
        position = position - (max_length - size) if before else position
        inside = torch.minimum(position.clamp(min=0), (size - 1).clamp(min=0))
        index = (start + inside).clamp(max=rows - 1)  # an empty document at the end repeats the last row
        document = torch.searchsorted(offsets, row, right=True) - 1
        inverse = document * max_length + row - offsets[document]
        return Padded(
            index,
            (position >= 0) & (position < size),
            inverse + (max_length - size[document, 0]) if before else inverse,
        )

    def split(self, tensor: Tensor, axis: int) -> Tensor:
        """A tensor of the packed row as [documents, ...] with the positions on the axis."""
        tensor = tensor.movedim(axis, 0).index_select(0, self.index.flatten())
        return tensor.unflatten(0, self.index.shape).movedim(1, 1 + axis)

    def pairs(self, keys: Padded, tensor: Tensor, query: int, key: int) -> Tensor:
        """The pairs within each document of a tensor with both sequence legs, at these axes."""
        return _pairs(tensor, query, key, self.index, keys.index)

    def joined(self, output: Tensor) -> Tensor:
        """A result [documents * positions, ...] in packed order."""
        return output.index_select(0, self.back)


def _pairs(tensor: Tensor, query: int, key: int, rows: Tensor, columns: Tensor) -> Tensor:
    pairs = tensor.movedim((query, key), (0, 1))[rows[:, :, None], columns[:, None, :]]
    return pairs.movedim((1, 2), (1 + query, 1 + key))
