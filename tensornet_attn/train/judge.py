"""The score of a model on a split, in evaluation mode, the same for any number of processes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensornet_attn.tasks.batch import Batch
from tensornet_attn.tasks.score import Score
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.feed import Share, answer, check_tokens, rows_of, scored_places

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
            whole = rows_of(whole, 0, samples - seen)
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
