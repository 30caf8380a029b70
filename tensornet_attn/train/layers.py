"""The layers of a trained run for a report: on samples of its task, and on random tokens that are repeated."""

from __future__ import annotations

import os
from typing import Any

import torch

from tensornet_attn.analyse.repeat import repeated_tokens
from tensornet_attn.analyse.section import Section, model_sections
from tensornet_attn.tasks.batch import Batch
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.trained import Trained, open_run

Tensor = torch.Tensor
SAMPLES = 8


def run_sections(
    out: str | os.PathLike[str],
    checkpoint: str | None = None,
    split: str = "validation",
    samples: int = SAMPLES,
    seed: int = 0,
) -> list[Section]:
    """A section for each attention layer of a run, for `ta.report`: the folder that `tensornet-attn train --out` wrote.

    The model has the weights of the last checkpoint, or of the one named, a step or a folder, and looks at the first
    `samples` samples of a split of its task. The layers of a language model also get the call that `induction_scores`
    needs: as many sequences of random tokens of its vocabulary, drawn with `seed`, padding left out. Raises InputError.
    """
    return sections_of(open_run(out, checkpoint, "cpu"), split, samples, seed)


def sections_of(trained: Trained, split: str, samples: int, seed: int) -> list[Section]:
    """The sections of a run that has been opened."""
    size = trained.task.size(split)
    batch = trained.task.samples(split, 0, samples if size is None else min(samples, size))
    repeated = _repeated(trained.task, len(batch), seed)
    return model_sections(trained.model, *_arguments(batch), repeated=repeated)


def _arguments(batch: Batch) -> tuple[Any, ...]:
    """What a model of the kind of the task is called with."""
    if batch.source is not None:
        return batch.source, batch.tokens, batch.source_mask, batch.key_mask
    return batch.tokens, batch.key_mask


def _repeated(task: Task, batch: int, seed: int) -> Tensor | None:
    """Random tokens for a language model, as many as fit into a sample of its task; None for other kinds."""
    tokens = [token for token in range(task.vocabulary) if token != task.source.padding]
    period = min(task.length // 2, len(tokens))
    if task.kind != "language_model" or period < 2:
        return None
    return repeated_tokens(tokens, period, batch, seed)
