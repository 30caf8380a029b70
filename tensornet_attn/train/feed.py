"""Samples by number, spread over processes and parts, the model's answer to them, and its score on a split."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models.kinds import Memory
from tensornet_attn.tasks.batch import UNSCORED, Batch, Score
from tensornet_attn.tasks.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Tensor = torch.Tensor


@dataclass(frozen=True)
class Share:
    """What one process takes of every batch: of `parts` parts, each spread over `world` processes, those of `rank`."""

    rank: int
    world: int
    parts: int

    def rows(self, part: int, batch: int) -> tuple[int, int]:
        """First row of a part and the row behind it.

        >>> [Share(rank, 2, 2).rows(part, 10) for part in (0, 1) for rank in (0, 1)]
        [(0, 2), (2, 5), (5, 7), (7, 10)]
        """
        place, pieces = part * self.world + self.rank, self.parts * self.world
        return batch * place // pieces, batch * (place + 1) // pieces

    def batches(self, task: Task, step: int, batch: int) -> list[Batch]:
        """The samples of a step, counted from 0, that this process computes."""
        spans = [self.rows(part, batch) for part in range(self.parts)]
        return [task.samples("train", step * batch + start, stop - start) for start, stop in spans]

    def judged(self, batch: Batch) -> Batch:
        """The rows of a validation batch that this process judges; a row that counts for nothing where there is none.

        Every process must call the model equally often: sharded weights are gathered in the call.
        """
        rows = len(batch)
        start, stop = rows * self.rank // self.world, rows * (self.rank + 1) // self.world
        if start < stop:
            return batch.rows(start, stop)
        one = batch.rows(0, 1)
        return replace(one, targets=torch.full_like(one.targets, UNSCORED))


def seed_part(seed: int, step: int, place: int) -> None:
    """Seeds torch, numpy and random for one part of one step: what is drawn depends on nothing that came before."""
    digest = hashlib.sha256(f"{seed} {step} {place}".encode()).digest()
    number = int.from_bytes(digest[:8], "little") >> 1
    torch.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


def arguments(batch: Batch) -> tuple[Any, ...]:
    """What a model of any kind is called with for a batch of its kind of task."""
    if batch.source is not None:
        return batch.source, batch.tokens, batch.source_mask, batch.key_mask
    return batch.tokens, batch.key_mask


def answer(
    model: Any,
    batch: Batch,
    memory: Memory | None = None,
    at: Tensor | None = None,
    losses: dict[str, Tensor] | None = None,
) -> tuple[Tensor, Memory | None]:
    """(logits, the next memory) of any kind of model for a batch of its kind of task.

    `at` [k]: what `scored_places` gave, for the logits [k vocabulary] of these places alone. `losses` takes the
    auxiliary losses by name, if given.
    """
    options = {"memory": memory, "at": at, "losses": None if losses is None else True}
    made = model(*arguments(batch), **{name: value for name, value in options.items() if value is not None})
    if losses is not None:
        *parts, found = made
        losses |= found
        made = tuple(parts) if len(parts) > 1 else parts[0]
    return made if memory is not None else (made, None)


def scored_places(batch: Batch) -> Tensor | None:
    """Where a language model is scored, counted through all rows [k]: it need say nothing elsewhere.

    None where every place is scored, and for other kinds of tasks. Of a batch in main memory: a device would be
    waited for.
    """
    if batch.source is not None or batch.targets.dim() == 1:
        return None
    scored = batch.targets.flatten() != UNSCORED
    return None if bool(scored.all()) else scored.nonzero().flatten()


def check_tokens(batch: Batch, task: Task) -> None:
    """Raises InputError for tokens or targets that are outside of the task's own vocabulary or classes."""
    bounds = {"tokens": task.vocabulary, "source": task.vocabulary, "targets": task.classes or task.vocabulary}
    for name, bound in bounds.items():
        values = getattr(batch, name)
        if values is None or values.is_floating_point():
            continue
        free = values == UNSCORED if name == "targets" else torch.zeros_like(values, dtype=torch.bool)
        wrong = values[~free & ((values < 0) | (values >= bound))]
        if wrong.numel():
            raise InputError(f"task '{task.name}' gave {int(wrong[0])} among its {name}; they are 0 to {bound - 1}.")


@torch.no_grad()
def judge(
    fabric: Fabric, model: nn.Module, module: Any, task: Task, batches: Iterable[Batch], samples: int | None = None
) -> Score:
    """Sums and counts over the first `samples` samples of batches of a task, or over all.

    A language model computes logits where they are scored alone; one with a memory carries it from batch to batch.
    """
    share, total, seen = Share(fabric.global_rank, fabric.world_size, 1), Score({}), 0
    memory, was = None, model.training
    module.eval()
    for whole in batches:
        if samples is not None and seen >= samples:
            break
        if samples is not None and memory is None:
            whole = whole.rows(0, samples - seen)
        seen += len(whole)
        own = share.judged(whole)
        check_tokens(own, task)
        at = scored_places(own)
        own, at = own.to(fabric.device), None if at is None else at.to(fabric.device)
        if getattr(model, "rows", 0) and (memory is None or memory.states[0].shape[0] != len(own)):
            memory = model.new_memory(len(own))
        logits, memory = answer(module, own, memory, at)
        total = total + task.score(logits, own, at)
    module.train(was)
    if share.world > 1:
        total = total.replaced(fabric.all_reduce(total.vector().to(fabric.device), reduce_op="sum"))
    return total


def eval_line(score: Score) -> dict[str, float | None]:
    """The means of a score under the names that a metrics line has; null for what is not finite."""
    return {f"eval_{name}": value if math.isfinite(value) else None for name, value in score.means().items()}
