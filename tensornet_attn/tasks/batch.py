"""Samples as tensors, the same for every kind of task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch

from tensornet_attn.tasks.splits import Rows

Tensor = torch.Tensor
_KINDS = {"i": "int64", "u": "int64", "f": "float32", "b": "bool"}  # numpy's kinds of arrays
UNSCORED = -100  # a target that nothing is asked for; torch's cross entropy leaves it out


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples of a task.

    `tokens` [batch n] int64 is the input, or [batch n features] float32 where a position has numbers. `targets` int64
    is [batch n] for a language model and for a decoder, where `targets[:, i]` is the answer at place i, to be told from
    `tokens[:, :i + 1]`; [batch], the class, for a classification; -100 where nothing is scored. `key_mask` [batch n]
    bool is False at padding, None without padding.
    A sequence to sequence has `source` [batch m] for its encoder and `source_mask`; its `tokens` are the decoder's.
    `group` [batch] numbers the kinds of samples that are also scored apart.
    """

    tokens: Tensor
    targets: Tensor
    key_mask: Tensor | None = None
    source: Tensor | None = None
    source_mask: Tensor | None = None
    group: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        return self._each(lambda value: value.to(device))

    def rows(self, start: int, stop: int) -> Batch:
        """Some of the samples."""
        return self._each(lambda value: value[start:stop])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Batch(**{name: None if value is None else change(value) for name, value in values.items()})


def batch_of(rows: Rows, padding: int | None) -> Batch:
    """Rows as tensors, with the masks of their padding."""
    values = {name: torch.from_numpy(value.astype(_KINDS[value.dtype.kind])) for name, value in rows.items()}
    if padding is not None:
        masks = {"tokens": "key_mask", "source": "source_mask"}
        values |= {mask: values[name] != padding for name, mask in masks.items() if name in values}
    return Batch(**values)
