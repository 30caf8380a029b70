"""Translations by a trained encoder and decoder, and how good they are: BLEU over a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.models.kinds import Seq2Seq
from tensornet_attn.train.session import fabric_of
from tensornet_attn.train.trained import Trained, cache_of

Tensor = torch.Tensor
TOKENIZER = "13a"  # sacrebleu's own default: mteval's


@dataclass(frozen=True)
class Bleu:
    """BLEU, from 0 to 100, and the signature that says how it was counted; over `sentences` translations."""

    score: float
    signature: str
    sentences: int


def bleu(
    trained: Trained, split: str, samples: int | None = None, batch: int | None = None, tokenizer: str = TOKENIZER
) -> Bleu:
    """BLEU of greedy translations of a split, or of its first samples, by sacrebleu.

    `tokenizer` is sacrebleu's: 13a for plain text; none for text that is in tokens already, which gives fairseq's
    tokenized BLEU. Raises as `check` does.
    """
    check(trained, split, tokenizer)
    found = translations(trained, split, samples, batch or trained.run.batch)
    return compared(found, trained.task.source.parallel.references[split][: len(found)], tokenizer)


def check(trained: Trained, split: str, tokenizer: str = TOKENIZER) -> None:
    """Raises InputError for a task without parallel text, a split without references and a tokenizer that sacrebleu
    lacks; MissingPartError without sacrebleu.
    """
    parallel = trained.task.source.parallel
    if parallel is None:
        raise InputError(f"task '{trained.task.name}' is no parallel text; BLEU compares translations.")
    if split not in parallel.references:
        raise InputError(f"BLEU is of split {' or '.join(parallel.references)}, not of '{split}'.")
    if find_spec("sacrebleu") is None:
        raise MissingPartError(
            "BLEU needs sacrebleu: pip install 'tensornet-attn[bleu]'; '--no-bleu' evaluates without it."
        )
    from sacrebleu.metrics import BLEU

    if tokenizer not in BLEU.TOKENIZERS:
        raise InputError(f"sacrebleu has no tokenizer '{tokenizer}': one of {', '.join(BLEU.TOKENIZERS)}.")


def compared(found: Sequence[str], wanted: Sequence[str], tokenizer: str = TOKENIZER) -> Bleu:
    """BLEU of translations against one reference each."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=tokenizer, force=True)  # force: text that looks tokenized is no reason to warn
    score = metric.corpus_score(list(found), [list(wanted)]).score
    return Bleu(score, str(metric.get_signature()), len(found))


def translations(trained: Trained, split: str, samples: int | None, batch: int) -> list[str]:
    """The translations of a split, or of its first samples, `batch` at a time. Raises InputError."""
    task, parallel = trained.task, trained.task.source.parallel
    assert parallel is not None
    fabric, size = fabric_of(trained.run), task.size(split) or 0
    fabric.setup_module(trained.model)
    found: list[str] = []
    for start in range(0, min(size, samples or size), batch):
        rows = task.samples(split, start, min(batch, size - start, (samples or size) - start)).to(fabric.device)
        assert rows.source is not None
        with fabric.autocast():
            tokens = greedy(trained.model, rows.source, rows.source_mask, parallel.edge, task.length)
        found += map(parallel.text, tokens)
    return found


@torch.no_grad()
def greedy(model: Seq2Seq, source: Tensor, source_mask: Tensor | None, edge: int, most: int) -> list[list[int]]:
    """The most probable token after those before it, up to the edge, at most `most`: a list for each row of source.

    source [batch m] and its mask; the decoder begins with the edge. Rows that have ended are computed no further,
    and the positions of the others once, where all designs can keep a cache.
    """
    encoded, cache = model.encode(source, source_mask), cache_of(model)
    found: list[list[int]] = [[] for _ in source]
    left = torch.arange(len(source), device=source.device)
    begun = torch.full((len(source), 1), edge, device=source.device)
    while len(left) and begun.shape[1] <= most:
        new = begun if cache is None else begun[:, -1:]
        last = torch.arange(1, len(left) + 1, device=source.device) * new.shape[1] - 1
        mask = None if source_mask is None else source_mask[left]
        best = model.decode(encoded[left], new, mask, at=last, cache=cache).argmax(-1)
        going = best != edge
        left, begun = left[going], torch.cat([begun, best[:, None]], 1)[going]
        if cache is not None and len(left) < len(going):
            cache.select(going.nonzero()[:, 0])
        for row, token in zip(left.tolist(), best[going].tolist(), strict=True):
            found[row].append(token)
    return found
