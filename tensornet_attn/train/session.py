"""A run as it stands between two steps: model, optimizer, memories, step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models.kinds import make
from tensornet_attn.models.memory import Memory
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.config import Run
from tensornet_attn.train.feed import Share, seed_part
from tensornet_attn.train.memory import recompute

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Tensor = torch.Tensor


@dataclass
class Session:
    """`model` has the weights; `module` is what is called: the model, spread over processes and compiled where asked.

    `memories`: of each part of a batch, None before the first step and for models without. `step`: optimiser steps that
    are done. `seconds`: spent on them, before this process too. `peak`: bytes, likewise.
    """

    run: Run
    task: Task
    spec: ModelSpec
    fabric: Fabric
    model: nn.Module
    module: Any
    optimizer: torch.optim.Optimizer
    share: Share
    memories: list[Memory | None] = field(default_factory=list)
    step: int = 0
    seconds: float = 0.0
    peak: int = 0

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.fabric.is_global_zero

    @property
    def rows(self) -> int:
        """Rows of a memory; 0 for a model without."""
        return getattr(self.spec.config, "memory", 0)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self.fabric.all_reduce(values, reduce_op="sum") if self.share.world > 1 else values


def begin(run: Run, task: Task, spec: ModelSpec, fabric: Fabric) -> Session:
    """The session before the first step; its weights are drawn from the run's seed. Raises InputError."""
    share = Share(fabric.global_rank, fabric.world_size, run.accumulate)
    _check_parts(run, spec, share)
    seed_part(run.seed, 0, 0)
    model = make(spec, backend=run.backend)
    if run.checkpoint_activations:
        recompute(model)
    module = fabric.setup_module(torch.compile(model) if run.compile else model)
    optimizer = fabric.setup_optimizers(optimizer_of(run, model))
    session = Session(run, task, spec, fabric, model, module, optimizer, share)
    session.memories = [None] * run.accumulate
    if session.rows:
        spans = [share.rows(part, run.batch) for part in range(run.accumulate)]
        session.memories = [model.new_memory(stop - start) for start, stop in spans]
    return session


def _check_parts(run: Run, spec: ModelSpec, share: Share) -> None:
    pieces = share.world * share.parts
    if run.batch < pieces:
        raise InputError(f"a batch of {run.batch} cannot be spread over {share.world} processes x {share.parts} parts.")
    if getattr(spec.config, "memory", 0) and run.batch % pieces:
        raise InputError(
            f"'{spec.name}' has a memory: its batch of {run.batch} must be a multiple of {share.world} processes x "
            f"{share.parts} parts."
        )


def optimizer_of(run: Run, model: nn.Module) -> torch.optim.AdamW:
    """AdamW; weights of one leg and of none, such as biases and norms, do not decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": run.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=run.lr, betas=run.betas)
