"""Routers by Triton kernels: the chosen entries of each row with their gradients, and choices sorted by expert."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tensornet_attn.runtime.experts import top_chosen
from tensornet_attn.runtime.maps import top_entries
from tensornet_attn.runtime.operations import asks_gradients, is_plain
from tensornet_attn.runtime.triton.configure import padded
from tensornet_attn.runtime.triton.kernels.choices_kernels import (
    choose_entries,
    choose_gradient,
    expert_counts,
    expert_order,
)
from tensornet_attn.runtime.triton.kernels.kept import KeptLaunch, kept_launch
from tensornet_attn.runtime.triton.kernels.tiles import tile_type

CHOICE_TILE = 4096  # entries of a program
MOST_CHOSEN = 16  # entries that kernels choose in turn
MOST_ENTRIES = 1024  # of a row
SORTED_TILE = 2048  # tokens times experts of a head
SORTED_BLOCKS = 128  # programs per head that sort


def triton_top_chosen(of: Tensor, by: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`top_chosen`, with the same arguments; products with experts sort these choices once, see `sorted_choices`."""
    if not suits_kernels(of, by, k, -1):
        return top_chosen(of, by, k)
    gates, chosen = chosen_entries(of, by, k, None)
    vars(chosen)["by_experts"] = {}
    return gates, chosen


def triton_top_entries(
    values: Tensor, by: Tensor, k: int, dim: int, fill: float = 0.0, keep: Tensor | None = None, few: bool = False
) -> Tensor:
    """`top_entries`, with the same arguments."""
    if keep is not None or not suits_kernels(values, by, k, dim):
        return top_entries(values, by, k, dim, fill, keep, few)
    return chosen_entries(values, by, k, fill)[0]


def suits_kernels(of: Tensor, by: Tensor, k: int, dim: int) -> bool:
    """Whether kernels choose: few entries of short rows, of tensors that nothing watches."""
    size = of.shape[-1]
    if k > min(MOST_CHOSEN, size) or size > MOST_ENTRIES or of.shape != by.shape or dim not in (-1, of.ndim - 1):
        return False
    return is_plain((of, by)) and of.is_floating_point() and of.dtype == by.dtype


def chosen_entries(of: Tensor, by: Tensor, k: int, fill: float | None) -> tuple[Tensor, Tensor]:
    """The chosen entries of `of`, or all with `fill` instead of the others, and the indices of the chosen ones."""
    ranking = None if by is of else by
    if asks_gradients(of, ranking):
        return PlainChoice.apply(of, ranking, k, fill)
    return chosen_of(of, ranking, k, fill)


def chosen_of(of: Tensor, by: Tensor | None, k: int, fill: float | None) -> tuple[Tensor, Tensor]:
    """`chosen_entries` without gradients."""
    shape, of, by = of.shape, of.contiguous(), None if by is None else by.contiguous()
    values = of.new_empty((*shape[:-1], k) if fill is None else shape)
    make = torch.zeros if of.device.type == "cpu" else torch.empty  # valid indices where kernels are only compiled
    chosen = make((*shape[:-1], k), device=of.device, dtype=torch.int64)
    if of.numel():
        dtypes = of.dtype, (of if by is None else by).dtype
        launch = kept_launch(
            ("choose", shape, k, fill, *dtypes, by is None, of.device),
            lambda: launch_of_rows(
                choose_entries,
                shape,
                k,
                fill=fill or 0.0,
                DTYPE=tile_type(torch.promote_types(torch.promote_types(*dtypes), torch.float32)),
            ),
        )
        gates, dense = (values, None) if fill is None else (None, values)
        with torch.cuda.device_of(of):
            launch({"of": of, "by": by, "gates": gates, "chosen": chosen, "dense": dense})
    return values, chosen


