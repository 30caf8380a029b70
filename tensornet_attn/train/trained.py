"""The model of a run's folder: evaluation, text generation, and the sections of its attention layers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from tensornet_attn.analyse.section import Section, joined_sections, model_sections, repeated_tokens
from tensornet_attn.errors import InputError
from tensornet_attn.models.base import Model
from tensornet_attn.models.cache import ModelCache
from tensornet_attn.models.kinds import make
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.tasks.batch import Batch, Score
from tensornet_attn.tasks.recipe import Recipe
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.config import Run, read, spec_of
from tensornet_attn.train.folder import CHECKPOINTS, CONFIG, Saved, checkpoints, config_hash, load_model
from tensornet_attn.train.session import arguments, fabric_of, judge, need_parts
from tensornet_attn.train.start import task_of

Tensor = torch.Tensor
SAMPLES = 8
PART = 8  # samples per call of the model, which limits the memory of the logits


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run with its task, its model, and the checkpoint of the weights."""

    run: Run
    task: Task
    spec: ModelSpec
    model: Model
    saved: Saved

    def judge(self, split: str, samples: int | None = None, batch: int | None = None) -> Score:
        """The score on a split, or on its first `samples` samples. Raises InputError for an unknown split."""
        return self._judged(self.task.batches(split, batch or self.run.batch), samples)

    def slide(
        self,
        split: str,
        context: int | None = None,
        stride: int = 1,
        samples: int | None = None,
        batch: int | None = None,
    ) -> Score:
        """The score of a text in sliding windows, or of the first `samples` windows.

        A window has `context` tokens (default: the length of a sample) and scores its last `stride` positions; the
        first window scores all positions. Raises InputError for other tasks, and for a model with a memory.
        """
        if getattr(self.spec.config, "memory", 0):
            raise InputError(
                f"'{self.spec.name}' has a memory, which replaces sliding windows: evaluate it without them."
            )
        windows = self.task.sliding(split, batch or self.run.batch, context or self.task.length, stride)
        return self._judged(windows, samples)

    def _judged(self, batches: Iterable[Batch], samples: int | None) -> Score:
        fabric = fabric_of(self.run)
        return judge(fabric, self.model, fabric.setup_module(self.model), self.task, batches, samples)


def open_run(
    out: str | os.PathLike[str],
    checkpoint: str | None = None,
    accelerator: str | None = None,
    task: str | Recipe | None = None,
) -> TrainedRun:
    """Loads the model of a run's folder, with the last checkpoint or `checkpoint` (a step or a folder), on one process.

    `task`: the recipe of the run, or its new name `module:name`, if it is your own and has moved.

    Raises InputError if the folder is not a run, or has no such checkpoint, or has a checkpoint of another run, and if
    the task of the run has changed.
    """
    path = Path(out)
    if not (path / CONFIG).is_file():
        raise InputError(f"'{out}' is not the folder of a run: it has no '{CONFIG}'.")
    alone = {"devices": 1, "nodes": 1, "strategy": "auto", "checkpoint_activations": False, "tensorboard": False}
    chosen = {"accelerator": accelerator, "task": task}
    run = read(path / CONFIG, alone | {name: choice for name, choice in chosen.items() if choice is not None})
    need_parts(run)
    trained_on = task_of(run)
    spec = spec_of(run, trained_on)
    saved = _saved(path / CHECKPOINTS, checkpoint)
    if saved.state.get("config") != config_hash(run):
        raise InputError(f"'{saved.path}' is a checkpoint of another run: its configuration differs from '{out}'.")
    model = make(spec, backend=run.backend)
    load_model(model, saved)
    return TrainedRun(run, trained_on, spec, model.eval(), saved)


def _saved(path: Path, checkpoint: str | None) -> Saved:
    """The last checkpoint, or the checkpoint of a step or a folder."""
    available = checkpoints(path)
    if not available:
        raise InputError(f"'{path}' has no complete checkpoint; resume the run.")
    if checkpoint is None:
        return available[-1]
    for saved in available:
        if checkpoint in (str(saved.step), saved.path.name) or Path(checkpoint).resolve() == saved.path.resolve():
            return saved
    steps = ", ".join(str(saved.step) for saved in available)
    raise InputError(f"'{path}' has no checkpoint '{checkpoint}'; choose a step of {steps}.")


@torch.no_grad()
def sample(
    trained: TrainedRun, prompt: str, tokens: int, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
) -> str:
    """The prompt and `tokens` more tokens of a language model; `temperature` 0 chooses the most probable token.

    The context is the last `length` tokens, the length of a sample of the task. A cache is used until the context is
    full, if all designs have one. Raises InputError for a model of another kind, and for a prompt that is empty or not
    in the vocabulary.
    """
    if trained.task.kind != "language_model":
        raise InputError(f"'{trained.spec.name}' is a {trained.spec.kind}; sampling needs a language model.")
    alphabet = trained.task.alphabet
    token_ids = alphabet.encode(prompt)
    if not token_ids:
        raise InputError("the prompt is empty; give at least one character or word.")
    generator, length, cache = torch.Generator().manual_seed(seed), trained.task.length, cache_of(trained.model)
    for _ in range(tokens):
        if cache is None or len(token_ids) > length:  # a sliding window changes the context of every position
            logits = trained.model(torch.tensor([token_ids[-length:]]))
        else:
            logits = trained.model(torch.tensor([token_ids[cache.length :]]), cache=cache)
        token_ids.append(draw(logits[0, -1].float(), temperature, top_k, generator))
    return alphabet.decode(token_ids)


def cache_of(model: Model) -> ModelCache | None:
    """An empty decoding cache; None if a design has no cache, and all positions must be recomputed for each token."""
    try:
        return model.new_cache()
    except InputError:
        return None


def draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """Draws one token from logits [vocabulary], among the `top_k` most probable tokens."""
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
    """A section for each attention layer of a run, for `ta.report`; `out` is the folder of `tensornet-attn train`.

    The model has the weights of the last checkpoint, or of `checkpoint` (a step or a folder), and reads the first
    `samples` samples of a split of its task. `length` truncates the samples of a language model. A language model also
    reads `samples` repeated sequences of random tokens without padding, drawn with `seed`, for `induction_scores`.
    Raises InputError for a folder, checkpoint, split or length that does not fit.
    """
    return sections_of(open_run(out, checkpoint, "cpu"), split, samples, seed, length)


def sections_of(trained: TrainedRun, split: str, samples: int, seed: int, length: int | None = None) -> list[Section]:
    """The sections of a run that `open_run` returned; see `run_sections`."""
    task = trained.task
    if length is not None and task.kind != "language_model":
        raise InputError(
            f"only samples of language models can be cut, not those of '{task.name}': leave out the length."
        )
    if length is not None and length > task.length:
        raise InputError(f"length {length} exceeds the {task.length} tokens of a sample of '{task.name}'.")
    size = task.size(split)
    batch = task.samples(split, 0, samples if size is None else min(samples, size))
    tokens = [token for token in range(task.vocabulary) if token != task.source.padding]
    period, repeated = min((length or task.length) // 2, len(tokens)), None
    if task.kind == "language_model" and period >= 2:
        repeated = repeated_tokens(tokens, period, len(batch), seed)
    sections = []
    for start in range(0, len(batch), PART):
        model_inputs = arguments(batch.rows(start, start + PART))
        repeated_rows = None if repeated is None else repeated[start : start + PART]
        cut = [tensor if tensor is None else tensor[:, :length] for tensor in model_inputs]
        sections.append(model_sections(trained.model, *cut, repeated=repeated_rows))
    return joined_sections(sections)
