"""Samples as tensors, the same for every kind of task, and how good logits for them are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from tensornet_attn.tasks.chance import Rows
from tensornet_attn.tasks.recipe import Measure, measured

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
        return replace(self, **{name: change(value) for name, value in vars(self).items() if value is not None})


def batch_of(rows: Rows, padding: int | None) -> Batch:
    """Rows as tensors, with the masks of their padding."""
    values = {name: torch.from_numpy(value.astype(_KINDS[value.dtype.kind])) for name, value in rows.items()}
    if padding is not None:
        masks = {"tokens": "key_mask", "source": "source_mask"}
        values |= {mask: values[name] != padding for name, mask in masks.items() if name in values}
    return Batch(**values)


@dataclass(frozen=True)
class Score:
    """A sum and a count for each measure: `loss` in nats, `accuracy`, and `accuracy/GROUP` for groups of samples.

    `measure`: what the mean loss is also given as, computed from the whole sum: perplexities of parts do not average.

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
        """The mean of each measure that something was counted for; after the loss what it comes to as `measure`."""
        found = {}
        for name, (total, count) in self.parts.items():
            if count:
                found[name] = total / count
            if count and name == "loss" and self.measure is not None:
                found[self.measure] = measured(self.measure, found[name])
        return found

    def vector(self) -> Tensor:
        """Sums and counts as float64 [measures 2]: what processes add up by all-reduce."""
        return torch.tensor(list(self.parts.values()), dtype=torch.float64).reshape(-1, 2)

    def replaced(self, vector: Tensor) -> Score:
        """The score with the sums and counts of a vector."""
        pairs = zip(self.parts, vector.tolist(), strict=True)
        return replace(self, parts={name: (total, round(count)) for name, (total, count) in pairs})


def loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """(sum of the losses in nats, count of what is scored): with gradient, in float32 or wider.

    `smoothing` e puts (1 - e) + e / K of the probability on the target and e / K on each of the other K - 1 answers
    (Szegedy et al., 2016, section 7).
    """
    rows = logits.flatten(0, -2)
    rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    targets = targets.flatten()
    total = F.cross_entropy(rows, targets, ignore_index=UNSCORED, reduction="sum", label_smoothing=smoothing)
    return total, (targets != UNSCORED).sum()


def score(
    logits: Tensor,
    batch: Batch,
    groups: Sequence[str] = (),
    measure: Measure | None = None,
    at: Tensor | None = None,
) -> Score:
    """Loss and accuracy over all that is scored, and the accuracy of each group.

    `at` [k]: places, counted through all rows, that `logits` [k vocabulary] are for; all that is scored is there.
    """
    logits = logits.detach()
    targets = batch.targets if at is None else batch.targets.flatten()[at]
    total, count = loss(logits, targets)
    scored = targets != UNSCORED
    right = (logits.argmax(-1) == targets) & scored
    measures = {"loss": (total, count), "accuracy": (right.sum(), count)}
    for place, name in enumerate(groups):
        assert batch.group is not None
        here = (batch.group if at is None else batch.group[at // batch.targets.shape[1]]) == place
        measures[f"accuracy/{name}"] = (right[here].sum(), scored[here].sum())
    values = torch.stack([value.to(total.dtype) for pair in measures.values() for value in pair])
    return Score(dict.fromkeys(measures, (0.0, 0)), measure).replaced(values.reshape(-1, 2))
