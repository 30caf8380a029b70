"""Scores: sums and counts that add up over batches and processes."""

from __future__ import annotations

import math

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.tasks import Task, task_named
from tensornet_attn.tasks.batch import Batch


def logits_for(task: Task, batch: Batch, seed: int = 0) -> torch.Tensor:
    shape = (*batch.targets.shape, task.classes or task.vocabulary)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", ["copy", "listops_mini", "reverse"])
def test_scores_of_parts_add_up_to_that_of_the_whole(name: str) -> None:
    task = task_named(name)
    batch = task.samples("test", 0, 12)
    logits = logits_for(task, batch)
    whole = task.score(logits, batch)
    parts = [
        task.score(
            logits[start : start + 4],
            Batch(**{k: v[start : start + 4] for k, v in vars(batch).items() if v is not None}),
        )
        for start in (0, 4, 8)
    ]
    total = parts[0] + parts[1] + parts[2]
    assert total.means() == pytest.approx(whole.means(), rel=1e-12)
    assert total.replaced(sum(part.vector() for part in parts)).means() == pytest.approx(whole.means(), rel=1e-12)


def test_the_loss_is_in_nats_over_what_is_scored_and_has_a_gradient() -> None:
    task = task_named("mqar", vocabulary=64)
    batch = task.samples("train", 0, 3)
    logits = torch.zeros(3, 64, 64, requires_grad=True)
    total, count = task.loss(logits, batch)
    assert count == 24
    assert total.item() / 24 == pytest.approx(math.log(64))
    total.backward()
    assert logits.grad is not None
    assert (logits.grad.abs().sum(-1) > 0).sum() == 24
    assert task.score(logits, batch).means()["loss"] == pytest.approx(math.log(64))


def test_right_answers_score_one() -> None:
    task = task_named("listops_mini")
    batch = task.samples("test", 0, 200)
    means = task.score(20.0 * torch.nn.functional.one_hot(batch.targets, 10), batch).means()
    assert list(means) == ["loss", "accuracy", "accuracy/MIN", "accuracy/MAX", "accuracy/MED", "accuracy/SM"]
    assert all(means[name] == 1 for name in means if name != "loss")
    assert means["loss"] < 1e-6


def test_what_is_counted_nowhere_has_no_mean() -> None:
    task = task_named("listops_mini")
    batch = task.samples("test", 0, 1)
    score = task.score(logits_for(task, batch), batch)
    assert len(score.parts) == 6
    assert len(score.means()) == 3


def test_half_precision_is_scored_in_float32() -> None:
    task = task_named("copy")
    batch = task.samples("test", 0, 4)
    logits = logits_for(task, batch).bfloat16()
    assert task.loss(logits, batch)[0].item() == task.loss(logits.float(), batch)[0].item()


def test_logits_of_another_size_are_refused() -> None:
    task = task_named("mqar")
    with pytest.raises(ta.InputError) as error:
        task.score(torch.zeros(2, 64, 511), task.samples("train", 0, 2))
    assert str(error.value) == "task 'mqar': the logits have shape [2, 64, 511]; [2, 64, 512] is asked for."


def test_a_batch_moves_to_a_device() -> None:
    batch = task_named("reverse").samples("train", 0, 2).to("meta")
    assert {value.device.type for value in vars(batch).values() if value is not None} == {"meta"}
    assert batch.group is None
    assert len(batch) == 2