def launch_of_rows(kernel, shape: torch.Size, k: int, **constants) -> KeptLaunch:
    """The launch of a kernel of programs that have some rows each."""
    size, count = shape[-1], math.prod(shape[:-1])
    entries = padded(size, 2)
    tile = min(max(1, CHOICE_TILE // entries), padded(count, 2))
    constants |= {"rows": count, "size": size, "k": k, "ROWS": tile, "ENTRIES": entries, "num_warps": 4}
    return KeptLaunch(kernel, (-(-count // tile),), constants)


class PlainChoice(torch.autograd.Function):
    """`chosen_of` with gradients; those of `by` are zeros."""

    @staticmethod
    def forward(ctx, of, by, k, fill):
        values, chosen = chosen_of(of, by, k, fill)
        ctx.save_for_backward(chosen)
        ctx.mark_non_differentiable(chosen)
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.dense, ctx.by = of.shape, fill is not None, None if by is None else (by.shape, by.dtype)
        return values, chosen

    @staticmethod
    def backward(ctx, gradient, _):
        if gradient is None:
            return None, None, None, None
        (chosen,), by_gradient = ctx.saved_tensors, None
        if ctx.needs_input_grad[1]:
            by_gradient = gradient.new_zeros(ctx.by[0], dtype=ctx.by[1])
        if not ctx.needs_input_grad[0]:
            return None, by_gradient, None, None
        if torch.is_grad_enabled() or not is_plain((gradient,)):
            return of_all_entries(gradient, chosen, ctx.shape, ctx.dense), by_gradient, None, None
        return gradient_of_choice(gradient, chosen, ctx.shape, ctx.dense), by_gradient, None, None


def of_all_entries(gradient: Tensor, chosen: Tensor, shape: torch.Size, dense: bool) -> Tensor:
    """`gradient_of_choice` by operations of torch, which have derivatives."""
    if not dense:
        return gradient.new_zeros(shape).scatter(-1, chosen, gradient)
    is_chosen = torch.zeros(shape, device=chosen.device, dtype=torch.bool).scatter(-1, chosen, True)
    return torch.where(is_chosen, gradient, 0.0)


def gradient_of_choice(gradient: Tensor, chosen: Tensor, shape: torch.Size, dense: bool) -> Tensor:
    """The gradient of the entries of which some were chosen, from that of the chosen ones or of the dense result."""
    gradient, out = gradient.contiguous(), gradient.new_empty(shape)
    if out.numel():
        launch = kept_launch(
            ("choose_gradient", shape, chosen.shape[-1], dense, gradient.dtype, gradient.device),
            lambda: launch_of_rows(choose_gradient, shape, chosen.shape[-1], DENSE=dense),
        )
        with torch.cuda.device_of(gradient):
            launch({"gradient": gradient, "chosen": chosen, "out": out})
    return out


@dataclass(frozen=True)
class Choices:
    """Choices [t, h, k] sorted by expert: `order` of all t h k, `ends` of the h `each` experts in it."""

    order: Tensor
    ends: Tensor
    heads: int
    slots: int


def sorted_choices(chosen: Tensor, heads: int, each: int) -> Choices:
    """Sorts choices [..., k] of `each` experts by counting, without synchronising the device.

    `heads`: the size of the dimension before the last one if heads have experts of their own, else 1. Choices of
    `triton_top_chosen` are sorted once: all products with these experts share the result.
    """
    cached = getattr(chosen, "by_experts", None)
    key = heads, each, 0 if chosen.is_inference() else chosen._version
    choices = None if cached is None else cached.get(key)
    if choices is None:
        choices = newly_sorted(chosen, heads, each)
        if cached is not None:
            cached[key] = choices
    return choices


def newly_sorted(chosen: Tensor, heads: int, each: int) -> Choices:
    """`sorted_choices` of choices that are not sorted yet."""
    chosen, count, slots = chosen.contiguous(), chosen.numel(), chosen.shape[-1]
    tokens, experts = count // max(1, heads * slots), padded(each, 2)
    if not count:
        order = torch.zeros(0, device=chosen.device, dtype=torch.int32)
        return Choices(order, order.new_zeros(heads * each), heads, slots)
    tile = min(max(1, SORTED_TILE // experts), 256)
    span = tile * -(-tokens // (tile * SORTED_BLOCKS))  # tokens of a program
    blocks = -(-tokens // span)
    order, ends, counts = (
        torch.empty(size, device=chosen.device, dtype=torch.int32)
        for size in (count, heads * each, heads * blocks * experts)
    )
    sizes = {"tokens": tokens, "heads": heads, "blocks": blocks, "span": span, "slots": slots}
    sizes |= {"TOKENS": tile, "EXPERTS": experts, "num_warps": 4}
    key, grid = (tokens, heads, slots, each, chosen.dtype, chosen.device), (blocks, heads)
    with torch.cuda.device_of(chosen):
        kept_launch(("expert_counts", *key), lambda: KeptLaunch(expert_counts, grid, sizes))(
            {"chosen": chosen, "counts": counts}
        )
        order_sizes = {"each": each, "BLOCKS": min(padded(blocks, 2), max(1, SORTED_TILE // experts))}
        kept_launch(("expert_order", *key), lambda: KeptLaunch(expert_order, grid, sizes | order_sizes))(
            {"chosen": chosen, "counts": counts, "order": order, "ends": ends}
        )
    return Choices(order, ends, heads, slots)
