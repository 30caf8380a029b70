"""However a batch is spread, every row of it is computed once; what is drawn depends on seed, step and place alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tensornet_attn.models import LanguageModel
from tensornet_attn.tasks import task_named
from tensornet_attn.tasks.batch import UNSCORED, Batch
from tensornet_attn.train.session import BatchShare, answer, check_tokens, scored_places, seed_part
from tests.refusals import refusal

TASK = task_named("copy", length=8)


@pytest.mark.parametrize(("world", "parts"), [(1, 1), (1, 3), (2, 1), (3, 2), (5, 2)])
def test_the_same_rows_however_spread(world: int, parts: int) -> None:
    shares = [BatchShare(rank, world, parts) for rank in range(world)]
    pieces = [share.batches(TASK, 4, 10) for share in shares]
    tokens = torch.cat([pieces[rank][part].tokens for part in range(parts) for rank in range(world)])
    assert torch.equal(tokens, TASK.samples("train", 40, 10).tokens)


def test_each_row_is_judged_once() -> None:
    batch = TASK.samples("test", 0, 2)
    found = [BatchShare(rank, 3, 1).judged(batch) for rank in range(3)]
    scored = [int((piece.targets != UNSCORED).sum()) for piece in found]
    assert scored[0] == 0
    assert [len(piece) for piece in found] == [1, 1, 1]
    assert sum(scored) == int((batch.targets != UNSCORED).sum())


@pytest.mark.parametrize("memory", [0, 4])
def test_a_language_model_that_says_what_is_scored_alone_has_the_same_loss_and_gradients(memory: int) -> None:
    task = task_named("mqar", length=16, pairs=2, vocabulary=16)
    torch.manual_seed(0)
    design = {"design": "transformer_xl", "legs": {"h": 2}} if memory else {"design": "mhsa", "legs": {"h": 2}}
    more = {"memory": memory} if memory else {}
    made = LanguageModel(vocabulary=16, length=16, width=8, layers=[{"mixer": design}], **more).double()
    batch = task.samples("train", 0, 3)
    at = scored_places(batch)
    assert at is not None
    assert at.tolist() == [i for i, y in enumerate(batch.targets.flatten()) if y != UNSCORED]
    found = []
    for places in (None, at):
        made.zero_grad()
        logits, _ = answer(made, batch, made.new_memory(3) if memory else None, places)
        loss, count = task.loss(logits, batch, places)
        loss.backward()
        found.append([loss.detach(), count, *(parameter.grad.clone() for parameter in made.parameters())])
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_what_is_scored_everywhere_or_by_class_needs_no_places() -> None:
    assert scored_places(task_named("char_lm", length=8).samples("train", 0, 2)) is None
    assert scored_places(task_named("listops_mini").samples("train", 0, 2)) is None


def drawn(*place: int) -> tuple[float, float, float]:
    seed_part(*place)
    return torch.rand(1).item(), float(np.random.rand()), random.random()


def test_what_is_drawn() -> None:
    assert drawn(0, 1, 2) == drawn(0, 1, 2)
    assert len({drawn(*place) for place in ((0, 1, 2), (0, 2, 1), (1, 1, 2), (0, 1, 3))}) == 4


def test_tokens_outside_of_the_vocabulary() -> None:
    good = TASK.samples("train", 0, 2)
    check_tokens(good, TASK)
    message = refusal(check_tokens, Batch(good.tokens + TASK.vocabulary, good.targets), TASK)
    assert message.startswith("task 'copy' returned ")
    assert message.endswith(f" in tokens; the range is 0 to {TASK.vocabulary - 1}.")
