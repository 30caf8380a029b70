"""A run as it stands between two steps: devices, model, optimizer, memories; and what a process computes of a batch."""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.models.cache import ModelCache
from tensornet_attn.models.kinds import Memory, make
from tensornet_attn.models.model import Block
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.tasks.batch import UNSCORED, Batch, Score
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.config import Run

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Tensor = torch.Tensor


@dataclass(frozen=True)
class Share:
    """What one process takes of every batch: of `parts` parts, each spread over `world` processes, those of `rank`."""

    rank: int
    world: int
    parts: int

    def rows(self, part: int, batch: int) -> tuple[int, int]:
        """First row of a part and the row behind it.

        >>> [Share(rank, 2, 2).rows(part, 10) for part in (0, 1) for rank in (0, 1)]
        [(0, 2), (2, 5), (5, 7), (7, 10)]
        """
        place, pieces = part * self.world + self.rank, self.parts * self.world
        return batch * place // pieces, batch * (place + 1) // pieces

    def batches(self, task: Task, step: int, batch: int) -> list[Batch]:
        """The samples of a step, counted from 0, that this process computes."""
        spans = [self.rows(part, batch) for part in range(self.parts)]
        return [task.samples("train", step * batch + start, stop - start) for start, stop in spans]

    def judged(self, batch: Batch) -> Batch:
        """The rows of a validation batch that this process judges; a row that counts for nothing where there is none.

        Every process must call the model equally often: sharded weights are gathered in the call.
        """
        rows = len(batch)
        start, stop = rows * self.rank // self.world, rows * (self.rank + 1) // self.world
        if start < stop:
            return batch.rows(start, stop)
        one = batch.rows(0, 1)
        return replace(one, targets=torch.full_like(one.targets, UNSCORED))


def seed_part(seed: int, step: int, place: int) -> None:
    """Seeds torch, numpy and random for one part of one step: what is drawn depends on nothing that came before."""
    digest = hashlib.sha256(f"{seed} {step} {place}".encode()).digest()
    number = int.from_bytes(digest[:8], "little") >> 1
    torch.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


def arguments(batch: Batch) -> tuple[Any, ...]:
    """What a model of any kind is called with for a batch of its kind of task."""
    if batch.source is not None:
        return batch.source, batch.tokens, batch.source_mask, batch.key_mask
    return batch.tokens, batch.key_mask


def answer(
    model: Any,
    batch: Batch,
    memory: Memory | ModelCache | None = None,
    at: Tensor | None = None,
    losses: dict[str, Tensor] | None = None,
) -> tuple[Tensor, Memory | ModelCache | None]:
    """(logits, the next memory) of any kind of model for a batch of its kind of task.

    `at` [k]: what `scored_places` gave, for the logits [k vocabulary] of these places alone. `losses` takes the
    auxiliary losses by name, if given.
    """
    options = {"memory": memory, "at": at, "losses": None if losses is None else True}
    made = model(*arguments(batch), **{name: value for name, value in options.items() if value is not None})
    if losses is not None:
        *parts, found = made
        losses |= found
        made = tuple(parts) if len(parts) > 1 else parts[0]
    return made if memory is not None else (made, None)


def scored_places(batch: Batch) -> Tensor | None:
    """Where a language model is scored, counted through all rows [k]: it need say nothing elsewhere.

    None where every place is scored, and for other kinds of tasks. Of a batch in main memory: a device would be
    waited for.
    """
    if batch.source is not None or batch.targets.dim() == 1:
        return None
    scored = batch.targets.flatten() != UNSCORED
    return None if bool(scored.all()) else scored.nonzero().flatten()


def check_tokens(batch: Batch, task: Task) -> None:
    """Raises InputError for tokens or targets that are outside of the task's own vocabulary or classes."""
    bounds = {"tokens": task.vocabulary, "source": task.vocabulary, "targets": task.classes or task.vocabulary}
    for name, bound in bounds.items():
        values = getattr(batch, name)
        if values is None or values.is_floating_point():
            continue
        free = values == UNSCORED if name == "targets" else torch.zeros_like(values, dtype=torch.bool)
        wrong = values[~free & ((values < 0) | (values >= bound))]
        if wrong.numel():
            raise InputError(f"task '{task.name}' gave {int(wrong[0])} among its {name}; they are 0 to {bound - 1}.")


@torch.no_grad()
def judge(
    fabric: Fabric, model: nn.Module, module: Any, task: Task, batches: Iterable[Batch], samples: int | None = None
) -> Score:
    """Sums and counts over the first `samples` samples of batches of a task, or over all.

    A language model computes logits where they are scored alone; one with a memory carries it from batch to batch.
    """
    share, total, seen = Share(fabric.global_rank, fabric.world_size, 1), Score({}), 0
    memory, was = None, model.training
    module.eval()
    for whole in batches:
        if samples is not None and seen >= samples:
            break
        if samples is not None and memory is None:
            whole = whole.rows(0, samples - seen)
        seen += len(whole)
        own = share.judged(whole)
        check_tokens(own, task)
        at = scored_places(own)
        own, at = own.to(fabric.device), None if at is None else at.to(fabric.device)
        if getattr(model, "rows", 0) and (memory is None or memory.batch != len(own)):
            memory = model.new_memory(len(own))
        logits, memory = answer(module, own, memory, at)
        total = total + task.score(logits, own, at)
    module.train(was)
    if share.world > 1:
        total = total.replaced(fabric.all_reduce(total.vector().to(fabric.device), reduce_op="sum"))
    return total


