"""The layers of a trained run for a report: on samples of its task, and on random tokens that are repeated."""

from __future__ import annotations

import os
from typing import Any

import torch

from tensornet_attn.analyse.section import Section, joined_sections, model_sections
from tensornet_attn.analyse.text import repeated_tokens
from tensornet_attn.errors import InputError
from tensornet_attn.tasks.batch import Batch
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.trained import Trained, open_run

Tensor = torch.Tensor
SAMPLES = 8
PART = 8  # samples of a call of the model: the logits of all samples at once can be more than there is memory


def run_sections(
    out: str | os.PathLike[str],
    checkpoint: str | None = None,
    split: str = "validation",
    samples: int = SAMPLES,
    seed: int = 0,
    length: int | None = None,
) -> list[Section]:
    """A section for each attention layer of a run, for `ta.report`: the folder that `tensornet-attn train --out` wrote.

    The model has the weights of the last checkpoint, or of the one named, a step or a folder, and looks at the first
    `samples` samples of a split of its task. The layers of a language model also get the call that `induction_scores`
    needs: as many sequences of random tokens of its vocabulary, drawn with `seed`, padding left out. `length` cuts the
    samples of a language model to their first tokens. Raises InputError.
    """
    return sections_of(open_run(out, checkpoint, "cpu"), split, samples, seed, length)


def sections_of(trained: Trained, split: str, samples: int, seed: int, length: int | None = None) -> list[Section]:
    """The sections of a run that has been opened. Raises InputError."""
    task = trained.task
    if length is not None:
        _check_length(task, length)
    size = task.size(split)
    batch = task.samples(split, 0, samples if size is None else min(samples, size))
    given = [value if value is None else value[:, :length] for value in _arguments(batch)]
    repeated = _repeated(task, length or task.length, len(batch), seed)
    parts = [slice(start, start + PART) for start in range(0, len(batch), PART)]
    return joined_sections(
        [model_sections(trained.model, *_part(given, part), repeated=_part([repeated], part)[0]) for part in parts]
    )


def _check_length(task: Task, length: int) -> None:
    if task.kind != "language_model":
        told = f"the samples of '{task.name}' cannot be cut: it is no task of a language model. Leave the length out."
        raise InputError(told)
    if length > task.length:
        raise InputError(f"length {length} is more than the {task.length} tokens of a sample of '{task.name}'.")


def _part(values: list[Tensor | None], part: slice) -> list[Tensor | None]:
    return [value if value is None else value[part] for value in values]


def _arguments(batch: Batch) -> tuple[Any, ...]:
    """What a model of the kind of the task is called with."""
    if batch.source is not None:
        return batch.source, batch.tokens, batch.source_mask, batch.key_mask
    return batch.tokens, batch.key_mask


def _repeated(task: Task, length: int, batch: int, seed: int) -> Tensor | None:
    """Random tokens for a language model, as many as fit into `length`; None for other kinds."""
    tokens = [token for token in range(task.vocabulary) if token != task.source.padding]
    period = min(length // 2, len(tokens))
    if task.kind != "language_model" or period < 2:
        return None
    return repeated_tokens(tokens, period, batch, seed)
