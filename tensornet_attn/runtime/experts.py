"""Products with the experts chosen by a topk: rows sorted by expert, one matmul per expert, rows restored."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.maps import top_indices
from tensornet_attn.runtime.operations import exports_onnx, one_by_one, operation
from tensornet_attn.runtime.products import onednn_adds, onednn_product, onednn_saves, product_dtype
from tensornet_attn.runtime.recomputed import recomputed

# what the calls for a head, and for each of its experts, cost on a CPU, as multiply-adds
HEAD = 1 << 21
EXPERT = 1 << 18
FEW_TOKENS = 8  # tokens for which reading a weight takes as long as using it


def top_chosen(of: Tensor, by: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The values of `of` at the k largest entries of `by` along the last dimension, and the indices: [..., k] each."""
    values, ranked = torch.broadcast_tensors(of, by)
    chosen = top_indices(ranked, k, -1)
    gates = values.gather(-1, chosen)
    if by is not of:  # gives the operands of `by` zero gradients instead of none
        gates = torch.where(chosen >= 0, gates, ranked.gather(-1, chosen))
    return gates, chosen


def expert_sums(x: Tensor, weight: Tensor, gates: Tensor, chosen: Tensor, total: bool = False, compute=None) -> Tensor:
    """The sum over k of gates * x weight[h, chosen]: [..., h, o], or also summed over h (`total`): [..., o].

    x [..., h or 1, k or 1, c], weight [h, e, c, o], gates and chosen [..., h, k]; or all without the dimension h.
    `compute`: a replacement for `routed`.
    """
    if weight.ndim == 3:
        return expert_sums(x.unsqueeze(-3), weight[None], gates.unsqueeze(-2), chosen.unsqueeze(-2), True, compute)
    out = expert_product(x, weight, gates, chosen, 1 if total else len(weight), 1, compute).squeeze(-2)
    return out.squeeze(-2) if total else out


def gated_expert_sums(x: Tensor, weight: Tensor, of: Tensor, k: int, total: bool = False, gate=None) -> Tensor:
    """`expert_sums` with the k largest of `gate(of)` as gates, by products with all experts.

    x [..., c], or [..., h, c] if `total`, weight [h, e, c, o], of [..., h, e]; or without h, and without `total`.
    """
    gates = of if gate is None else gate(of)
    x = x[..., None, None, :] if weight.ndim == 4 and not total else x.unsqueeze(-2)
    return expert_sums(x, weight, *top_chosen(gates, gates, k), total, routed_densely)


def expert_rows(x: Tensor, weight: Tensor, chosen: Tensor, compute=None) -> Tensor:
    """x weight[h, chosen]: x [..., h or 1, k or 1, c], weight [h, e, c, o], chosen [..., h, k] -> [..., h, k, o].

    Alternatively all without the dimension h.
    """
    if weight.ndim == 3:
        return expert_rows(x.unsqueeze(-3), weight[None], chosen.unsqueeze(-2), compute).squeeze(-3)
    heads, slots = chosen.shape[-2:]
    return expert_product(x, weight, None, chosen, heads, slots, compute)


def expert_product(
    x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, heads: int, slots: int, compute=None
) -> Tensor:
    """`routed` for any leading dimensions, in the autocast dtype: [..., heads, slots, o]."""
    lead = chosen.shape[:-2]
    if x.shape[:-3] != lead:
        lead = torch.broadcast_shapes(x.shape[:-3], lead)
        x, chosen = x.expand(*lead, *x.shape[-3:]), chosen.expand(*lead, *chosen.shape[-2:])
        gates = gates if gates is None else gates.expand(*lead, *gates.shape[-2:])
    dtype = product_dtype(weight)
    x, weight = x.to(dtype).reshape(-1, *x.shape[-3:]), weight.to(dtype)
    gates = gates if gates is None else gates.to(dtype).reshape(-1, *gates.shape[-2:])
    chosen = chosen.reshape(-1, *chosen.shape[-2:])
    if compute is None:
        dense = not torch.compiler.is_compiling() and suits_all(x, weight, gates, chosen, slots)
        compute = routed_densely if dense else call_routed
    if torch.compiler.is_compiling() and exports_onnx():
        compute = routed_of_all
    out = compute(x, weight, gates, chosen, heads, slots)
    return out.reshape(*lead, heads, slots, weight.shape[-1])


def suits_all(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, slots: int) -> bool:
    """Whether computing all experts of so few tokens takes less time than the calls that sorting takes, on a CPU."""
    (tokens, _, k), (_, experts, *size) = chosen.shape, weight.shape
    plain = gates is not None and slots == x.shape[-2] == 1 and x.device.type == "cpu" and x.element_size() >= 4
    extra = max(tokens, FEW_TOKENS) * (experts - k) * math.prod(size)  # multiply-adds of a head
    return plain and extra <= HEAD + experts * EXPERT


