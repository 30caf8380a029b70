"""A run as it stands between two steps: devices, model, optimizer, memories, step."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.models.kinds import Memory, make
from tensornet_attn.models.model import Block
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.config import Run
from tensornet_attn.train.feed import Share, seed_part

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "bf16-true": "bf16-true"}
NEEDED = {"lightning_fabric": "lightning-fabric", "safetensors": "safetensors", "matplotlib": "matplotlib"}
Tensor = torch.Tensor


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
    memories: list[Memory | None] = field(default_factory=list)
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
