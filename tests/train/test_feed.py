"""However a batch is spread, every row of it is computed once; what is drawn depends on seed, step and place alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tensornet_attn.errors import InputError
from tensornet_attn.tasks import task_named
from tensornet_attn.tasks.batch import UNSCORED, Batch
from tensornet_attn.train.feed import Share, check_tokens, seed_part

TASK = task_named("copy", length=8)


@pytest.mark.parametrize(("world", "parts"), [(1, 1), (1, 3), (2, 1), (3, 2), (5, 2)])
def test_the_same_rows_however_spread(world: int, parts: int) -> None:
    shares = [Share(rank, world, parts) for rank in range(world)]
    pieces = [share.batches(TASK, 4, 10) for share in shares]
    tokens = torch.cat([pieces[rank][part].tokens for part in range(parts) for rank in range(world)])
    assert torch.equal(tokens, TASK.samples("train", 40, 10).tokens)


def test_each_row_is_judged_once() -> None:
    batch = TASK.samples("test", 0, 2)
    found = [Share(rank, 3, 1).judged(batch) for rank in range(3)]
    scored = [int((piece.targets != UNSCORED).sum()) for piece in found]
    assert scored[0] == 0
    assert [len(piece) for piece in found] == [1, 1, 1]
    assert sum(scored) == int((batch.targets != UNSCORED).sum())


def drawn(*place: int) -> tuple[float, float, float]:
    seed_part(*place)
    return torch.rand(1).item(), float(np.random.rand()), random.random()


def test_what_is_drawn() -> None:
    assert drawn(0, 1, 2) == drawn(0, 1, 2)
    assert len({drawn(*place) for place in ((0, 1, 2), (0, 2, 1), (1, 1, 2), (0, 1, 3))}) == 4


def test_tokens_outside_of_the_vocabulary() -> None:
    good = TASK.samples("train", 0, 2)
    check_tokens(good, TASK)
    with pytest.raises(InputError) as error:
        check_tokens(Batch(good.tokens + TASK.vocabulary, good.targets), TASK)
    assert str(error.value).startswith("task 'copy' gave ")
    assert str(error.value).endswith(f" among its tokens; they are 0 to {TASK.vocabulary - 1}.")
