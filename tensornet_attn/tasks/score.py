"""How good logits are, as sums and counts, so that scores of batches and of processes add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from tensornet_attn.tasks.batch import UNSCORED, Batch
from tensornet_attn.tasks.measure import Measure, measured

Tensor = torch.Tensor


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
        names = [*self.parts, *(name for name in other.parts if name not in self.parts)]
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
