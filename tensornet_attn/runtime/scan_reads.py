"""Scans of products, of which queries read a sum: on a CPU a few positions at a time, so that no tensor has all states.

The states before each block of positions are saved for the backward, which computes the others again.
"""

import math

import torch
from torch import Tensor

from tensornet_attn.constants import LONG_ROW, MAP_PART
from tensornet_attn.runtime.exponential import exp
from tensornet_attn.runtime.operations import asks_gradients, is_plain, plain_gradients
from tensornet_attn.runtime.running import scan_sums

FEW_POSITIONS = 16  # of a block: fewer leave too many states to save


def scan_reads(
    x: tuple[Tensor, ...], decay: tuple[Tensor, ...], read: Tensor, dims: int, key_mask: Tensor | None
) -> Tensor:
    """The sum over the last dimension of h times `read` [..., n, `dims` dimensions, the last but one of size 1].

    h is `scan_sums` of the product of x [..., m, `dims` dimensions] and of that of `decay`, which broadcasts to it: one
    or two factors each.
    """
    operands = tuple(factor[(None,) * max(0, dims + 1 - factor.ndim)] for factor in (read, *x, *decay))
    call = (dims, len(x), key_mask)
    return read_elements(operands, *call) if in_blocks(operands, *call) else read_sums(operands, *call)


def read_elements(operands: tuple[Tensor, ...], dims: int, x_factors: int, key_mask: Tensor | None) -> Tensor:
    """`scan_reads` in blocks; of one batch element after another, if a block has few positions of all."""
    sizes = torch.broadcast_shapes(*(x.shape for x in operands))
    batched = len(sizes) > dims + 1 and sizes[0] > 1 and math.prod(sizes[1:]) >= LONG_ROW * sizes[-dims - 1]
    if batched and positions_of(operands, dims) < FEW_POSITIONS:
        masks = elements_of(key_mask, len(sizes) - dims, sizes[0])
        elements = zip(*(elements_of(x, len(sizes), sizes[0]) for x in operands), strict=True)
        return torch.stack(
            [read_elements(element, dims, x_factors, mask) for element, mask in zip(elements, masks, strict=True)]
        )
    call = (dims, x_factors, key_mask)
    return ScanReads.apply(*call, *operands) if asks_gradients(*operands) else read_blocks(operands, *call)


def elements_of(x: Tensor | None, ndim: int, count: int) -> list | tuple:
    """Each element of the first of `ndim` dimensions, which x may lack."""
    if x is None or x.ndim < ndim:
        return [x] * count
    return x.expand(count, *x.shape[1:]).unbind()


def in_blocks(operands: tuple[Tensor, ...], dims: int, x_factors: int, key_mask: Tensor | None) -> bool:
    """Whether to compute position after position: long rows, on a CPU, as many queries as keys."""
    if torch.compiler.is_compiling() or not is_plain(operands) or torch.is_autocast_enabled("cpu"):
        return False
    if {(x.device.type, x.dtype) for x in operands} not in ({("cpu", torch.float32)}, {("cpu", torch.float64)}):
        return False
    sizes = torch.broadcast_shapes(*(x.shape for x in operands[1 : 1 + x_factors]))
    lead, rest = sizes[: -dims - 1], sizes[-dims:]
    if key_mask is not None:
        lead = torch.broadcast_shapes(lead, key_mask.shape[:-1])
    aligned = lead == torch.broadcast_shapes(lead, *(x.shape[: -dims - 1] for x in operands))
    aligned = aligned and rest == torch.broadcast_shapes(rest, *(x.shape[-dims:] for x in operands))
    aligned = aligned and 0 not in sizes and operands[0].shape[-dims - 1] == sizes[-dims - 1]
    return aligned and math.prod((*lead, *rest)) >= LONG_ROW


def read_sums(operands: tuple[Tensor, ...], dims: int, x_factors: int, key_mask: Tensor | None) -> Tensor:
    """`scan_reads` with all states at once."""
    read, x, decay = operands[0], product_of(operands[1 : 1 + x_factors]), product_of(operands[1 + x_factors :])
    h = scan_sums(x, decay, dims, None, key_mask, read.shape[-dims - 1])
    return (h @ read.mT).squeeze(-1)


def mask_rows(key_mask: Tensor | None, dims: int) -> Tensor | None:
    """A key mask [..., m] with the dimensions of the operands."""
    return None if key_mask is None else key_mask[(..., *[None] * dims)]


