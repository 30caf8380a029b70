"""Products with chosen experts by Triton kernels: one launch for the experts of all heads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tensornet_attn.runtime.experts import (
    expert_rows,
    expert_sums,
    routed_gradient_shapes,
    routed_keep_all,
    routed_save,
    routed_shape,
    routed_twice,
)
from tensornet_attn.runtime.operations import one_by_one, operation
from tensornet_attn.runtime.triton.configure import configured, distinct, held_for, padded
from tensornet_attn.runtime.triton.kernels.experts_kernels import (
    expert_counts,
    expert_order,
    expert_outers,
    expert_products,
)
from tensornet_attn.runtime.triton.kernels.tiles import sums_of, tile_type

COUNTED = 256  # choices per program that counts the choices of each expert
COUNTERS = 32  # experts per program
EXPERTS = (
    (128, 64, 128, 8, 3),
    (64, 64, 128, 8, 3),
    (64, 64, 64, 4, 3),
    (64, 32, 64, 4, 2),
    (32, 32, 32, 4, 1),
    (16, 16, 16, 4, 1),
)


def triton_expert_sums(x: Tensor, weight: Tensor, gates: Tensor, chosen: Tensor, total: bool = False) -> Tensor:
    """`expert_sums`, with the same arguments."""
    return expert_sums(x, weight, gates, chosen, total, triton_routed)


def triton_expert_rows(x: Tensor, weight: Tensor, chosen: Tensor) -> Tensor:
    """`expert_rows`, with the same arguments."""
    return expert_rows(x, weight, chosen, triton_routed)


@torch.library.custom_op(operation("triton_routed"), mutates_args=())
def triton_routed(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, heads: int, slots: int) -> Tensor:
    """`routed`, with the same arguments: [t, heads, slots, o], rows of all heads in one launch."""
    with torch.cuda.device_of(x):
        out = grouped(x, weight, gates, sorted_choices(chosen, weight))[0]
        return summed(out.view(*chosen.shape, out.shape[-1]), heads, slots)


@torch.library.custom_op(operation("triton_routed_gradients"), mutates_args=())
def triton_routed_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and gates where `wanted`, as in `routed_gradients`, otherwise zeros."""
    with torch.cuda.device_of(gradient):
        choices = sorted_choices(chosen, weight)
        back, dots = None, None
        if wanted[0] or wanted[2]:
            back, dots = grouped(gradient, weight.mT, gates, choices, x if wanted[2] else None)
        dx = x.new_zeros(x.shape) if back is None else summed(back.view(*chosen.shape, back.shape[-1]), *x.shape[1:3])
        dweight = outer(x, gradient, gates, weight, choices) if wanted[1] else torch.zeros_like(weight)
        dgates = x.new_zeros(chosen.shape) if dots is None else dots.sum(0).view(chosen.shape).to(x.dtype)
        return dx, dweight, dgates


