"""Samples of a step by number, spread over processes and parts, and the model's answer to them."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from tensornet_attn.errors import InputError
from tensornet_attn.models.memory import Memory
from tensornet_attn.tasks.batch import UNSCORED, Batch
from tensornet_attn.tasks.task import Task

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
            return rows_of(batch, start, stop)
        one = rows_of(batch, 0, 1)
        return replace(one, targets=torch.full_like(one.targets, UNSCORED))


def rows_of(batch: Batch, start: int, stop: int) -> Batch:
    """Some of the samples of a batch."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return Batch(**{name: None if value is None else value[start:stop] for name, value in values.items()})


def seed_part(seed: int, step: int, place: int) -> None:
    """Seeds torch, numpy and random for one part of one step: what is drawn depends on nothing that came before."""
    digest = hashlib.sha256(f"{seed} {step} {place}".encode()).digest()
    number = int.from_bytes(digest[:8], "little") >> 1
    torch.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


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
    wanted: dict[str, Any] = {} if losses is None else {"losses": True}
    if batch.source is not None:
        made = model(batch.source, batch.tokens, batch.source_mask, batch.key_mask, **wanted)
    elif memory is not None:
        made = model(batch.tokens, batch.key_mask, memory, at, **wanted)
    else:
        made = model(batch.tokens, batch.key_mask, **({} if at is None else {"at": at}), **wanted)
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
