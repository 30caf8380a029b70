"""The state of a run: devices, model, optimizer, memories, and the rows of each process."""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.models.base import Block, Model
from tensornet_attn.models.cache import ModelCache
from tensornet_attn.models.kinds import Memory, make
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.tasks.batch import UNSCORED, Batch, Score
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.config import Run

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Tensor = torch.Tensor
Held = Memory | ModelCache | None  # the memory of earlier segments


@dataclass(frozen=True)
class BatchShare:
    """The rows of a batch that process `rank` of `world` computes, in `accumulations` accumulated parts."""

    rank: int
    world: int
    accumulations: int

    def rows(self, part: int, batch: int) -> tuple[int, int]:
        """The first row of a part and the row after its last.

        >>> [BatchShare(rank, 2, 2).rows(part, 10) for part in (0, 1) for rank in (0, 1)]
        [(0, 2), (2, 5), (5, 7), (7, 10)]
        """
        piece, pieces = part * self.world + self.rank, self.accumulations * self.world
        return batch * piece // pieces, batch * (piece + 1) // pieces

    def batches(self, task: Task, step: int, batch: int) -> list[Batch]:
        """The samples of this process at a step, counted from 0."""
        spans = [self.rows(part, batch) for part in range(self.accumulations)]
        return [task.samples("train", step * batch + start, stop - start) for start, stop in spans]

    def judged(self, batch: Batch) -> Batch:
        """The rows of a validation batch for this process; one unscored row if it has none.

        All processes must make the same number of calls, because calls gather sharded weights.
        """
        rows = len(batch)
        start, stop = rows * self.rank // self.world, rows * (self.rank + 1) // self.world
        if start < stop:
            return batch.rows(start, stop)
        unscored = batch.rows(0, 1)
        return replace(unscored, targets=torch.full_like(unscored.targets, UNSCORED))


def seed_part(seed: int, step: int, piece: int) -> None:
    """Seeds torch, numpy and random for one part of one step, so that draws do not depend on earlier steps."""
    digest = hashlib.sha256(f"{seed} {step} {piece}".encode()).digest()
    number = int.from_bytes(digest[:8], "little") >> 1
    torch.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


def arguments(batch: Batch) -> tuple[Any, ...]:
    """The arguments of the model's call for a batch."""
    if batch.source is not None:
        return batch.source, batch.tokens, batch.source_mask, batch.key_mask
    return batch.tokens, batch.key_mask


def answer(
    model: Any, batch: Batch, memory: Held = None, at: Tensor | None = None, losses: dict[str, Tensor] | None = None
) -> tuple[Tensor, Held]:
    """Calls a model on a batch and returns (logits, next memory).

    With `at` [k], the result of `scored_places`, the logits are [k, vocabulary], of these positions only. Auxiliary
    losses are added to the dict `losses`, if given.
    """
    options = {"memory": memory, "at": at, "losses": None if losses is None else True}
    output = model(*arguments(batch), **{name: option for name, option in options.items() if option is not None})
    if losses is not None:
        *outputs, auxiliary = output
        losses |= auxiliary
        output = tuple(outputs) if len(outputs) > 1 else outputs[0]
    return output if memory is not None else (output, None)


def scored_places(batch: Batch) -> Tensor | None:
    """Flat indices [k] (row * n + position) of the scored positions of a language model.

    Returns None if every position is scored, and for other kinds of tasks. The batch must be on the CPU: on a device,
    the call would synchronise.
    """
    if batch.source is not None or batch.targets.dim() == 1:
        return None
    scored = batch.targets.flatten() != UNSCORED
    return None if bool(scored.all()) else scored.nonzero().flatten()


def check_tokens(batch: Batch, task: Task) -> None:
    """Raises InputError for tokens or targets outside the task's vocabulary or classes."""
    bounds = {"tokens": task.vocabulary, "source": task.vocabulary, "targets": task.classes or task.vocabulary}
    for name, bound in bounds.items():
        values = getattr(batch, name)
        if values is None or values.is_floating_point():
            continue
        free = values == UNSCORED if name == "targets" else torch.zeros_like(values, dtype=torch.bool)
        wrong = values[~free & ((values < 0) | (values >= bound))]
        if wrong.numel():
            raise InputError(f"task '{task.name}' returned {int(wrong[0])} in {name}; the range is 0 to {bound - 1}.")


@torch.no_grad()
def judge(
    fabric: Fabric, model: Model, module: Any, task: Task, batches: Iterable[Batch], samples: int | None = None
) -> Score:
    """The score over the first `samples` samples of the batches, or over all.

    A language model computes logits of scored positions only. A memory is carried from batch to batch.
    """
    share, total, seen = BatchShare(fabric.global_rank, fabric.world_size, 1), Score({}), 0
    memory, was_training = None, model.training
    module.eval()
    for batch in batches:
        if samples is not None and seen >= samples:
            break
        if samples is not None and memory is None:
            batch = batch.rows(0, samples - seen)
        seen += len(batch)
        local = share.judged(batch)
        check_tokens(local, task)
        at = scored_places(local)
        local, at = local.to(fabric.device), None if at is None else at.to(fabric.device)
        if getattr(model, "rows", 0) and (memory is None or memory.batch != len(local)):
            memory = model.new_memory(len(local))
        logits, memory = answer(module, local, memory, at)
        total = total + task.score(logits, local, at)
    module.train(was_training)
    if share.world > 1:
        total = total.replaced(summed(fabric, total.vector().to(fabric.device)))
    return total