def eval_line(score: Score) -> dict[str, float | None]:
    """The means of a score under the names that a metrics line has; null for what is not finite."""
    return {f"eval_{name}": value if math.isfinite(value) else None for name, value in score.means().items()}


PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "bf16-true": "bf16-true"}
NEEDED = {"lightning_fabric": "lightning-fabric", "safetensors": "safetensors", "matplotlib": "matplotlib"}


def need_parts(run: Run) -> None:
    """Raises MissingPartError for what training needs and is not installed."""
    needed = NEEDED | ({"tensorboard": "tensorboard"} if run.tensorboard else {})
    missing = [package for module, package in needed.items() if find_spec(module) is None]
    if missing:
        raise MissingPartError(f"training needs {', '.join(missing)}: pip install 'tensornet-attn[train]'.")


def fabric_of(run: Run) -> Fabric:
    """The Fabric of a run, not yet launched. Under torchrun the processes are those that it has started."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy

    if run.accelerator == "cuda" and not torch.cuda.is_available():
        raise InputError("accelerator 'cuda': torch finds no GPU here; choose auto or cpu.")
    found = "cuda" if torch.cuda.is_available() else "cpu"
    devices, nodes = run.devices, run.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:  # set by torchrun, with the numbers below
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    strategy: Any = DDPStrategy() if devices * nodes > 1 or run.strategy == "ddp" else "auto"
    if run.strategy == "fsdp":
        strategy = ModelParallelStrategy(_sharded, data_parallel_size=devices * nodes, tensor_parallel_size=1)
    return Fabric(
        accelerator=found if run.accelerator == "auto" else run.accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        precision=PRECISIONS[run.precision],  # type: ignore[arg-type]
    )


def _sharded(model: nn.Module, mesh: Any) -> nn.Module:
    """FSDP2: the weights of each block, and those of the rest, are gathered when they are used."""
    from torch.distributed.fsdp import fully_shard

    for block in blocks(model):
        fully_shard(block, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])


def blocks(model: nn.Module) -> list[Block]:
    """The layers of a model, of all its stacks."""
    return [module for module in model.modules() if isinstance(module, Block)]


def recompute(model: nn.Module) -> None:
    """Makes every layer keep its inputs alone. Layers with a state are left out: a second call reads another one."""
    for block in blocks(model):
        if not any(True for _ in block.buffers()):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


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
    memories: list[Memory | ModelCache | None] = field(default_factory=list)
    step: int = 0
    seconds: float = 0.0
    peak: int = 0

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.fabric.is_global_zero

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self.fabric.all_reduce(values, reduce_op="sum") if self.share.world > 1 else values


def begin(run: Run, task: Task, spec: ModelSpec, fabric: Fabric) -> Session:
    """The session before the first step; its weights are drawn from the run's seed. Raises InputError."""
    share = Share(fabric.global_rank, fabric.world_size, run.accumulate)
    pieces, remembers = share.world * share.parts, bool(getattr(spec.config, "memory", 0))
    if run.batch < pieces:
        raise InputError(f"a batch of {run.batch} cannot be spread over {share.world} processes x {share.parts} parts.")
    if remembers and run.batch % pieces:
        raise InputError(
            f"'{spec.name}' has a memory: its batch of {run.batch} must be a multiple of {share.world} processes x "
            f"{share.parts} parts."
        )
    by_cache = getattr(spec.config, "memory_kind", "inputs") == "cache"
    twice = [name for name in ("compile", "checkpoint_activations") if getattr(run, name)]
    if by_cache and twice:
        raise InputError(f"'{spec.name}' carries a cache, which each call changes: leave out '{twice[0]}'.")
    seed_part(run.seed, 0, 0)
    model = make(spec, backend=run.backend)
    if run.checkpoint_activations:
        recompute(model)
    module = fabric.setup_module(torch.compile(model) if run.compile else model)
    optimizer = fabric.setup_optimizers(optimizer_of(run, model))
    spans = [share.rows(part, run.batch) for part in range(run.accumulate)]
    memories = [model.new_memory(stop - start) if remembers else None for start, stop in spans]
    return Session(run, task, spec, fabric, model, module, optimizer, share, memories)


def optimizer_of(run: Run, model: nn.Module) -> torch.optim.AdamW:
    """AdamW; weights of one leg and of none, such as biases and norms, do not decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": run.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=run.lr, betas=run.betas)
