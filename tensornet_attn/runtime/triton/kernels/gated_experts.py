"""Sums over chosen experts of which there are few: one product with all experts, gates by Triton kernels.

# y = sum over chosen e of G (x W[e])    ->    P = x W of all experts; y = the chosen rows of P times G, added
# y = sum over h and chosen e of G (x[h] W[h e])    ->    X = x[h] G for chosen e, 0 for others; y = X W

G are the k largest maps of a router's rows. Nothing is sorted, and a product with all experts has larger tiles than one
for each expert.
"""

import torch
from torch import Tensor

from tensornet_attn.runtime.experts import expert_sums, top_chosen
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
from tensornet_attn.runtime.triton.kernels.tile_maps import TILE_MAPS
from tensornet_attn.runtime.triton.kernels.tiles import sums_of, tile_type

GATED_TILE = 2048  # elements of a tile


def triton_gated_expert_sums(
    x: Tensor, weight: Tensor, of: Tensor, k: int, total: bool = False, gate: str = ""
) -> Tensor:
    """`gated_expert_sums`, with the same arguments; `gate`: the name of a `tile_map`, or empty."""
    if of.is_floating_point() and is_plain_call(x, weight, None, of):
        x, weight, _ = in_product_dtype(x, weight, None)
        call = k, total or weight.ndim == 3, gate
        if torch.is_grad_enabled() and any(y.requires_grad for y in (x, weight, of)):
            return GatedSums.apply(x, weight, of, *call)
        return result_of_all(x, weight, of, *call, False)[0]
    gates, chosen = top_of_map(of, k, gate)
    return expert_sums(x, weight, gates, chosen, total, triton_routed)


def top_of_map(of: Tensor, k: int, gate: str) -> tuple[Tensor, Tensor]:
    """The k largest maps of `of`, by operations of torch, and their indices."""
    whole = TILE_MAPS[gate][0]
    gates = of if whole is None else whole(of)
    return top_chosen(gates, gates, k)


def result_of_all(x, weight, of, k, total, gate, keep):
    """The result, with a bit of each row for each chosen expert.

    If not `total`, also the chosen rows if `keep`, and the weight as a matrix [c, h e o].
    """
    lead, heads = x.shape[: 1 - weight.ndim], () if total else weight.shape[:-3]
    x, weight, _, of = as_blocks(x, weight, None, of)
    (h, e, c, o), t = weight.shape, of.shape[0]
    chosen, call = torch.empty(t * h, device=x.device, dtype=torch.int32), (of.contiguous(), k, gate)
    with torch.cuda.device_of(x):
        if total:
            rows, _ = rows_by_gates(x.reshape(t * h, c), chosen, *call, choose=True)
            return (rows.view(t, h * e * c) @ weight.reshape(h * e * c, o)).view(*lead, o), chosen, None, None
        matrix = weight.permute(2, 0, 1, 3).reshape(c, h * e * o)
        every = (x.reshape(t, c) @ matrix).view(t * h, e, o)
        kept = x.new_empty(t * h, k, o) if keep else None
        out, _ = sums_by_gates(every, chosen, *call, kept=kept, choose=True)
        return out.view(*lead, *heads, o), chosen, kept, matrix


def gradients_of_all(gradient, x, weight, of, chosen, kept, matrix, k, gate, wanted):
    """The gradients of x, weight and `of` where `wanted`: gradient [t, h or 1, 1, o]."""
    (h, e, c, o), t, dx, dweight, call = weight.shape, of.shape[0], None, None, (chosen, of.contiguous(), k, gate)
    with torch.cuda.device_of(gradient):
        if matrix is None:
            gradient, x = gradient.view(t, o), x.reshape(t * h, c)
            if wanted[1]:
                rows, _ = rows_by_gates(x, *call)
                dweight = rows.view(t, h * e * c).mT @ gradient
            if not wanted[0] and not wanted[2]:
                return None, dweight, None
            every = (gradient @ weight.reshape(h * e * c, o).mT).view(t * h, e, c)
            dx, dof = sums_by_gates(every, *call, others=x if wanted[2] else None)
            return dx, dweight, dof
        rows, dof = rows_by_gates(gradient.reshape(t * h, o), *call, others=kept if wanted[2] else None)
        rows = rows.view(t, h * e * o)
        if wanted[0]:
            dx = rows @ matrix.mT
        if wanted[1]:
            dweight = (x.reshape(t, c).mT @ rows).view(c, h, e, o).permute(1, 2, 0, 3)
        return dx, dweight, dof