def summed(fabric: Fabric, values: Tensor) -> Tensor:
    """The sum of a tensor over all processes."""
    return cast(Tensor, fabric.all_reduce(values, reduce_op="sum"))  # a tensor, because `values` is one


def eval_line(score: Score) -> dict[str, float | None]:
    """The means of a score under their names in metrics.jsonl; None for values that are not finite."""
    return {f"eval_{name}": mean if math.isfinite(mean) else None for name, mean in score.means().items()}


PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "bf16-true": "bf16-true"}
NEEDED = {"lightning_fabric": "lightning-fabric", "safetensors": "safetensors", "matplotlib": "matplotlib"}


def need_parts(run: Run) -> None:
    """Raises MissingPartError if a package that training needs is not installed."""
    needed = NEEDED | ({"tensorboard": "tensorboard"} if run.tensorboard else {})
    missing = [package for module, package in needed.items() if find_spec(module) is None]
    if missing:
        raise MissingPartError(f"training needs {', '.join(missing)}: pip install 'tensornet-attn[train]'.")


def fabric_of(run: Run) -> Fabric:
    """The Fabric of a run, not yet launched. Under torchrun, it uses torchrun's processes."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    if run.accelerator == "cuda" and not torch.cuda.is_available():
        raise InputError("accelerator 'cuda': torch finds no GPU; choose auto or cpu.")
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    devices, nodes = run.devices, run.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:  # set by torchrun, with the numbers below
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    strategy: Any = DDPStrategy() if devices * nodes > 1 or run.strategy == "ddp" else "auto"
    if run.strategy == "fsdp":
        strategy = ModelParallelStrategy(_sharded, data_parallel_size=devices * nodes, tensor_parallel_size=1)
    return Fabric(
        accelerator=accelerator if run.accelerator == "auto" else run.accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        precision=PRECISIONS[run.precision],  # type: ignore[arg-type]
    )


def _sharded(model: nn.Module, mesh: Any) -> nn.Module:
    """Applies FSDP2 to each block and to the rest of the model."""
    from torch.distributed.fsdp import fully_shard

    for block in blocks(model):
        fully_shard(block, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


def blocks(model: nn.Module) -> list[Block]:
    """The layers of all stacks of a model."""
    return [module for module in model.modules() if isinstance(module, Block)]


def recompute(model: nn.Module) -> None:
    """Checkpoints activations of every layer without a state; a recomputed layer would see an updated state."""
    for block in blocks(model):
        if not any(True for _ in block.buffers()):
            vars(block)["forward"] = partial(checkpoint, block.forward, use_reentrant=False)


@dataclass
class Session:
    """The state of a run between two steps.

    `model` has the weights; `module` is the model as it is called: distributed, and compiled if the run says so.
    `memories`: one for each part of a batch; None for models without memory. `step`: optimiser steps taken. `seconds`:
    time of these steps, including earlier processes. `peak`: peak memory in bytes, including earlier processes.
    """

    run: Run
    task: Task
    spec: ModelSpec
    fabric: Fabric
    model: Model
    module: Any
    optimizer: torch.optim.Optimizer
    share: BatchShare
    memories: list[Held] = field(default_factory=list)
    step: int = 0
    seconds: float = 0.0
    peak: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.fabric.is_global_zero

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return summed(self.fabric, values) if self.share.world > 1 else values


def begin(run: Run, task: Task, spec: ModelSpec, fabric: Fabric) -> Session:
    """The session before the first step, with weights drawn from the run's seed.

    Raises InputError if the batch or an option does not fit processes, parts or memory.
    """
    share = BatchShare(fabric.global_rank, fabric.world_size, run.accumulate)
    pieces, remembers = share.world * share.accumulations, bool(getattr(spec.config, "memory", 0))
    if run.batch < pieces:
        raise InputError(
            f"a batch of {run.batch} is too small for {share.world} processes x {share.accumulations} parts: "
            f"set 'batch' to at least {pieces}."
        )
    if remembers and run.batch % pieces:
        raise InputError(
            f"'{spec.name}' has a memory, and its batch of {run.batch} is not a multiple of {share.world} processes x "
            f"{share.accumulations} parts: change 'batch'."
        )
    by_cache = getattr(spec.config, "memory_kind", "inputs") == "cache"
    excluded = [name for name in ("compile", "checkpoint_activations") if getattr(run, name)]
    if by_cache and excluded:
        raise InputError(f"'{spec.name}' has 'memory_kind: cache', which excludes '{excluded[0]}': leave it out.")
    seed_part(run.seed, 0, 0)
    model = make(spec, backend=run.backend)
    if run.checkpoint_activations:
        recompute(model)
    called: Any = torch.compile(model) if run.compile else model  # a module, which torch declares as a function
    module = fabric.setup_module(called)
    optimizer: Any = fabric.setup_optimizers(optimizer_of(run, model))  # one, which has the methods of an optimizer
    spans = [share.rows(part, run.batch) for part in range(run.accumulate)]
    memories = [model.new_memory(stop - start) if remembers else None for start, stop in spans]
    return Session(run, task, spec, fabric, model, module, optimizer, share, memories)


def optimizer_of(run: Run, model: nn.Module) -> torch.optim.AdamW:
    """AdamW, without weight decay on parameters of fewer than two legs, such as biases and norms."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": run.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=run.lr, betas=run.betas)
