"""Lightning Fabric for a run: devices, precision, and how the model is spread over processes."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.models.block import Block
from tensornet_attn.train.config import Run

if TYPE_CHECKING:
    from lightning_fabric import Fabric

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

    devices, nodes = _processes(run)
    if run.accelerator == "cuda" and not torch.cuda.is_available():
        raise InputError("accelerator 'cuda': torch finds no GPU here; choose auto or cpu.")
    return Fabric(
        accelerator=_accelerator(run),
        devices=devices,
        num_nodes=nodes,
        strategy=_strategy(run, devices * nodes),
        precision=PRECISIONS[run.precision],  # type: ignore[arg-type]
    )


def _accelerator(run: Run) -> str:
    if run.accelerator != "auto":
        return run.accelerator
    return "cuda" if torch.cuda.is_available() else "cpu"


def _processes(run: Run) -> tuple[int, int]:
    """(processes on this machine, machines)."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # set by torchrun, with the numbers below
        return run.devices, run.nodes
    here, everywhere = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return here, everywhere // here


def _strategy(run: Run, processes: int) -> Any:
    from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy

    if run.strategy == "fsdp":
        return ModelParallelStrategy(_sharded, data_parallel_size=processes, tensor_parallel_size=1)
    if processes > 1 or run.strategy == "ddp":
        return DDPStrategy()
    return "auto"


def _sharded(model: nn.Module, mesh: Any) -> nn.Module:
    """FSDP2: the weights of each block, and those of the rest, are gathered when they are used."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for block in blocks(model):
        fully_shard(block, mesh=mesh["data_parallel"])
        register_fsdp_forward_method(block, "after")
    return fully_shard(model, mesh=mesh["data_parallel"])


def blocks(model: nn.Module) -> list[Block]:
    """The layers of a model, of all its stacks."""
    return [module for module in model.modules() if isinstance(module, Block)]
