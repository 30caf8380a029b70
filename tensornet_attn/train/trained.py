"""A run that was trained, or is still: its model with the weights of a checkpoint, to judge it or to write with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models.kinds import make
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.tasks.batch import Batch
from tensornet_attn.tasks.score import Score
from tensornet_attn.tasks.task import Task
from tensornet_attn.train import folder, state
from tensornet_attn.train.config import Run
from tensornet_attn.train.devices import fabric_of, need_parts
from tensornet_attn.train.folder import Saved
from tensornet_attn.train.judge import judge
from tensornet_attn.train.model import spec_of
from tensornet_attn.train.read import read
from tensornet_attn.train.save import CHECKPOINTS, CONFIG, config_hash
from tensornet_attn.train.start import task_of


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
    from safetensors.torch import load_file

    model = make(spec, backend=run.backend)
    state.load_model(model, load_file(saved.path / state.MODEL), saved.path)
    return Trained(run, task, spec, model.eval(), saved)


def _saved(path: Path, checkpoint: str | None) -> Saved:
    """The last checkpoint, or that of a step or of a folder."""
    found = folder.checkpoints(path)
    if not found:
        raise InputError(f"'{path}' holds no whole checkpoint.")
    if checkpoint is None:
        return found[-1]
    for saved in found:
        if checkpoint in (str(saved.step), saved.path.name) or Path(checkpoint).resolve() == saved.path.resolve():
            return saved
    steps = ", ".join(str(saved.step) for saved in found)
    raise InputError(f"'{path}' has no checkpoint '{checkpoint}'; there are those of steps {steps}.")
