"""Products with chosen experts by Triton kernels: one launch for the experts of all heads."""

import torch
from torch import Tensor

from tensornet_attn.runtime.experts import (
    expert_rows,
    expert_sums,
    routed_gradient_shapes,
    routed_gradients_of_all,
    routed_shape,
)
from tensornet_attn.runtime.operations import asks_gradients, is_plain, one_by_one, operation
from tensornet_attn.runtime.products import product_dtype
from tensornet_attn.runtime.recomputed import recomputed
from tensornet_attn.runtime.triton.configure import configured, distinct, held_for, padded
from tensornet_attn.runtime.triton.kernels.choices import Choices, newly_sorted, sorted_choices
from tensornet_attn.runtime.triton.kernels.experts_kernels import expert_joined, expert_outers, expert_products
from tensornet_attn.runtime.triton.kernels.kept import KeptLaunch, kept_launch
from tensornet_attn.runtime.triton.kernels.tiles import sums_of, tile_type

EXPERTS = (
    (128, 64, 128, 8, 3),
    (64, 64, 128, 8, 3),
    (64, 64, 64, 4, 3),
    (64, 32, 64, 4, 2),
    (32, 32, 32, 4, 1),
    (16, 16, 16, 4, 1),
)
MOST_TERMS = 64  # rows that a kernel adds


def triton_expert_sums(x: Tensor, weight: Tensor, gates: Tensor, chosen: Tensor, total: bool = False) -> Tensor:
    """`expert_sums`, with the same arguments."""
    x, weight, gates = in_product_dtype(x, weight, gates)
    if is_plain_call(x, weight, gates, chosen):
        return plainly_routed(x, weight, gates, chosen, total or weight.ndim == 3, False)
    return expert_sums(x, weight, gates, chosen, total, call_triton_routed)


def triton_expert_rows(x: Tensor, weight: Tensor, chosen: Tensor) -> Tensor:
    """`expert_rows`, with the same arguments."""
    x, weight, _ = in_product_dtype(x, weight, None)
    if is_plain_call(x, weight, None, chosen):
        return plainly_routed(x, weight, None, chosen, weight.ndim == 3, True)
    return expert_rows(x, weight, chosen, call_triton_routed)


def in_product_dtype(x: Tensor, weight: Tensor, gates: Tensor | None) -> tuple:
    """The operands in the dtype of products."""
    dtype = product_dtype(weight)
    if x.dtype == weight.dtype == dtype and (gates is None or gates.dtype == dtype):
        return x, weight, gates
    return x.to(dtype), weight.to(dtype), None if gates is None else gates.to(dtype)


def is_plain_call(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor) -> bool:
    """Whether operands need no expansion and nothing watches them."""
    return x.shape[: 1 - weight.ndim] == chosen.shape[: 2 - weight.ndim] and is_plain((x, weight, gates, chosen))


def plainly_routed(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, total: bool, rows: bool) -> Tensor:
    """`expert_rows` (`rows`) or `expert_sums` of plain tensors, without the dispatch of operations."""
    heads, each = (1, weight.shape[0]) if weight.ndim == 3 else weight.shape[:2]
    choices = sorted_choices(chosen, heads, each)
    operands = x, weight, gates, chosen, choices.order, choices.ends, total, rows
    if asks_gradients(*operands[:3]):
        return PlainRouted.apply(*operands)
    return plain_result(*operands)


def plain_result(x, weight, gates, chosen, order, ends, total, rows) -> Tensor:
    """`plainly_routed` without gradients."""
    head_sizes, k, width = weight.shape[:-3], chosen.shape[-1], weight.shape[-1]
    x_blocks, experts, gates, chosen = as_blocks(x, weight, gates, chosen)
    h = experts.shape[0]
    with torch.cuda.device_of(x):
        products, _ = grouped(x_blocks, experts, gates, Choices(order, ends, h, k))
        out = joined(products, None, chosen.shape, 1 if total else h, k if rows else 1)[0]
    return out.view(*x.shape[: 1 - weight.ndim], *(() if total else head_sizes), *((k,) if rows else ()), width)


