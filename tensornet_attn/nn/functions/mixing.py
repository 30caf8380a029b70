"""Products with large maps, whose numbers stay where they are."""

import torch
from torch import Tensor


def mixed(weight: Tensor, x: Tensor, last: int) -> Tensor:
    """The sum over g of weight[h, g] x[..., g, `last` dimensions], for each h: [..., h, `last` dimensions].

    One matmul for each entry of the dimensions before g: a single one for all would have to move x.
    """
    rows = x.flatten(-last)  # ... g numbers
    return (weight.expand(*rows.shape[:-2], -1, -1) @ rows).unflatten(-1, x.shape[-last:])


def read_by(maps: Tensor, values: Tensor) -> Tensor:
    """The sum over m of maps [..., n, m] times values [..., m], which broadcast: [..., n]."""
    batch = torch.broadcast_shapes(maps.shape[:-2], values.shape[:-1])
    maps, values = maps.expand(*batch, -1, -1), values.expand(*batch, -1)
    return (maps * values[..., None, :]).sum(-1) if torch.compiler.is_compiling() else ReadBy.apply(maps, values)


class ReadBy(torch.autograd.Function):
    """`read_by`, whose gradient of the maps is laid out as they are: that of a product by a vector is not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(maps, values):
        """The value."""
        return torch.einsum("...nm,...m->...n", maps, values)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keeps both."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        """The gradients of both."""
        maps, values = ctx.saved_tensors
        return gradient[..., None] * values[..., None, :], torch.einsum("...n,...nm->...m", gradient, maps)
