"""Batches of samples as tensors, and the loss and score of logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from tensornet_attn.tasks.chance import Rows
from tensornet_attn.tasks.recipe import Measure, measured

Tensor = torch.Tensor
_KINDS = {"i": "int64", "u": "int64", "f": "float32", "b": "bool"}  # numpy's kinds of arrays
UNSCORED = -100  # the target of positions that are not scored; torch's cross entropy ignores it


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples of a task.

    `tokens`: [batch, n] int64, or [batch, n, features] float32. `targets`: int64, where -100 is not scored; [batch, n]
    for a language model or decoder, where `targets[:, i]` is the answer to `tokens[:, :i + 1]`; or [batch], the class,
    for a classification. `key_mask`: [batch, n] bool, False at padding; None without padding. `source`, `source_mask`:
    [batch, m], the encoder's input; `tokens` are then the decoder's input. `group`: [batch], the index of the group of
    a sample, for accuracies per group.
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
        return self._each(lambda tensor: tensor.to(device))

    def rows(self, start: int, stop: int) -> Batch:
        """The samples start to stop - 1."""
        return self._each(lambda tensor: tensor[start:stop])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(self, **{name: change(tensor) for name, tensor in vars(self).items() if tensor is not None})


def batch_of(rows: Rows, padding: int | None) -> Batch:
    """Rows as tensors, with masks of the padding."""
    tensors = {name: torch.from_numpy(array.astype(_KINDS[array.dtype.kind])) for name, array in rows.items()}
    if padding is not None:
        masks = {"tokens": "key_mask", "source": "source_mask"}
        tensors |= {mask: tensors[name] != padding for name, mask in masks.items() if name in tensors}
    return Batch(**tensors)


@dataclass(frozen=True)
class Score:
    """A sum and a count for each of `loss` in nats, `accuracy`, and `accuracy/GROUP` for groups of samples.

    `measure`: another unit of the mean loss, computed from the total, because perplexities cannot be averaged.

    >>> (Score({"loss": (6.0, 4)}) + Score({"loss": (1.0, 3)})).means()
    {'loss': 1.0}
    >>> Score({"loss": (0.0, 4)}, "perplexity").means()
    {'loss': 0.0, 'perplexity': 1.0}
    """

    parts: Mapping[str, tuple[float, int]]
    measure: Measure | None = None

    def __add__(self, other: Score) -> Score:
        zero = (0.0, 0)
        names = {**self.parts, **other.parts}
        pairs = {name: (self.parts.get(name, zero), other.parts.get(name, zero)) for name in names}
        parts = {name: (a[0] + b[0], a[1] + b[1]) for name, (a, b) in pairs.items()}
        return Score(parts, self.measure or other.measure)

    def means(self) -> dict[str, float]:
        """The means of all parts with a count above 0; after the loss, the loss in the unit `measure`."""
        means = {}
        for name, (total, count) in self.parts.items():
            if count:
                means[name] = total / count
            if count and name == "loss" and self.measure is not None:
                means[self.measure] = measured(self.measure, means[name])
        return means

    def vector(self) -> Tensor:
        """Sums and counts as float64 [parts, 2], for an all-reduce over processes."""
        return torch.tensor(list(self.parts.values()), dtype=torch.float64).reshape(-1, 2)

    def replaced(self, vector: Tensor) -> Score:
        """The score with the sums and counts of `vector`."""
        pairs = zip(self.parts, vector.tolist(), strict=True)
        return replace(self, parts={name: (total, round(count)) for name, (total, count) in pairs})


def loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Returns (sum of the losses in nats, number of scored positions), with gradient, in float32 or wider.

    With `smoothing` e, the target has probability (1 - e) + e / K and each of the other K - 1 answers has e / K
    (Szegedy et al., 2016, section 7).
    """
    rows = logits.flatten(0, -2)
    rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    targets = targets.flatten()
    total = F.cross_entropy(rows, targets, ignore_index=UNSCORED, reduction="sum", label_smoothing=smoothing)
    return total, (targets != UNSCORED).sum()


def score(
    logits: Tensor, batch: Batch, groups: Sequence[str] = (), measure: Measure | None = None, at: Tensor | None = None
) -> Score:
    """Loss and accuracy over all scored positions, and the accuracy of each group.

    `at` [k]: flat indices row * n + position of `logits` [k, vocabulary]; they include all scored positions.
    """
    logits = logits.detach()
    targets = batch.targets if at is None else batch.targets.flatten()[at]
    total, count = loss(logits, targets)
    scored = targets != UNSCORED
    correct = (logits.argmax(-1) == targets) & scored
    measures = {"loss": (total, count), "accuracy": (correct.sum(), count)}
    for index, name in enumerate(groups):
        assert batch.group is not None
        in_group = (batch.group if at is None else batch.group[at // batch.targets.shape[1]]) == index
        measures[f"accuracy/{name}"] = (correct[in_group].sum(), scored[in_group].sum())
    values = torch.stack([tensor.to(total.dtype) for pair in measures.values() for tensor in pair])
    return Score(dict.fromkeys(measures, (0.0, 0)), measure).replaced(values.reshape(-1, 2))
