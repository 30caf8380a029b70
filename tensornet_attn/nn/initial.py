"""Initial values of weights and states: `xavier`, `normal(std)`, `kron(eye(h), ones(d, d))` and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.graph.graph import Function, Graph, Tensor
from tensornet_attn.graph.pairs import summed_dims
from tensornet_attn.ir import arithmetic
from tensornet_attn.runtime.draw import xavier_

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def placed(
    design: str, device: torch.device | str | None, dtype: torch.dtype | str | None
) -> tuple[torch.device | None, torch.dtype | None]:
    """The device and the dtype that a caller names; raises InputError if there is no such, or none with arithmetic."""
    torch_dtype = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    if torch_dtype not in (None, *DTYPES):
        choices = ", ".join(str(choice) for choice in DTYPES)
        raise InputError(f"{design}: dtype is {dtype!r}; give one of {choices}.")
    try:
        return None if device is None else torch.empty(0, device=device).device, torch_dtype
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"{design}: there is no device {device!r} here: {reason}; give 'cpu' or 'cuda'.") from None


def initial(
    tensor: Tensor, graph: Graph, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The initial value of a weight or state, in its stored shape."""
    shape = [size for size in graph.shape_of(tensor.name) if size is not None]
    value = torch.empty(shape, device=device, dtype=dtype)
    initial_(value, tensor, graph)
    return value


@torch.no_grad()
def initial_(value: torch.Tensor, tensor: Tensor, graph: Graph) -> None:
    """Initialises a weight or state in place."""
    function = tensor.init or Function("xavier")
    if function.name == "xavier":
        xavier_(value, summed_dims(graph, tensor))
    elif function.name in ("uniform", "normal"):
        spread: Any = function.arguments[0]
        number = arithmetic.evaluate(spread, graph.values)
        value.normal_(0, number) if function.name == "normal" else value.uniform_(-number, number)
    else:
        dense = filled(function, list(value.shape), graph.values)
        value.copy_(_split(dense, value) if hasattr(value, "placements") else dense)


def _split(dense: torch.Tensor, like: Any) -> torch.Tensor:
    """Distributes a value like the DTensor `like`."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(dense.to(like.device, like.dtype), like.device_mesh, like.placements)


def filled(function: Function, shape: list[int], numbers: Mapping[str, int | float]) -> torch.Tensor:
    """The float64 value of an initialiser without random numbers: zeros, ones, full(value), eye, or a matrix."""
    if function.name == "full":
        constant: Any = function.arguments[0]
        return torch.full(shape, arithmetic.evaluate(constant, numbers), dtype=torch.float64)
    if function.arguments:
        return matrix(function, numbers)
    if function.name == "eye":
        return torch.eye(*shape, dtype=torch.float64)
    return {"zeros": torch.zeros, "ones": torch.ones}[function.name](shape, dtype=torch.float64)


def matrix(function: Function, numbers: Mapping[str, int | float]) -> torch.Tensor:
    """eye(a), ones(a, b), or kron(A, B), the Kronecker product of two matrices."""
    arguments: Any = function.arguments
    if function.name == "kron":
        left, right = (matrix(argument, numbers) for argument in arguments)
        return torch.kron(left, right)
    sizes = [arithmetic.evaluate(argument, numbers) for argument in arguments]
    make: Any = {"eye": torch.eye, "ones": torch.ones}[function.name]
    return make(*sizes, dtype=torch.float64)
