"""Sums over chosen experts of which there are few: one product with all experts, gates multiplied by Triton kernels.

# y = sum over chosen e of G (x W[e])    ->    P = x W of all experts; y = the chosen rows of P times G, added
# y = sum over h and chosen e of G (x[h] W[h e])    ->    X = x[h] G for chosen e, 0 for others; y = X W

Nothing is sorted. A product with all experts at once has larger tiles than one per expert.
"""

import torch
from torch import Tensor

from tensornet_attn.runtime.experts import expert_sums
from tensornet_attn.runtime.operations import is_plain
from tensornet_attn.runtime.triton.configure import padded
from tensornet_attn.runtime.triton.kernels.experts import (
    as_blocks,
    in_product_dtype,
    is_plain_call,
    triton_routed,
    triton_routed_gradients,
)
from tensornet_attn.runtime.triton.kernels.gated_experts_kernels import gated_rows, gated_sums
from tensornet_attn.runtime.triton.kernels.kept import KeptLaunch, kept_launch
from tensornet_attn.runtime.triton.kernels.tiles import sums_of, tile_type

GATED_TILE = 2048  # elements of a tile


def triton_gated_expert_sums(x: Tensor, weight: Tensor, gates: Tensor, chosen: Tensor, total: bool = False) -> Tensor:
    """`gated_expert_sums`, with the same arguments."""
    x, weight, gates = in_product_dtype(x, weight, gates)
    if not is_plain_call(x, weight, gates, chosen):
        return expert_sums(x, weight, gates, chosen, total, triton_routed)
    operands = x, weight, gates, chosen, total or weight.ndim == 3
    if torch.is_grad_enabled() and any(y.requires_grad for y in operands[:3]):
        return GatedSums.apply(*operands)
    return result_of_all(*operands, False)[0]


def result_of_all(x, weight, gates, chosen, total, keep) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The result; if not `total`, also the chosen rows if `keep`, and the weight as a matrix [c, h e o]."""
    lead, heads = x.shape[: 1 - weight.ndim], () if total else weight.shape[:-3]
    x, weight, gates, chosen = as_blocks(x, weight, gates, chosen)
    (h, e, c, o), t = weight.shape, len(chosen)
    with torch.cuda.device_of(x):
        if total:
            rows = rows_by_gates(x.reshape(t * h, c), gates, chosen, e)[0]
            return (rows.view(t, h * e * c) @ weight.reshape(h * e * c, o)).view(*lead, o), None, None
        matrix = weight.permute(2, 0, 1, 3).reshape(c, h * e * o)
        every = (x.reshape(t, c) @ matrix).view(t * h, e, o)
        out, kept, _ = sums_by_gates(every, gates, chosen, keep=keep)
        return out.view(*lead, *heads, o), kept, matrix


def gradients_of_all(gradient, x, weight, gates, chosen, kept, matrix, wanted):
    """The gradients of x, weight and gates, as in `routed_gradients_by`: gradient [t, h or 1, 1, o]."""
    (h, e, c, o), t, dx, dweight = weight.shape, len(chosen), None, None
    with torch.cuda.device_of(gradient):
        if matrix is None:
            gradient, x = gradient.view(t, o), x.reshape(t * h, c)
            if wanted[1]:
                rows = rows_by_gates(x, gates, chosen, e)[0].view(t, h * e * c)
                dweight = (rows.mT @ gradient).view(weight.shape)
            if not wanted[0] and not wanted[2]:
                return None, dweight, None
            every = (gradient @ weight.reshape(h * e * c, o).mT).view(t * h, e, c)
            dx, _, dgates = sums_by_gates(every, gates, chosen, x if wanted[2] else None)
            return dx, dweight, dgates
        rows, dgates = rows_by_gates(gradient.reshape(t * h, o), gates, chosen, e, kept if wanted[2] else None)
        rows = rows.view(t, h * e * o)
        if wanted[0]:
            dx = rows @ matrix.mT
        if wanted[1]:
            dweight = (x.reshape(t, c).mT @ rows).view(c, h, e, o).permute(1, 2, 0, 3)
        return dx, dweight, dgates


class GatedSums(torch.autograd.Function):
    """`result_of_all` with gradients."""

    @staticmethod
    def forward(ctx, x, weight, gates, chosen, total):
        out, kept, matrix = result_of_all(x, weight, gates, chosen, total, ctx.needs_input_grad[2])
        ctx.save_for_backward(x, weight, gates, chosen, kept, matrix)
        ctx.set_materialize_grads(False)
        ctx.total = total
        return out

    @staticmethod
    def backward(ctx, gradient):
        if gradient is None:
            return (None,) * 5
        (*tensors, kept, matrix), wanted = ctx.saved_tensors, list(ctx.needs_input_grad[:3])
        x, weight, gates, chosen = as_blocks(*tensors)
        gradient = gradient.reshape(len(chosen), 1 if ctx.total else len(weight), 1, weight.shape[-1])
        if torch.is_grad_enabled() or not is_plain((gradient,)):
            found = triton_routed_gradients(gradient, x, weight, gates, chosen, wanted)
        else:
            found = gradients_of_all(gradient, x, weight, gates, chosen, kept, matrix, wanted)
        dx, dweight, dgates = (
            y.reshape(own.shape) if one else None for y, own, one in zip(found, tensors, wanted, strict=False)
        )
        return dx, dweight, dgates, None, None


def rows_by_gates(
    given: Tensor, gates: Tensor, chosen: Tensor, each: int, others: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """given [rows, c] times gates for each chosen expert, 0 for the others: [rows, each, c]; dots with `others`."""
    given, gates, (rows, width) = given.contiguous(), gates.contiguous(), given.shape
    out, dgates = given.new_empty(rows, each, width), None if others is None else torch.empty_like(gates)
    if out.numel():
        tensors = {"given": given, "gates": gates, "chosen": chosen.contiguous(), "out": out}
        gated_launch(gated_rows, "rows", rows, width, each, tensors | {"others": others, "dgates": dgates})
    return out, dgates


def sums_by_gates(
    given: Tensor, gates: Tensor, chosen: Tensor, others: Tensor | None = None, keep: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The chosen rows of given [rows, each, c], times gates and added: [rows, c]; these rows, and their dots."""
    gates, (rows, each, width) = gates.contiguous(), given.shape
    out, kept = given.new_empty(rows, width), given.new_empty(rows, chosen.shape[-1], width) if keep else None
    dgates = None if others is None else torch.empty_like(gates)
    if out.numel():
        tensors = {"given": given, "gates": gates, "chosen": chosen.contiguous(), "out": out, "kept": kept}
        gated_launch(gated_sums, "sums", rows, width, each, tensors | {"others": others, "dgates": dgates})
    return out, kept, dgates


def gated_launch(kernel, name: str, rows: int, width: int, each: int, tensors: dict) -> None:
    """Launches a kernel of programs that have some rows each."""
    given, slots = tensors["given"], tensors["chosen"].shape[-1]
    present = tuple(x is None for x in tensors.values())

    def make() -> KeptLaunch:
        wide = min(256, padded(width))
        tile = min(max(1, GATED_TILE // wide), padded(rows, 1))
        sizes = {"rows": rows, "width": width, "each": each, "slots": slots, "SLOTS": padded(slots, 2), "num_warps": 4}
        sizes |= {"DTYPE": tile_type(sums_of(given)), "ROWS": tile, "WIDTH": wide}
        return KeptLaunch(kernel, (-(-rows // tile),), sizes)

    kept_launch(("gated", name, rows, width, each, slots, present, given.dtype, given.device), make)(tensors)
