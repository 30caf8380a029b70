"""Scans of products, of which queries read a sum: on a CPU a few positions at a time, so that no tensor has all states.

The states before each block of positions are saved for the backward, which computes the others again.
"""

import math

import torch
from torch import Tensor

from tensornet_attn.runtime.exponential import exp
from tensornet_attn.runtime.maps import MAP_PART
from tensornet_attn.runtime.operations import asks_gradients, is_plain, plain_gradients
from tensornet_attn.runtime.running import LONG_ROW, scan_sums

FEW_POSITIONS = 16  # of a block: fewer leave too many states to save


def scan_reads(
    x: tuple[Tensor, ...], decay: tuple[Tensor, ...], read: Tensor, dims: int, key_mask: Tensor | None
) -> Tensor:
    """The sum over the last dimension of h times `read` [..., n, `dims` dimensions, the last but one of size 1].

    h is `scan_sums` of the product of x [..., m, `dims` dimensions] and of that of `decay`, which broadcasts to it: one
    or two factors each.
    """
    given = tuple(one[(None,) * max(0, dims + 1 - one.ndim)] for one in (read, *x, *decay))
    call = (dims, len(x), key_mask)
    return read_elements(given, *call) if in_blocks(given, *call) else read_sums(given, *call)


def read_elements(given: tuple[Tensor, ...], dims: int, of: int, key_mask: Tensor | None) -> Tensor:
    """`scan_reads` in blocks; of one batch element after another, if a block has few positions of all."""
    sizes = torch.broadcast_shapes(*(x.shape for x in given))
    batched = len(sizes) > dims + 1 and sizes[0] > 1 and math.prod(sizes[1:]) >= LONG_ROW * sizes[-dims - 1]
    if batched and positions_of(given, dims) < FEW_POSITIONS:
        seen = elements_of(key_mask, len(sizes) - dims, sizes[0])
        every = zip(*(elements_of(x, len(sizes), sizes[0]) for x in given), strict=True)
        return torch.stack([read_elements(own, dims, of, mask) for own, mask in zip(every, seen, strict=True)])
    call = (dims, of, key_mask)
    return ScanReads.apply(*call, *given) if asks_gradients(*given) else read_blocks(given, *call)


def elements_of(x: Tensor | None, ndim: int, count: int) -> list | tuple:
    """Each element of the first of `ndim` dimensions, which x may lack."""
    if x is None or x.ndim < ndim:
        return [x] * count
    return x.expand(count, *x.shape[1:]).unbind()


def in_blocks(given: tuple[Tensor, ...], dims: int, of: int, key_mask: Tensor | None) -> bool:
    """Whether to compute position after position: long rows, on a CPU, as many queries as keys."""
    if torch.compiler.is_compiling() or not is_plain(given) or torch.is_autocast_enabled("cpu"):
        return False
    if {(x.device.type, x.dtype) for x in given} not in ({("cpu", torch.float32)}, {("cpu", torch.float64)}):
        return False
    sizes = torch.broadcast_shapes(*(x.shape for x in given[1 : 1 + of]))
    lead, rest = sizes[: -dims - 1], sizes[-dims:]
    if key_mask is not None:
        lead = torch.broadcast_shapes(lead, key_mask.shape[:-1])
    same = lead == torch.broadcast_shapes(lead, *(x.shape[: -dims - 1] for x in given))
    same = same and rest == torch.broadcast_shapes(rest, *(x.shape[-dims:] for x in given))
    same = same and 0 not in sizes and given[0].shape[-dims - 1] == sizes[-dims - 1]
    return same and math.prod((*lead, *rest)) >= LONG_ROW


def read_sums(given: tuple[Tensor, ...], dims: int, of: int, key_mask: Tensor | None) -> Tensor:
    """`scan_reads` with all states at once."""
    read, x, decay = given[0], product_of(given[1 : 1 + of]), product_of(given[1 + of :])
    h = scan_sums(x, decay, dims, None, key_mask, read.shape[-dims - 1])
    return (h @ read.mT).squeeze(-1)


def mask_rows(key_mask: Tensor | None, dims: int) -> Tensor | None:
    """A key mask [..., m] with the dimensions of the operands."""
    return None if key_mask is None else key_mask[(..., *[None] * dims)]