class GatedSums(torch.autograd.Function):
    """`result_of_all` with gradients."""

    @staticmethod
    def forward(ctx, x, weight, of, k, total, gate):
        out, *saved = result_of_all(x, weight, of, k, total, gate, ctx.needs_input_grad[2])
        ctx.save_for_backward(x, weight, of, *saved)
        ctx.set_materialize_grads(False)
        ctx.call = k, total, gate
        return out

    @staticmethod
    def backward(ctx, gradient):
        if gradient is None:
            return (None,) * 6
        (x, weight, of, *saved), (k, total, gate), wanted = ctx.saved_tensors, ctx.call, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or not is_plain((gradient,)):
            return *differentiable_gradients(gradient, x, weight, of, k, total, gate, wanted), None, None, None
        rows, matrices, _, scores = as_blocks(x, weight, None, of)
        gradient = gradient.reshape(scores.shape[0], -1, 1, weight.shape[-1])
        found = gradients_of_all(gradient, rows, matrices, scores, *saved, k, gate, wanted)
        return *shaped_like(found, (x, weight, of), wanted), None, None, None


def shaped_like(found, tensors, wanted):
    """Gradients in the shapes of their tensors, None where not `wanted`."""
    return [y.reshape(x.shape) if one else None for y, x, one in zip(found, tensors, wanted, strict=True)]


def differentiable_gradients(gradient, x, weight, of, k, total, gate, wanted):
    """The gradients of x, weight and `of` by operations that have derivatives."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        scores = of if again and of.requires_grad else of.detach().requires_grad_()
        gates, chosen = top_of_map(scores, k, gate)
        own = gates if again else gates.detach()
    rows, matrices, own, choices = as_blocks(x, weight, own, chosen)
    gradient = gradient.reshape(choices.shape[0], -1, 1, weight.shape[-1])
    dx, dweight, dgates = triton_routed_gradients(gradient, rows, matrices, own, choices, list(wanted))
    dof = None
    if wanted[2]:
        (dof,) = torch.autograd.grad(gates, scores, dgates.reshape(gates.shape), create_graph=again)
    return *shaped_like((dx, dweight), (x, weight), wanted[:2]), dof


def rows_by_gates(given, chosen, of, k, gate, others=None, choose=False) -> tuple[Tensor, Tensor | None]:
    """given [rows, c] times gates for each chosen expert, 0 for the others: [rows, each, c]; the gradient of `of`."""
    given, (rows, width), each = given.contiguous(), given.shape, of.shape[-1]
    out, dof = given.new_empty(rows, each, width), None if others is None else torch.empty_like(of)
    if out.numel():
        tensors = {"given": given, "of": of, "chosen": chosen, "out": out, "others": others, "dof": dof}
        gated_launch(gated_rows, ("rows", rows, width, each, k, gate, choose), tensors)
    return out, dof


def sums_by_gates(given, chosen, of, k, gate, kept=None, others=None, choose=False) -> tuple[Tensor, Tensor | None]:
    """The chosen rows of given [rows, each, c], times gates and added: [rows, c]; the gradient of `of`."""
    rows, each, width = given.shape
    out, dof = given.new_empty(rows, width), None if others is None else torch.empty_like(of)
    if out.numel():
        tensors = {"given": given, "of": of, "chosen": chosen, "out": out, "kept": kept, "others": others, "dof": dof}
        gated_launch(gated_sums, ("sums", rows, width, each, k, gate, choose), tensors)
    return out, dof


def gated_launch(kernel, call: tuple, tensors: dict) -> None:
    """Launches a kernel of programs that have some rows each."""
    given, of = tensors["given"], tensors["of"]

    def make() -> KeptLaunch:
        _, rows, width, each, k, gate, choose = call
        wide = min(256, padded(width))
        tile = min(max(1, GATED_TILE // wide), padded(rows, 1))
        sizes = {"rows": rows, "width": width, "each": each, "k": k, "ENTRIES": padded(each, 2), "CHOOSE": choose}
        sizes |= {"DTYPE": tile_type(sums_of(given)), "ROWS": tile, "WIDTH": wide, "num_warps": 4}
        return KeptLaunch(
            kernel, (-(-rows // tile),), sizes | dict(zip(("MAP", "SLOPE"), TILE_MAPS[gate][1:], strict=True))
        )

    some = tensors.get("kept") is None, tensors["others"] is None
    kept_launch(("gated", *call, *some, given.dtype, of.dtype, given.device), make)(tensors)
