"""Initial values of weights, noise, state updates, and batch means of losses."""

import torch
from torch import Tensor, nn


def xavier_(weight: Tensor, summed: tuple[int, ...]) -> None:
    """Uniform within sqrt(6 / (fan_in + fan_out)); fan_in counts the dimensions `summed` by the first product."""
    fan_in = fan_out = 1
    for dim, size in enumerate(weight.shape):
        fan_in, fan_out = (fan_in * size, fan_out) if dim in summed else (fan_in, fan_out * size)
    bound = (6 / (fan_in + fan_out)) ** 0.5
    nn.init.uniform_(weight, -bound, bound)


def set_(weight: Tensor, value: Tensor) -> None:
    """Copies a value into a weight, outside autograd."""
    with torch.no_grad():
        weight.copy_(value)


def gaussian(
    noise: dict[str, Tensor] | None, name: str, shape: tuple[int, ...], std: float, draw: bool, like: Tensor
) -> Tensor:
    """The noise given under `name`, else fresh noise times `std`, else zeros: [batch..., legs]."""
    if noise is not None and name in noise:
        return noise[name]
    if draw:
        return std * torch.randn(shape, device=like.device, dtype=like.dtype)
    return torch.zeros(shape, device=like.device, dtype=like.dtype)


def update_(state: Tensor, value: Tensor, *inputs: Tensor) -> None:
    """Stores a step's value in a state, averaged over the batch; an empty input of the call changes nothing."""
    value = value.detach()
    if all(x.numel() > 0 for x in (value, *inputs)):
        with torch.no_grad():
            state.copy_(value if value.ndim == state.ndim else value.flatten(0, value.ndim - state.ndim - 1).mean(0))


def batch_mean(value: Tensor) -> Tensor:
    """The mean over all batch dimensions of a step without legs, a scalar; zero for an empty batch."""
    return value.mean() if value.numel() > 0 else value.sum()