def product_of(factors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """The product of one or two factors."""
    return factors[0] * factors[1] if len(factors) == 2 else factors[0]


def positions_of(given: tuple[Tensor, ...], dims: int) -> int:
    """The positions of a block, whose states stay in the L2 caches."""
    sizes = torch.broadcast_shapes(*(x.shape for x in given))
    return max(1, MAP_PART * torch.get_num_threads() * sizes[-dims - 1] // math.prod(sizes))


def blocks_of(given: tuple[Tensor, ...], beside: tuple[Tensor | None, ...], dims: int):
    """The operands, and tensors beside them, at each block of positions."""
    place, m = -dims - 1, given[0].shape[-dims - 1]
    size = positions_of(given, dims)
    for start in range(0, m, size):
        parts = [
            x if x is None or x.shape[place] == 1 else x.narrow(place, start, min(size, m - start))
            for x in (*given, *beside)
        ]
        yield parts[: len(given)], parts[len(given) :]


def states_of(
    given: list[Tensor], seen: Tensor | None, dims: int, of: int, before: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The states at the positions of a block, in new memory, and the factors of the states before them."""
    x, decay = product_of(given[1 : 1 + of]), exp(product_of(given[1 + of :]))
    if seen is not None:
        x, decay = torch.where(seen, x, 0), torch.where(seen, decay, 1)
    shape = torch.broadcast_shapes(x.shape, decay.shape)
    h = x if of == 2 and x.shape == shape else x.expand(shape).clone(memory_format=torch.contiguous_format)
    for row, factor in zip(h.unbind(-dims - 1), decay.unbind(-dims - 1), strict=True):
        before = row if before is None else row.addcmul_(factor, before)
    return h, decay


def read_blocks(
    given: tuple[Tensor, ...], dims: int, of: int, key_mask: Tensor | None, starts: list | None = None
) -> Tensor:
    """`scan_reads` block by block. `starts`: a list for the states before each block but the first."""
    found, last = [], None
    for own, (seen,) in blocks_of(given, (mask_rows(key_mask, dims),), dims):
        if starts is not None and last is not None:
            starts.append(last)
        h, _ = states_of(own, seen, dims, of, last)
        found.append((h @ own[0].mT).squeeze(-1))
        last = h.select(-dims - 1, -1).clone()
    return torch.cat(found, -dims)


class ScanReads(torch.autograd.Function):
    """`scan_reads` block by block."""

    @staticmethod
    def forward(ctx, dims, of, key_mask, *given):
        """Saves the operands and the states before blocks."""
        starts: list[Tensor] = []
        found = read_blocks(given, dims, of, key_mask, starts)
        ctx.call, ctx.count = (dims, of, key_mask), len(given)
        ctx.save_for_backward(*given, *starts)
        return found

    @staticmethod
    def backward(ctx, g):
        """The gradients; by plain operations if they are differentiated in turn, or batched."""
        given, starts = ctx.saved_tensors[: ctx.count], [None, *ctx.saved_tensors[ctx.count :]]
        wanted = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled() or not is_plain((g, *given)):
            return None, None, None, *plain_gradients(lambda *own: read_sums(own, *ctx.call), given, wanted, g)
        dims, of, key_mask = ctx.call
        totals, later = [torch.zeros_like(x) if want else None for x, want in zip(given, wanted, strict=True)], None
        beside = mask_rows(key_mask, dims), g[..., None], *totals
        every = zip([*blocks_of(given, beside, dims)], starts, strict=True)
        for (own, (seen, g_own, *into)), before in reversed([*every]):
            found, later = block_gradients(own, seen, g_own, before, later, dims, of)
            for gradient, to in zip(found, into, strict=True):
                if to is not None:
                    to.add_(gradient.sum_to_size(to.shape))
        return None, None, None, *totals


def block_gradients(
    given: list[Tensor], seen: Tensor | None, g: Tensor, before: Tensor | None, later: Tensor | None, dims: int, of: int
) -> tuple[list[Tensor], Tensor]:
    """The gradients of a block's operands before they are summed, and that of the state before it.

    g [..., block, other dimensions, 1]. `later`: the gradient of the state after the block, by the block after it.
    """
    place, read, x, decay = -dims - 1, given[0], given[1 : 1 + of], given[1 + of :]
    h, factor = states_of(given, seen, dims, of, before)
    g_read, g_h = g.mT @ h, g * read
    since = torch.empty_like(g_h)  # of the state before each position, through the position
    rows = (reversed(t.unbind(place)) for t in (g_h, factor, since))
    for row, one, to in zip(*rows, strict=True):
        later = torch.mul(one, row if later is None else row.add_(later), out=to)
    since.narrow(place, 1, h.shape[place] - 1).mul_(h.narrow(place, 0, h.shape[place] - 1))
    first = since.select(place, 0)
    later = first.clone()
    first.zero_() if before is None else first.mul_(before)
    if seen is not None:
        g_h, since = torch.where(seen, g_h, 0), torch.where(seen, since, 0)
    sides = [g * other for own, g in ((x, g_h), (decay, since)) for other in (own[::-1] if len(own) == 2 else (1,))]
    return [g_read, *sides], later
