"""`weighted_total` by Triton kernels, which read each tensor once."""

import math

import torch
from torch import Tensor

from tensornet_attn.runtime.operations import applied, asks_gradients, is_plain, plain_gradients
from tensornet_attn.runtime.products import weighted_total
from tensornet_attn.runtime.triton.configure import padded
from tensornet_attn.runtime.triton.kernels.tiles import sums_of, tile_type
from tensornet_attn.runtime.triton.kernels.totals_kernels import weighted_gradients, weighted_totals

MOST_TOTALLED = 4
TOTAL_TILE = 4096  # numbers of each tensor that a program reads at once
WIDEST_TOTAL = 512  # columns of a tile
TOTAL_PARTS = 2048  # programs that sum gradients of weights


def triton_weighted_total(values: list[Tensor], weights: list[Tensor | None]) -> Tensor:
    """`weighted_total`, with the same arguments; by torch where kernels do not apply, or would be watched."""
    operands = [*values, *weights]
    if not fits_totals(values, weights) or not is_plain(operands):
        return weighted_total(values, weights)
    if asks_gradients(*operands):
        return applied(WeightedTotal, len(values), *operands)
    return total_by_kernel(values, weights)


def fits_totals(values: list[Tensor], weights: list[Tensor | None]) -> bool:
    """Whether kernels apply: values of one shape, dtype and device; weights like their trailing dimensions."""
    first = values[0]
    alike = all((x.shape, x.dtype, x.device) == (first.shape, first.dtype, first.device) for x in values)
    if not alike or len(values) > MOST_TOTALLED or not first.numel():
        return False
    return all(
        w is None
        or (w.dtype == first.dtype and w.device == first.device and w.is_contiguous() and weight_columns(w, first))
        for w in weights
    )


def weight_columns(weight: Tensor, x: Tensor) -> tuple[int, int] | None:
    """How the trailing dimensions of x share the entries of a weight: entry `i // below % size` for column i."""
    shape = weight.shape
    while shape and shape[0] == 1:
        shape = shape[1:]
    dims = len(shape)
    while dims and shape[dims - 1] == 1:
        dims -= 1
    if len(shape) > x.ndim or shape[:dims] != x.shape[x.ndim - len(shape) : x.ndim - len(shape) + dims]:
        return None
    return math.prod(x.shape[x.ndim - len(shape) + dims :]), weight.numel()


def inner_of(x: Tensor, weights: list[Tensor | None]) -> int:
    """The number of columns: of the trailing dimensions that the weights span, and of more if these are few."""
    span, inner, sizes = max(math.prod(weight_columns(w, x) or (1, 1)) for w in weights if w is not None), 1, [*x.shape]
    while sizes and (inner < span or inner * sizes[-1] <= WIDEST_TOTAL):
        inner *= sizes.pop()
    return inner


def filled(operands: list) -> list:
    """The list, extended to MOST_TOTALLED entries."""
    return [*operands, *[None] * (MOST_TOTALLED - len(operands))]


def spread_of(x: Tensor, weights: list[Tensor | None]) -> tuple[list[int], int, int, dict]:
    """The divisors and sizes of the weights, the rows and columns, and the tile, for tensors like x."""
    inner = inner_of(x, weights)
    wide = min(WIDEST_TOTAL, padded(inner))
    pairs = [(1, 1) if w is None else weight_columns(w, x) or (1, 1) for w in filled(weights)]
    tile = {"DTYPE": tile_type(sums_of(x)), "ROWS": max(1, TOTAL_TILE // wide), "INNER": wide, "num_warps": 4}
    return [*(below for below, _ in pairs), *(size for _, size in pairs)], x.numel() // inner, inner, tile


def total_by_kernel(values, weights) -> Tensor:
    """The total, contiguous."""
    values = [x.contiguous() for x in values]
    divisors_and_sizes, rows, inner, tile = spread_of(values[0], weights)
    out = torch.empty_like(values[0])
    with torch.cuda.device_of(out):
        weighted_totals[(-(-rows // tile["ROWS"]), -(-inner // tile["INNER"]))](
            *filled(values), *filled(weights), out, *divisors_and_sizes, rows, inner, **tile
        )
    return out


class WeightedTotal(torch.autograd.Function):
    """The total of `count` values, each times a weight or not."""

    @staticmethod
    def forward(ctx, count, *operands):
        """Saves the operands."""
        ctx.count = count
        ctx.save_for_backward(*operands)
        return total_by_kernel(operands[:count], operands[count:])

    @staticmethod
    def backward(ctx, g):
        """The gradients of values and weights; by torch if they are differentiated in turn, or batched."""
        wanted, count, operands = ctx.needs_input_grad[1:], ctx.count, ctx.saved_tensors
        values, weights = operands[:count], operands[count:]
        if torch.is_grad_enabled() or not is_plain((g, *operands)):
            present = [x for x in operands if x is not None]
            wanted_present = [is_wanted for is_wanted, x in zip(wanted, operands, strict=True) if x is not None]

            def total(*tensors):
                remaining = iter(tensors)
                return weighted_total(
                    [next(remaining) for _ in values], [w if w is None else next(remaining) for w in weights]
                )

            gradients = iter(plain_gradients(total, present, wanted_present, g))
            return None, *(x if x is None else next(gradients) for x in operands)
        return None, *gradients_by_kernel(g.contiguous(), values, weights, wanted[:count], wanted[count:])


def gradients_by_kernel(g: Tensor, values, weights, of_values, of_weights) -> list[Tensor | None]:
    """The gradients of the values and weights that are asked for, the others None."""
    dx = [
        torch.empty_like(g) if is_wanted and w is not None else None
        for is_wanted, w in zip(of_values, weights, strict=True)
    ]
    divisors_and_sizes, rows, inner, tile = spread_of(g, weights)
    blocks = -(-rows // tile["ROWS"])
    span = max(1, blocks // TOTAL_PARTS)
    parts = g.new_empty(MOST_TOTALLED, -(-blocks // span), inner, dtype=sums_of(g))
    read = [x.contiguous() if is_wanted else None for x, is_wanted in zip(values, of_weights, strict=True)]
    with torch.cuda.device_of(g):
        weighted_gradients[(parts.shape[1], -(-inner // tile["INNER"]))](
            g, *filled(read), *filled(weights), *filled(dx), parts, *divisors_and_sizes, rows, inner, span, **tile
        )
    dx = [
        g if is_wanted and w is None else gradient
        for is_wanted, w, gradient in zip(of_values, weights, dx, strict=True)
    ]
    dw = [
        parts[t].sum(0).view(-1, w.numel(), divisors_and_sizes[t]).sum((0, 2)).view(w.shape).to(w.dtype)
        if is_wanted
        else None
        for t, (is_wanted, w) in enumerate(zip(of_weights, weights, strict=True))
    ]
    return [*dx, *dw]