def as_blocks(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor):
    """x [t, h or 1, k or 1, c], weight [h, e, c, o], gates and chosen [t, h, k] of a plain call."""
    if weight.ndim == 3:
        x, weight, gates = x.unsqueeze(-3), weight[None], None if gates is None else gates.unsqueeze(-2)
        chosen = chosen.unsqueeze(-2)
    t, sizes = chosen.shape[:-2].numel(), chosen.shape[-2:]
    gates = None if gates is None else gates.reshape(t, *sizes)
    return x.reshape(t, *x.shape[-3:]), weight, gates, chosen.reshape(t, *sizes)


class PlainRouted(torch.autograd.Function):
    """`plain_result` with gradients; the sorted choices are saved."""

    @staticmethod
    def forward(ctx, *operands):
        ctx.save_for_backward(*operands[:6])
        ctx.total, ctx.rows = operands[6:]
        return plain_result(*operands)

    @staticmethod
    def backward(ctx, gradient):
        (*tensors, order, ends), wanted = ctx.saved_tensors, list(ctx.needs_input_grad[:3])
        x, weight, gates, chosen = as_blocks(*tensors)
        t, h, k = chosen.shape
        gradient = gradient.reshape(t, 1 if ctx.total else h, k if ctx.rows else 1, weight.shape[-1])
        if torch.is_grad_enabled() or not is_plain((gradient,)):
            gradients = triton_routed_gradients(gradient, x, weight, gates, chosen, *gradient.shape[1:3], wanted)
        else:
            gradients = routed_gradients_by(gradient, x, weight, gates, Choices(order, ends, h, k), wanted)
        by_operand = (
            operand_gradient.reshape(tensor.shape) if is_wanted else None
            for operand_gradient, tensor, is_wanted in zip(gradients, tensors, wanted, strict=False)
        )
        return *by_operand, None, None, None, None, None


@torch.library.custom_op(operation("triton_routed"), mutates_args=())
def triton_routed(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, heads: int, slots: int) -> Tensor:
    """`routed`, with the same arguments: [t, heads, slots, o], rows of all heads in one launch."""
    with torch.cuda.device_of(x):
        rows, _ = grouped(x, weight, gates, newly_sorted(chosen, *weight.shape[:2]))
        return joined(rows, None, chosen.shape, heads, slots)[0]