@dataclass(frozen=True)
class Choices:
    """Choices [t, h, k] sorted by expert: `order` of all t h k, `before` as in the kernels, blocks, experts, h, k."""

    order: Tensor
    before: Tensor
    blocks: int
    experts: int
    heads: int
    slots: int

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of choices, blocks and experts."""
        return len(self.order), self.blocks, self.experts


def sorted_choices(chosen: Tensor, weight: Tensor) -> Choices:
    """Sorts choices [t, h, k] of experts of a weight [h, e, c, o] by counting, without synchronising the device."""
    _, heads, slots = chosen.shape
    chosen, count, each = chosen.contiguous(), chosen.numel(), weight.shape[1]
    experts, blocks = heads * each, max(1, -(-count // COUNTED))
    counts = torch.empty(experts * blocks, device=chosen.device, dtype=torch.int32)
    order = torch.empty(count, device=chosen.device, dtype=torch.int32)
    tile = min(COUNTERS, padded(experts))
    grid, how = (blocks, -(-experts // tile)), {"BLOCK": COUNTED, "EXPERTS": tile, "num_warps": 4}
    sizes = count, blocks, heads, slots, each
    expert_counts[grid](chosen, counts, *sizes, **how)
    before = counts.cumsum(0, dtype=torch.int32)
    if count:
        expert_order[grid](chosen, counts, before, order, *sizes, **how)
    return Choices(order, before, blocks, experts, heads, slots)


def summed(rows: Tensor, heads: int, slots: int) -> Tensor:
    """Sums choice results [t, h, k, o] over h if `heads` is 1, and over k if `slots` is 1."""
    over = [dim for dim, size in ((1, heads), (2, slots)) if size == 1 and rows.shape[dim] != 1]
    return rows.sum(over, keepdim=True) if over else rows


def experts_config(x: Tensor, width: int, out_width: int, rows: int) -> dict:
    """The launch configuration for operands like x of these widths."""
    size = x.element_size()
    candidates = [
        {"ROWS": min(most, padded(rows)), "INNER": min(inner, padded(width)), "OUTER": min(outer, padded(out_width)),
         "num_warps": warps, "num_stages": stages} for most, inner, outer, warps, stages in EXPERTS
    ]  # fmt: skip

    def need(ROWS: int, INNER: int, OUTER: int, **launch: int) -> tuple[int, int]:
        most = max(ROWS, INNER)  # the gradient of the weight uses blocks INNER by OUTER
        return (most * OUTER + INNER * (ROWS + OUTER)) * held_for(size), size * (ROWS * INNER + most * OUTER)

    sizes = (width, out_width, min(padded(rows), 128), str(x.dtype).removeprefix("torch."))
    kinds = {"DTYPE": tile_type(sums_of(x)), "PRECISION": "ieee"}
    return configured("experts", sizes, distinct(candidates), need) | kinds


def grouped(
    given: Tensor, weight: Tensor, gates: Tensor | None, choices: Choices, other: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """gates * given weight[e] for each choice [choices, o], and partial products with the rows of `other`.

    given [t, h or 1, k or 1, c], weight [h, e, c, o] by its strides, other [t, h or 1, k or 1, o]. The grid has an
    upper bound of tiles (full tiles plus one per expert), so that no count is read from the device.
    """
    width, out_width = weight.shape[-2:]
    count = len(choices.order)
    config, given = experts_config(given, width, out_width, count), given.contiguous()
    out, columns = given.new_empty(count, out_width), -(-out_width // config["OUTER"])
    dots = None if other is None else given.new_empty(columns, count, dtype=sums_of(given))
    if out.numel():
        rows = None if other is None else other.contiguous()
        weight = weight.flatten(0, 1)
        expert_products[(-(-count // config["ROWS"]) + choices.experts, columns)](
            given, weight, None if gates is None else gates.contiguous(), out, rows, dots, choices.order,
            choices.before, *choices.counts, *weight.stride(), width, out_width, choices.heads, choices.slots,
            *given.shape[1:3], *((1, 1) if other is None else other.shape[1:3]), EXPERTS=padded(choices.experts),
            **config,
        )  # fmt: skip
    return out, dots


def outer(x: Tensor, gradient: Tensor, gates: Tensor | None, weight: Tensor, choices: Choices) -> Tensor:
    """The sums of gates x^T gradient over the choices of each expert, shaped like weight [h, e, c, o]."""
    width, out_width = weight.shape[-2:]
    config, out = experts_config(x, width, out_width, len(choices.order)), weight.new_empty(weight.shape)
    if out.numel():
        expert_outers[(choices.experts, -(-width // config["INNER"]), -(-out_width // config["OUTER"]))](
            x.contiguous(), gradient.contiguous(), None if gates is None else gates.contiguous(), out,
            choices.order, choices.before, *choices.counts[:2], width, out_width, choices.heads, choices.slots,
            *x.shape[1:3], *gradient.shape[1:3], **config,
        )  # fmt: skip
    return out


def triton_routed_autograd(ctx, gradient):
    """The gradients of the operands that require one."""
    wanted = list(ctx.needs_input_grad[:3])
    found = triton_routed_gradients(gradient.contiguous(), *ctx.saved_tensors, wanted)
    return *(one if want else None for one, want in zip(found, wanted, strict=True)), None, None, None


triton_routed.register_fake(routed_shape)
triton_routed_gradients.register_fake(routed_gradient_shapes)
triton_routed.register_autograd(triton_routed_autograd, setup_context=routed_save)
triton_routed_gradients.register_autograd(routed_twice, setup_context=routed_keep_all)
triton_routed.register_vmap(one_by_one(triton_routed))
triton_routed_gradients.register_vmap(one_by_one(triton_routed_gradients))
