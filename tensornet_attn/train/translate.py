"""Greedy translation with a trained encoder and decoder, and its BLEU score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.models.base import Model
from tensornet_attn.tasks.recipe import Parallel
from tensornet_attn.train.session import fabric_of
from tensornet_attn.train.trained import TrainedRun, cache_of

Tensor = torch.Tensor
TOKENIZER = "13a"  # sacrebleu's default, mteval's tokenizer


@dataclass(frozen=True)
class Bleu:
    """BLEU from 0 to 100, sacrebleu's signature, and the number of translations."""

    score: float
    signature: str
    sentences: int


def bleu(
    trained: TrainedRun, split: str, samples: int | None = None, batch: int | None = None, tokenizer: str = TOKENIZER
) -> Bleu:
    """BLEU of greedy translations of a split, or of its first `samples` samples, computed by sacrebleu.

    `tokenizer` is a sacrebleu tokenizer: 13a for plain text; none for tokenized text, as in fairseq's tokenized BLEU.
    Raises the errors of `check`.
    """
    parallel = check(trained, split, tokenizer)
    translated = translations(trained, split, samples, batch or trained.run.batch)
    return compared(translated, parallel.references[split][: len(translated)], tokenizer)


def check(trained: TrainedRun, split: str, tokenizer: str = TOKENIZER) -> Parallel:
    """The parallel text of a task. Raises InputError for a task without one, or for a split without references.

    Raises InputError for an unknown tokenizer too, and MissingPartError if sacrebleu is not installed.
    """
    parallel = trained.task.source.parallel
    if parallel is None:
        raise InputError(f"task '{trained.task.name}' has no parallel text for BLEU; use a translation task.")
    if split not in parallel.references:
        splits = " or ".join(parallel.references)
        raise InputError(f"split '{split}' has no reference translations for BLEU; choose split {splits}.")
    if find_spec("sacrebleu") is None:
        raise MissingPartError(
            "BLEU needs sacrebleu: pip install 'tensornet-attn[bleu]'; '--no-bleu' evaluates without it."
        )
    from sacrebleu.metrics.bleu import BLEU

    if tokenizer not in BLEU.TOKENIZERS:
        raise InputError(f"sacrebleu has no tokenizer '{tokenizer}': use one of {', '.join(BLEU.TOKENIZERS)}.")
    return parallel


def compared(translated: Sequence[str], references: Sequence[str], tokenizer: str = TOKENIZER) -> Bleu:
    """BLEU of translations against one reference each."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenizer, force=True)  # force: no warning for text that looks tokenized
    score = metric.corpus_score(list(translated), [list(references)]).score
    return Bleu(score, str(metric.get_signature()), len(translated))


def translations(trained: TrainedRun, split: str, samples: int | None, batch: int) -> list[str]:
    """Greedy translations of a split, or of its first `samples` samples, `batch` at a time."""
    task, parallel = trained.task, trained.task.source.parallel
    assert parallel is not None
    fabric, size = fabric_of(trained.run), task.size(split) or 0
    fabric.setup_module(trained.model)
    translated: list[str] = []
    for start in range(0, min(size, samples or size), batch):
        rows = task.samples(split, start, min(batch, size - start, (samples or size) - start)).to(fabric.device)
        assert rows.source is not None
        with fabric.autocast():
            tokens = greedy(trained.model, rows.source, rows.source_mask, parallel.edge, task.length)
        translated += map(parallel.text, tokens)
    return translated


@torch.no_grad()
def greedy(model: Model, source: Tensor, source_mask: Tensor | None, edge: int, max_tokens: int) -> list[list[int]]:
    """Greedy decoding: a list of tokens for each row of source [batch, m], with source_mask [batch, m].

    Decoding starts with the token `edge` and ends at `edge`, or after `max_tokens` tokens; finished rows leave the
    batch. A cache is used if all designs have one.
    """
    encoded, cache = model.encode(source, source_mask), cache_of(model)
    decoded: list[list[int]] = [[] for _ in source]
    unfinished = torch.arange(len(source), device=source.device)
    prefixes = torch.full((len(source), 1), edge, device=source.device)
    while len(unfinished) and prefixes.shape[1] <= max_tokens:
        new = prefixes if cache is None else prefixes[:, -1:]
        last = torch.arange(1, len(unfinished) + 1, device=source.device) * new.shape[1] - 1
        mask = None if source_mask is None else source_mask[unfinished]
        best = model.decode(encoded[unfinished], new, mask, at=last, cache=cache).argmax(-1)
        continuing = best != edge
        unfinished, prefixes = unfinished[continuing], torch.cat([prefixes, best[:, None]], 1)[continuing]
        if cache is not None and len(unfinished) < len(continuing):
            cache.select(continuing.nonzero()[:, 0])
        for row, token in zip(unfinished.tolist(), best[continuing].tolist(), strict=True):
            decoded[row].append(token)
    return decoded
