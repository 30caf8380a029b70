"""Noise as the call gives it or as it is drawn, states as a call leaves them, and losses of a batch."""

import torch
from torch import Tensor


def gaussian(
    noise: dict[str, Tensor] | None, name: str, shape: tuple[int, ...], std: float, draw: bool, like: Tensor
) -> Tensor:
    """The values given under `name`, else fresh ones times `std`, else zeros: [batch..., legs]."""
    if noise is not None and name in noise:
        return noise[name]
    if draw:
        return std * torch.randn(shape, device=like.device, dtype=like.dtype)
    return torch.zeros(shape, device=like.device, dtype=like.dtype)


def update_(state: Tensor, value: Tensor) -> None:
    """Stores a step's value, averaged over the dimensions before those of the state; an empty batch changes nothing."""
    value = value.detach()
    if value.numel() > 0:
        with torch.no_grad():
            state.copy_(value if value.ndim == state.ndim else value.flatten(0, value.ndim - state.ndim - 1).mean(0))


def batch_mean(value: Tensor) -> Tensor:
    """The mean over all batch dimensions of a step without legs, a scalar; zero of an empty batch."""
    return value.mean() if value.numel() > 0 else value.sum()
