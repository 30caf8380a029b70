"""A run that was trained, or is still: its model, to judge it, to write with it, and to look at its layers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tensornet_attn.analyse.section import Section, joined_sections, model_sections, repeated_tokens
from tensornet_attn.errors import InputError
from tensornet_attn.models.cache import ModelCache
from tensornet_attn.models.kinds import LanguageModel, Seq2Seq, make
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.tasks.batch import Batch, Score
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.config import Run, read, spec_of
from tensornet_attn.train.folder import CHECKPOINTS, CONFIG, Saved, checkpoints, config_hash, load_model
from tensornet_attn.train.session import arguments, fabric_of, judge, need_parts
from tensornet_attn.train.start import task_of

Tensor = torch.Tensor
SAMPLES = 8
PART = 8  # samples of a call of the model: the logits of all samples at once can be more than there is memory


@dataclass(frozen=True, eq=False)
class Trained:
    """The run, its task and model, and the checkpoint that the weights are of."""

    run: Run
    task: Task
    spec: ModelSpec
    model: nn.Module
    saved: Saved

    def judge(self, split: str, samples: int | None = None, batch: int | None = None) -> Score:
        """The score on a split, or on its first samples. Raises InputError."""
        return self._judged(self.task.batches(split, batch or self.run.batch), samples)

    def slide(
        self,
        split: str,
        context: int | None = None,
        stride: int = 1,
        samples: int | None = None,
        batch: int | None = None,
    ) -> Score:
        """The score of a running text in windows that slide over it, or of the first `samples` windows.

        A window has `context` tokens, those of a sample if not given, and scores its last `stride` places; the first
        one scores all. Raises InputError for other tasks, and for a model with a memory, which has its context there.
        """
        if getattr(self.spec.config, "memory", 0):
            raise InputError(
                f"'{self.spec.name}' has a memory, which is its context from window to window: evaluate it without "
                "sliding windows."
            )
        windows = self.task.sliding(split, batch or self.run.batch, context or self.task.length, stride)
        return self._judged(windows, samples)

    def _judged(self, batches: Iterable[Batch], samples: int | None) -> Score:
        fabric = fabric_of(self.run)
        return judge(fabric, self.model, fabric.setup_module(self.model), self.task, batches, samples)


def open_run(out: str | os.PathLike[str], checkpoint: str | None = None, accelerator: str | None = None) -> Trained:
    """The model of a run's folder with its last weights, on one process.

    `checkpoint` is a step or a folder. Raises InputError for what is no run, has no checkpoint, or does not fit.
    """
    path = Path(out)
    if not (path / CONFIG).is_file():
        raise InputError(f"'{out}' is no run: it has no '{CONFIG}'.")
    alone = {"devices": 1, "nodes": 1, "strategy": "auto", "checkpoint_activations": False, "tensorboard": False}
    run = read(path / CONFIG, alone | ({} if accelerator is None else {"accelerator": accelerator}))
    need_parts(run)
    task = task_of(run)
    spec = spec_of(run, task)
    saved = _saved(path / CHECKPOINTS, checkpoint)
    if saved.state.get("config") != config_hash(run):
        raise InputError(f"'{saved.path}' is a checkpoint of another run: its configuration is not that of '{out}'.")
    model = make(spec, backend=run.backend)
    load_model(model, saved)
    return Trained(run, task, spec, model.eval(), saved)


def _saved(path: Path, checkpoint: str | None) -> Saved:
    """The last checkpoint, or that of a step or of a folder."""
    found = checkpoints(path)
    if not found:
        raise InputError(f"'{path}' holds no whole checkpoint.")
    if checkpoint is None:
        return found[-1]
    for saved in found:
        if checkpoint in (str(saved.step), saved.path.name) or Path(checkpoint).resolve() == saved.path.resolve():
            return saved
    steps = ", ".join(str(saved.step) for saved in found)
    raise InputError(f"'{path}' has no checkpoint '{checkpoint}'; there are those of steps {steps}.")


@torch.no_grad()
def sample(
    trained: Trained, prompt: str, tokens: int, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
) -> str:
    """The prompt and what a language model writes after it; `temperature` 0 takes the most probable token each time.

    The context is that of a sample: the last `length` tokens of the task. As long as it holds all, a position is
    computed once, where all designs can keep a cache. Raises InputError for a model of another kind, and for a prompt
    that is empty or not in the vocabulary.
    """
    if trained.task.kind != "language_model":
        raise InputError(f"'{trained.spec.name}' is a {trained.spec.kind}; sample takes a language model.")
    alphabet = trained.task.alphabet
    found = alphabet.encode(prompt)
    if not found:
        raise InputError("the prompt is empty; give a character or word to begin with.")
    generator, length, cache = torch.Generator().manual_seed(seed), trained.task.length, cache_of(trained.model)
    for _ in range(tokens):
        if cache is None or len(found) > length:  # the window slides: every position has another context
            logits = trained.model(torch.tensor([found[-length:]]))
        else:
            logits = trained.model(torch.tensor([found[cache.length :]]), cache=cache)
        found.append(draw(logits[0, -1].float(), temperature, top_k, generator))
    return alphabet.decode(found)


def cache_of(model: LanguageModel | Seq2Seq) -> ModelCache | None:
    """An empty decoding cache; None where a design can keep none, and every position is computed at each token."""
    try:
        return model.new_cache()
    except InputError:
        return None


def draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """One token of logits [vocabulary]: of the `top_k` most probable ones."""
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        least = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator))


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
    if length is not None and task.kind != "language_model":
        told = f"the samples of '{task.name}' cannot be cut: it is no task of a language model. Leave the length out."
        raise InputError(told)
    if length is not None and length > task.length:
        raise InputError(f"length {length} is more than the {task.length} tokens of a sample of '{task.name}'.")
    size = task.size(split)
    batch = task.samples(split, 0, samples if size is None else min(samples, size))
    tokens = [token for token in range(task.vocabulary) if token != task.source.padding]
    period, repeated = min((length or task.length) // 2, len(tokens)), None
    if task.kind == "language_model" and period >= 2:
        repeated = repeated_tokens(tokens, period, len(batch), seed)
    parts = []
    for start in range(0, len(batch), PART):
        given = arguments(batch.rows(start, start + PART))
        again = None if repeated is None else repeated[start : start + PART]
        cut = [value if value is None else value[:, :length] for value in given]
        parts.append(model_sections(trained.model, *cut, repeated=again))
    return joined_sections(parts)
