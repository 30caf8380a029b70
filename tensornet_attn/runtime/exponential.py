"""exp on a CPU in a time that does not depend on the values.

torch.exp calls a library on CPUs whose slow path, for results below the smallest normal number and for exp(-inf), takes
20 to 150 times as long. Weights of far keys decay to such numbers, so here they become 0, as if decayed completely.
"""

import math

import torch
from torch import Tensor

from tensornet_attn.runtime.operations import applied

FEW_NUMBERS = 512  # numbers for which one call is faster, whatever the values
LOG2E = 1 / math.log(2)


def exp(x: Tensor) -> Tensor:
    """exp(x), with 0 for results below the smallest normal number."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.element_size() < 4 or x.numel() < FEW_NUMBERS:
        return x.exp()
    return applied(Exponential, x) if torch.is_grad_enabled() else Exponential.forward(x)


class Exponential(torch.autograd.Function):
    """`exp` of float32 and float64 on a CPU: saves only its result."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        """Computes the value; the rounding of the product is no larger than that of an x that is itself computed."""
        least = math.log2(torch.finfo(x.dtype).tiny)
        return torch.threshold_(x * LOG2E, least, -math.inf).exp2_()

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Saves the result."""
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, g):
        """The gradient of x."""
        return ctx.saved_tensors[0] * g

    @staticmethod
    def jvp(ctx, tangent):
        """The tangent of the result."""
        return ctx.saved_tensors[0] * tangent