def routed_densely(x: Tensor, weight: Tensor, gates: Tensor, chosen: Tensor, heads: int, slots: int) -> Tensor:
    """`routed` with one slot, computing all experts; the gates of those not chosen are 0."""
    share = gates.new_zeros(*chosen.shape[:2], weight.shape[1]).scatter(2, chosen, gates)  # t h e
    if heads == 1:  # one product sums over heads and experts
        rows = (share[..., None] * x.expand(-1, len(weight), -1, -1)).flatten(1)  # t (h e c)
        return (rows @ weight.flatten(0, 2))[:, None, None]
    all_outs = x.squeeze(2).movedim(0, -2)[:, None] @ weight  # h e t o
    return (all_outs * share.permute(1, 2, 0)[..., None]).sum(1).movedim(0, 1).unsqueeze(2)


@torch.library.custom_op(operation("routed"), mutates_args=())
def routed(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, heads: int, slots: int) -> Tensor:
    """gates * x weight[h, chosen] for t tokens: x [t, h or 1, k or 1, c], weight [h, e, c, o], chosen [t, h, k].

    The result is [t, heads, slots, o]: summed over h if `heads` is 1, over k if `slots` is 1.
    """
    out = x.new_empty(len(x), heads, slots, weight.shape[-1], dtype=sum_dtype(x, len(weight) // heads))
    x_rows = x.flatten(0, 2)
    for head in range(len(weight) if len(x) else 0):
        order, position, ends = by_expert(chosen[:, head], weight.shape[1])
        source, rows = row_numbers(x, chosen, head)[order], x.new_empty(len(order), weight.shape[-1])
        for experts, span in pieces(ends, grouped_at_once(x, weight)):
            put_product(rows[span], x_rows.index_select(0, source[span]), weight[head, experts], ends)
        add_head(out, head, put_back(rows, position, None if gates is None else gates[:, head], slots))
    return out.to(x.dtype)


@routed.register_fake
def routed_shape(x, weight, gates, chosen, heads, slots):
    """An empty tensor like the result."""
    return x.new_empty(x.shape[0], heads, slots, weight.shape[-1])


@torch.library.custom_op(operation("routed_gradients"), mutates_args=())
def routed_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, heads: int, slots: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, weight and gates from that of the result of `routed`, where `wanted`.

    The gradient of a gate is the inner product of its row of x with the gradient of that row, so that the backward
    takes two products of the size of the forward one and does not recompute x weight.
    """
    dx = x.new_empty(x.shape, dtype=sum_dtype(x, len(weight) // x.shape[1]))
    dweight, dgates = weight.new_zeros(weight.shape), x.new_zeros(chosen.shape)
    gradient = gradient.contiguous()
    gradient_rows, x_rows = gradient.flatten(0, 2), x.flatten(0, 2)
    for head in range(len(weight) if len(x) else 0):
        order, position, ends = by_expert(chosen[:, head], weight.shape[1])
        target, source = row_numbers(gradient, chosen, head)[order], row_numbers(x, chosen, head)[order]
        dx_rows, dots = x.new_empty(len(order), x.shape[-1]), x.new_empty(len(order))
        gate = None if gates is None else gates[:, head].flatten()[order, None]
        for experts, span in pieces(ends, grouped_at_once(x, weight)):
            after, rows = gradient_rows.index_select(0, target[span]), x_rows.index_select(0, source[span])
            if wanted[0] or wanted[2]:
                put_product(dx_rows[span], after, weight[head, experts].mT, ends)
            if wanted[1]:
                put_outer(dweight[head, experts], rows, after, None if gate is None else gate[span], ends)
            if wanted[2]:
                torch.sum(rows.mul_(dx_rows[span]), -1, out=dots[span])
        if wanted[0]:
            add_head(dx, head, put_back(dx_rows, position, None if gates is None else gates[:, head], x.shape[2]))
        if wanted[2]:
            dgates[:, head] = dots[position]
    return dx.to(x.dtype), dweight, dgates


@routed_gradients.register_fake
def routed_gradient_shapes(gradient, x, weight, gates, chosen, heads, slots, wanted):
    """Empty tensors like the gradients."""
    return x.new_empty(x.shape), weight.new_empty(weight.shape), x.new_empty(chosen.shape)


def routed_of_all(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, heads: int, slots: int) -> Tensor:
    """`routed` as plain code that computes all experts; it has derivatives of every order."""
    all_outs = torch.einsum("thkc,heco->thkeo", x.expand(-1, len(weight), -1, -1), weight)
    index = chosen[..., None, None].expand(*chosen.shape, 1, weight.shape[-1])
    picked = all_outs.expand(-1, -1, chosen.shape[-1], -1, -1).gather(3, index).squeeze(3)
    picked = picked if gates is None else picked * gates[..., None]
    picked = picked.sum(2, keepdim=True) if slots == 1 else picked
    return picked.sum(1, keepdim=True) if heads == 1 else picked


def routed_gradients_of_all(gradient, x, weight, gates, chosen, heads, slots, wanted) -> tuple[Tensor, Tensor, Tensor]:
    """`routed_gradients` by the derivatives of plain code."""
    gates = chosen.new_ones(chosen.shape, dtype=x.dtype) if gates is None else gates
    return torch.func.vjp(lambda x, w, g: routed_of_all(x, w, g, chosen, heads, slots), x, weight, gates)[1](gradient)


call_routed = recomputed(routed, routed_gradients, routed_gradients_of_all, one_by_one)


def by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """The order that sorts choices [t, k] by expert, the position of each choice in it, and the end of each expert."""
    sorted_experts, order = chosen.flatten().sort(stable=True)
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order), device=order.device)
    ends = torch.searchsorted(sorted_experts, torch.arange(experts, device=sorted_experts.device), right=True)
    return order, position.view(chosen.shape), ends


def row_numbers(x: Tensor, chosen: Tensor, head: int) -> Tensor:
    """The flat indices of the rows of x [t, h or 1, k or 1, c] that the choices of a head use: [t * k]."""
    tokens, heads, slots, _ = x.shape
    first = torch.arange(tokens, device=x.device) * heads + head % heads
    slot = torch.arange(chosen.shape[-1], device=x.device) % slots
    return (first[:, None] * slots + slot).flatten()


def put_back(rows: Tensor, position: Tensor, gates: Tensor | None, slots: int) -> Tensor:
    """Sorted rows times their gates [t, k], back in token order: [t, slots, o]; one slot sums over k."""
    if slots == 1:
        return F.embedding_bag(position, rows, per_sample_weights=gates, mode="sum")[:, None]
    return rows[position] if gates is None else rows[position] * gates[..., None]


def sum_dtype(x: Tensor, terms: int) -> torch.dtype:
    """The dtype for adding this many heads."""
    return torch.promote_types(x.dtype, torch.float32) if terms > 1 else x.dtype


def add_head(out: Tensor, head: int, head_out: Tensor) -> None:
    """Adds the result of a head [t, slots, o] to [t, heads or 1, slots, o]; the first is stored instead."""
    out_of_head = out[:, head % out.shape[1]]
    out_of_head.copy_(head_out) if head < out.shape[1] else out_of_head.add_(head_out)


def grouped_at_once(x: Tensor, weight: Tensor) -> bool:
    """Whether one kernel computes the matmuls of all experts: GPU, bfloat16, rows of multiples of 16 bytes."""
    return x.is_cuda and x.dtype == torch.bfloat16 and weight.shape[-1] % 8 == 0 and weight.shape[-2] % 8 == 0


def pieces(ends: Tensor, at_once: bool) -> list[tuple[slice, slice]]:
    """Slices of experts and of their rows for one matmul each: all together, or one expert at a time for locality."""
    if at_once:
        return [(slice(None), slice(None))]
    bounds = [0, *ends.tolist()]
    return [(slice(e, e + 1), slice(bounds[e], bounds[e + 1])) for e in range(len(ends))]


def put_product(out: Tensor, rows: Tensor, weight: Tensor, ends: Tensor) -> None:
    """rows weight[e], for sorted rows of one expert or of all: rows [r, c], weight [1 or e, c, o], out [r, o]."""
    if len(weight) > 1:
        out.copy_(F.grouped_mm(rows, weight, offs=ends.int()))
    elif onednn_saves(rows, weight[0]):
        out.copy_(onednn_product(rows, weight[0].mT))
    else:
        torch.mm(rows, weight[0], out=out)


def put_outer(out: Tensor, rows: Tensor, after: Tensor, gates: Tensor | None, ends: Tensor) -> None:
    """The sum of gates rows^T after per expert: rows [r, c], after [r, o], gates [r, 1], out [1 or e, c, o]."""
    if gates is not None and rows.shape[-1] < after.shape[-1]:
        rows = rows * gates
    elif gates is not None:
        after = after * gates
    if len(out) > 1:
        out.copy_(F.grouped_mm(rows.mT, after, offs=ends.int()))
    elif onednn_adds(rows, after, *out.shape[1:]):
        out.copy_(onednn_product(rows.mT, after.mT, True))
    else:
        torch.mm(rows.mT, after, out=out[0])
