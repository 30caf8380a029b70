"""Everything a run goes on from as tensors by name, whole on every process, whatever number of processes there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models.memory import Memory

Tensor = torch.Tensor
Tensors = dict[str, Tensor]
MODEL, OPTIMIZER, MEMORY = "model.safetensors", "optimizer.safetensors", "memory.safetensors"
_KEEP = "keep"


def model_tensors(model: nn.Module) -> Tensors:
    """Parameters and buffers by name. Every process calls it where weights are sharded."""
    return {name: whole(value) for name, value in model.state_dict().items()}


@torch.no_grad()
def load_model(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Puts tensors into a model, sharded as it is. Raises InputError for those of another model."""
    own = model.state_dict()
    for name in [*own, *(name for name in tensors if name not in own)]:
        if name not in tensors or name not in own or own[name].shape != tensors[name].shape:
            shapes = [list(each[name].shape) if name in each else "missing" for each in (own, tensors)]
            raise InputError(
                f"'{path}' is a checkpoint of another model: '{name}' is {shapes[1]} there and {shapes[0]} here."
            )
        own[name].copy_(like(own[name], tensors[name]))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """The state of an optimizer, `PARAMETER/exp_avg` and the like."""
    return {
        f"{name}/{key}": whole(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Puts tensors into an optimizer, sharded as the parameters are."""
    parameters = dict(model.named_parameters())
    for path, value in tensors.items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        optimizer.state[parameter][key] = value if key == "step" else like(parameter, value)


def whole(value: Tensor) -> Tensor:
    """A tensor that is sharded put together again, on the CPU; a copy, so that training may go on meanwhile."""
    return gathered(value).detach().to("cpu", copy=True).contiguous()


def gathered(value: Tensor) -> Tensor:
    """A DTensor as a tensor, any other as it is. Every process calls it."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value  # importing DTensor takes a second


def like(pattern: Tensor, value: Tensor) -> Tensor:
    """A whole tensor placed as another one is: on its device, sharded as it."""
    value = value.to(pattern.device)
    if not hasattr(pattern, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, pattern.device_mesh, pattern.placements, src_data_rank=None)


def memory_tensors(memories: list[Memory | None], gather: Any) -> Tensors:
    """The memories of all parts, [rows of the batch, rows, width] each, in the order of the batch's rows.

    `gather` puts the pieces of one part together, those of all processes, along the first dimension.
    """
    parts = [dict(_named(memory)) for memory in memories if memory is not None]
    if not parts:
        return {}
    return {name: torch.cat([gather(part[name]).cpu() for part in parts]).contiguous() for name in parts[0]}


def memory_rows(tensors: Mapping[str, Tensor], start: int, stop: int, device: torch.device) -> Memory:
    """The memory of some rows of the batch."""
    rows = {name: value[start:stop].to(device, copy=True) for name, value in tensors.items()}
    keep = rows.pop(_KEEP, None)
    return Memory(tuple(rows[name] for name in sorted(rows, key=int)), keep)


def _named(memory: Memory) -> Iterator[tuple[str, Tensor]]:
    yield from ((str(place), state) for place, state in enumerate(memory.states))
    if memory.keep is not None:
        yield _KEEP, memory.keep