@torch.library.custom_op(operation("triton_routed_gradients"), mutates_args=())
def triton_routed_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, heads: int, slots: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, weight and gates where `wanted`, as in `routed_gradients`, otherwise zeros."""
    choices = newly_sorted(chosen, *weight.shape[:2])
    gradients = routed_gradients_by(gradient.contiguous(), x, weight, gates, choices, wanted)
    zeros = (y.new_zeros(size) for y, size in ((x, x.shape), (weight, weight.shape), (x, chosen.shape)))
    dx, dweight, dgates = (
        zero if operand_gradient is None else operand_gradient
        for operand_gradient, zero in zip(gradients, zeros, strict=True)
    )
    return dx, dweight, dgates


def routed_gradients_by(
    gradient: Tensor, x: Tensor, weight: Tensor, gates: Tensor | None, choices: Choices, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """`triton_routed_gradients` for sorted choices; None where not `wanted`."""
    dx, dweight, dgates = None, None, None
    with torch.cuda.device_of(gradient):
        if wanted[0] or wanted[2]:
            rows, dots = grouped(gradient, weight.mT, gates, choices, x if wanted[2] else None)
            sizes = x.shape[0], choices.heads, choices.slots
            dx, dgates = joined(rows, dots, sizes, *(x.shape[1:3] if wanted[0] else sizes[1:]))
            dx, dgates = dx if wanted[0] else None, dgates if wanted[2] else None
        if wanted[1]:
            dweight = outer(x, gradient, gates, weight, choices)
    return dx, dweight, dgates


def joined(
    rows: Tensor, dots: Tensor | None, sizes: tuple[int, ...], heads: int, slots: int
) -> tuple[Tensor, Tensor | None]:
    """The results of choices [t, h, k, o], summed over h if `heads` is 1 and over k if `slots` is 1; and dots summed.

    `sizes`: t, h and k. dots [columns, choices] become [t, h, k], in the dtype of the rows.
    """
    t, h, k = sizes
    width, terms = rows.shape[-1], (h // heads) * (k // slots)
    beside = terms == k // slots or slots == 1  # the terms of a sum are adjacent rows
    out = rows if terms == 1 else rows.new_empty(rows.shape[0] // terms, width)
    if terms == 1 or not rows.numel() or not beside or terms > MOST_TERMS:
        dgates = None if dots is None else dots.sum(0).view(t, h, k).to(rows.dtype)
        if terms > 1:
            summed_dims = [dim for dim, kept_size, all_of in ((1, heads, h), (2, slots, k)) if kept_size < all_of]
            out = rows.view(t, h, k, width).sum(summed_dims)
        return out.view(t, heads, slots, width), dgates
    dgates = None if dots is None else rows.new_empty(t, h, k)
    key = ("expert_joined", rows.shape, terms, None if dots is None else dots.shape, rows.dtype, rows.device)
    kept_launch(key, lambda: launch_of_joined(rows, dots, terms))(
        {"rows": rows, "out": out, "dots": dots, "dgates": dgates}
    )
    return out.view(t, heads, slots, width), dgates


def launch_of_joined(rows: Tensor, dots: Tensor | None, terms: int) -> KeptLaunch:
    """The launch that adds adjacent rows."""
    (choices, width), wide = rows.shape, min(256, padded(rows.shape[-1]))
    count, tile_rows = choices // terms, max(1, 2048 // wide)
    constants = {"count": count, "choices": choices, "width": width, "columns": 0 if dots is None else len(dots)}
    constants |= {"TERMS": terms, "DTYPE": tile_type(sums_of(rows)), "ROWS": tile_rows, "WIDTH": wide, "num_warps": 4}
    return KeptLaunch(expert_joined, (-(-count // tile_rows), -(-width // wide)), constants)


def experts_config(x: Tensor, width: int, out_width: int, rows: int) -> dict:
    """The launch configuration for operands like x of these widths."""
    size = x.element_size()
    candidates = [
        {"ROWS": min(block, padded(rows)), "INNER": min(inner, padded(width)), "OUTER": min(outer, padded(out_width)),
         "num_warps": warps, "num_stages": stages} for block, inner, outer, warps, stages in EXPERTS
    ]  # fmt: skip

    def need(ROWS: int, INNER: int, OUTER: int, **launch: int) -> tuple[int, int]:
        max_rows = max(ROWS, INNER)  # the gradient of the weight uses blocks INNER by OUTER
        return (max_rows * OUTER + INNER * (ROWS + OUTER)) * held_for(size), size * (ROWS * INNER + max_rows * OUTER)

    sizes = (width, out_width, min(padded(rows), 128), str(x.dtype).removeprefix("torch."))
    precision = {"DTYPE": tile_type(sums_of(x)), "PRECISION": "ieee"}
    return configured("experts", sizes, distinct(candidates), need) | precision


def grouped(
    x: Tensor, weight: Tensor, gates: Tensor | None, choices: Choices, other_rows: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """gates * x weight[e] for each choice [choices, o], and partial products with `other_rows`.

    x [t, h or 1, k or 1, c], weight [h, e, c, o] by its strides, other_rows [t, h or 1, k or 1, o]. The grid has an
    upper bound of tiles (full tiles plus one per expert), so that no count is read from the device.
    """
    x, count, (*_, out_width) = x.contiguous(), choices.order.shape[0], weight.shape
    out = x.new_empty(count, out_width)
    if not out.numel():
        return out, None if other_rows is None else x.new_zeros(1, count, dtype=sums_of(x))
    shapes = x.shape, weight.shape, weight.stride(), choices.slots, None if other_rows is None else other_rows.shape
    launch = kept_launch(
        ("expert_products", *shapes, None if gates is None else gates.dtype, x.dtype, x.device),
        lambda: launch_of_products(x, weight, choices, other_rows),
    )
    dots = None if other_rows is None else x.new_empty(launch.grid[1], count, dtype=sums_of(x))
    launch({
        "given": x, "weight": weight, "gates": None if gates is None else gates.contiguous(), "out": out,
        "others": None if other_rows is None else other_rows.contiguous(), "dots": dots, "order": choices.order,
        "ends": choices.ends,
    })  # fmt: skip
    return out, dots


def launch_of_products(x: Tensor, weight: Tensor, choices: Choices, other_rows: Tensor | None) -> KeptLaunch:
    """The launch of `grouped` for tensors like these."""
    count, (heads, each, width, out_width) = len(choices.order), weight.shape
    config = experts_config(x, width, out_width, count)
    names = ("weight_head", "weight_expert", "weight_in", "weight_out")
    constants = dict(zip(names, weight.stride(), strict=True)) | config
    constants |= {"choices": count, "experts": heads * each, "each": each, "width": width, "out_width": out_width}
    constants |= widths_of(choices, x, other_rows) | {"EXPERTS": padded(heads * each)}
    grid = -(-count // config["ROWS"]) + heads * each, -(-out_width // config["OUTER"])
    return KeptLaunch(expert_products, grid, constants)


def widths_of(choices: Choices, x: Tensor, other_rows: Tensor | None) -> dict:
    """The numbers of heads and slots of choices and of two tensors of rows."""
    x_sizes, other_sizes = x.shape[1:3], (1, 1) if other_rows is None else other_rows.shape[1:3]
    return {
        "heads": choices.heads, "slots": choices.slots, "given_heads": x_sizes[0], "given_slots": x_sizes[1],
        "other_heads": other_sizes[0], "other_slots": other_sizes[1],
    }  # fmt: skip


def outer(x: Tensor, gradient: Tensor, gates: Tensor | None, weight: Tensor, choices: Choices) -> Tensor:
    """The sums of gates x^T gradient over the choices of each expert, shaped like weight [h, e, c, o]."""
    out = weight.new_empty(weight.shape)
    if out.numel():
        shapes = x.shape, gradient.shape, weight.shape, choices.slots
        launch = kept_launch(
            ("expert_outers", *shapes, None if gates is None else gates.dtype, x.dtype, x.device),
            lambda: launch_of_outers(x, gradient, weight, choices),
        )
        launch({
            "given": x.contiguous(), "gradient": gradient.contiguous(), "out": out, "order": choices.order,
            "gates": None if gates is None else gates.contiguous(), "ends": choices.ends,
        })  # fmt: skip
    return out


def launch_of_outers(x: Tensor, gradient: Tensor, weight: Tensor, choices: Choices) -> KeptLaunch:
    """The launch of `outer` for tensors like these."""
    heads, each, width, out_width = weight.shape
    config = experts_config(x, width, out_width, len(choices.order))
    grid = heads * each, -(-width // config["INNER"]), -(-out_width // config["OUTER"])
    sizes = {"width": width, "out_width": out_width}
    return KeptLaunch(expert_outers, grid, sizes | widths_of(choices, x, gradient) | config)


triton_routed.register_fake(routed_shape)
triton_routed_gradients.register_fake(routed_gradient_shapes)
call_triton_routed = recomputed(triton_routed, triton_routed_gradients, routed_gradients_of_all, one_by_one)
