"""Elementwise maps that are not one call of torch."""

import torch
from torch import Tensor


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1 without its cancellation: exp(x) below zero, x + 1 above."""
    return x.clamp(max=0).exp() + x.relu() if torch.compiler.is_compiling() else Elu1.apply(x)


class Elu1(torch.autograd.Function):
    """`elu1` where nothing fuses its steps: it keeps its result alone, as its derivative is that, but at most 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        """The value."""
        return x.clamp(max=0).exp_().add_(x.relu())

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps the result."""
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, g):
        """The gradient of x."""
        return ctx.saved_tensors[0].clamp(max=1) * g

    @staticmethod
    def jvp(ctx, tangent):
        """The change of the result with that of x."""
        return ctx.saved_tensors[0].clamp(max=1) * tangent


def elu1_neg(x: Tensor) -> Tensor:
    """elu(-x) + 1."""
    return elu1(-x)


def reciprocal(x: Tensor) -> Tensor:
    """1 / x, and 0 where x is 0, in its gradient too."""
    return torch.where(x == 0, 0, torch.where(x == 0, 1, x).reciprocal())


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap tanh(x / cap): between -cap and cap."""
    return cap * torch.tanh(x / cap)