def product_of(factors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """The product of one or two factors."""
    return factors[0] * factors[1] if len(factors) == 2 else factors[0]


def positions_of(operands: tuple[Tensor, ...], dims: int) -> int:
    """The positions of a block, whose states stay in the L2 caches."""
    sizes = torch.broadcast_shapes(*(x.shape for x in operands))
    return max(1, MAP_PART * torch.get_num_threads() * sizes[-dims - 1] // math.prod(sizes))


def blocks_of(operands: tuple[Tensor, ...], beside: tuple[Tensor | None, ...], dims: int):
    """The operands, and tensors beside them, at each block of positions."""
    dim, m = -dims - 1, operands[0].shape[-dims - 1]
    size = positions_of(operands, dims)
    for start in range(0, m, size):
        block_tensors = [
            x if x is None or x.shape[dim] == 1 else x.narrow(dim, start, min(size, m - start))
            for x in (*operands, *beside)
        ]
        yield block_tensors[: len(operands)], block_tensors[len(operands) :]


def states_of(
    operands: list[Tensor], seen: Tensor | None, dims: int, x_factors: int, before: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The states at the positions of a block, in new memory, and the factors of the states before them."""
    x, decay = product_of(operands[1 : 1 + x_factors]), exp(product_of(operands[1 + x_factors :]))
    if seen is not None:
        x, decay = torch.where(seen, x, 0), torch.where(seen, decay, 1)
    shape = torch.broadcast_shapes(x.shape, decay.shape)
    h = x if x_factors == 2 and x.shape == shape else x.expand(shape).clone(memory_format=torch.contiguous_format)
    for row, factor in zip(h.unbind(-dims - 1), decay.unbind(-dims - 1), strict=True):
        before = row if before is None else row.addcmul_(factor, before)
    return h, decay


def read_blocks(
    operands: tuple[Tensor, ...], dims: int, x_factors: int, key_mask: Tensor | None, starts: list | None = None
) -> Tensor:
    """`scan_reads` block by block. `starts`: a list for the states before each block but the first."""
    outs, last = [], None
    for block_operands, (seen,) in blocks_of(operands, (mask_rows(key_mask, dims),), dims):
        if starts is not None and last is not None:
            starts.append(last)
        h, _ = states_of(block_operands, seen, dims, x_factors, last)
        outs.append((h @ block_operands[0].mT).squeeze(-1))
        last = h.select(-dims - 1, -1).clone()
    return torch.cat(outs, -dims)


class ScanReads(torch.autograd.Function):
    """`scan_reads` block by block."""

    @staticmethod
    def forward(ctx, dims, x_factors, key_mask, *operands):
        """Saves the operands and the states before blocks."""
        starts: list[Tensor] = []
        out = read_blocks(operands, dims, x_factors, key_mask, starts)
        ctx.call, ctx.count = (dims, x_factors, key_mask), len(operands)
        ctx.save_for_backward(*operands, *starts)
        return out

    @staticmethod
    def backward(ctx, g):
        """The gradients; by plain operations if they are differentiated in turn, or batched."""
        operands, starts = ctx.saved_tensors[: ctx.count], [None, *ctx.saved_tensors[ctx.count :]]
        wanted = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled() or not is_plain((g, *operands)):
            return None, None, None, *plain_gradients(lambda *views: read_sums(views, *ctx.call), operands, wanted, g)
        dims, x_factors, key_mask = ctx.call
        totals, later = (
            [torch.zeros_like(x) if is_wanted else None for x, is_wanted in zip(operands, wanted, strict=True)],
            None,
        )
        beside = mask_rows(key_mask, dims), g[..., None], *totals
        blocks = zip([*blocks_of(operands, beside, dims)], starts, strict=True)
        for (block_operands, (seen, g_block, *block_totals)), before in reversed([*blocks]):
            gradients, later = block_gradients(block_operands, seen, g_block, before, later, dims, x_factors)
            for gradient, total in zip(gradients, block_totals, strict=True):
                if total is not None:
                    total.add_(gradient.sum_to_size(total.shape))
        return None, None, None, *totals


def block_gradients(
    operands: list[Tensor],
    seen: Tensor | None,
    g: Tensor,
    before: Tensor | None,
    later: Tensor | None,
    dims: int,
    x_factors: int,
) -> tuple[list[Tensor], Tensor]:
    """The gradients of a block's operands before they are summed, and that of the state before it.

    g [..., block, other dimensions, 1]. `later`: the gradient of the state after the block, by the block after it.
    """
    dim, read, x, decay = -dims - 1, operands[0], operands[1 : 1 + x_factors], operands[1 + x_factors :]
    h, factor = states_of(operands, seen, dims, x_factors, before)
    g_read, g_h = g.mT @ h, g * read
    since = torch.empty_like(g_h)  # of the state before each position, through the position
    rows = (reversed(t.unbind(dim)) for t in (g_h, factor, since))
    for g_row, factor_row, since_row in zip(*rows, strict=True):
        later = torch.mul(factor_row, g_row if later is None else g_row.add_(later), out=since_row)
    since.narrow(dim, 1, h.shape[dim] - 1).mul_(h.narrow(dim, 0, h.shape[dim] - 1))
    first = since.select(dim, 0)
    later = first.clone()
    first.zero_() if before is None else first.mul_(before)
    if seen is not None:
        g_h, since = torch.where(seen, g_h, 0), torch.where(seen, since, 0)
    factor_gradients = [
        g * cofactor
        for factors, g in ((x, g_h), (decay, since))
        for cofactor in (factors[::-1] if len(factors) == 2 else (1,))
    ]
    return [g_read, *factor_gradients], later
