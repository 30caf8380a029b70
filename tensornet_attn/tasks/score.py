"""How good logits are, as sums and counts, so that scores of batches and of processes add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tensornet_attn.tasks.batch import UNSCORED, Batch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Score:
    """A sum and a count for each measure: `loss` in nats, `accuracy`, and `accuracy/GROUP` for groups of samples.

    >>> (Score({"loss": (6.0, 4)}) + Score({"loss": (1.0, 3)})).means()
    {'loss': 1.0}
    """

    parts: Mapping[str, tuple[float, int]]

    def __add__(self, other: Score) -> Score:
        zero = (0.0, 0)
        names = [*self.parts, *(name for name in other.parts if name not in self.parts)]
        pairs = {name: (self.parts.get(name, zero), other.parts.get(name, zero)) for name in names}
        return Score({name: (a[0] + b[0], a[1] + b[1]) for name, (a, b) in pairs.items()})

    def means(self) -> dict[str, float]:
        """The mean of each measure that something was counted for."""
        return {name: total / count for name, (total, count) in self.parts.items() if count}

    def vector(self) -> Tensor:
        """Sums and counts as float64 [measures 2]: what processes add up by all-reduce."""
        return torch.tensor(list(self.parts.values()), dtype=torch.float64).reshape(-1, 2)

    def replaced(self, vector: Tensor) -> Score:
        """The score with the sums and counts of a vector."""
        pairs = zip(self.parts, vector.tolist(), strict=True)
        return Score({name: (total, round(count)) for name, (total, count) in pairs})


def loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(sum of the losses in nats, count of what is scored): with gradient, in float32 or wider."""
    rows = logits.flatten(0, -2)
    rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    targets = targets.flatten()
    total = F.cross_entropy(rows, targets, ignore_index=UNSCORED, reduction="sum")
    return total, (targets != UNSCORED).sum()


def score(logits: Tensor, batch: Batch, groups: Sequence[str] = ()) -> Score:
    """Loss and accuracy over all that is scored, and the accuracy of each group."""
    logits = logits.detach()
    total, count = loss(logits, batch.targets)
    scored = batch.targets != UNSCORED
    right = (logits.argmax(-1) == batch.targets) & scored
    measures = {"loss": (total, count), "accuracy": (right.sum(), count)}
    for place, name in enumerate(groups):
        assert batch.group is not None
        here = batch.group == place
        measures[f"accuracy/{name}"] = (right[here].sum(), scored[here].sum())
    values = torch.stack([value.to(total.dtype) for pair in measures.values() for value in pair])
    return Score(dict.fromkeys(measures, (0.0, 0))).replaced(values.reshape(-1, 2))
