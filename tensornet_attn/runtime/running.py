"""Elementwise recurrences, h[t] = exp(decay[t]) h[t - 1] + x[t]: time and memory linear in the length.

Positions of many numbers follow each other. Otherwise a sequence of m positions is split into about sqrt(m) parts. All
parts run in parallel, position by position; then the initial value of each part, from the same recurrence over the
parts, is added with decay. Nothing is divided by an exponential.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.constants import LONG_ROW, MAP_PART
from tensornet_attn.runtime.exponential import exp
from tensornet_attn.runtime.maps import with_padding
from tensornet_attn.runtime.operations import applied, batch_first, differentiable, is_plain, operation


def scan_sums(x: Tensor, decay: Tensor, dims: int, past: Tensor | None, key_mask: Tensor | None, n: int) -> Tensor:
    """h at each of n queries, the last at the last key: x and decay [..., m, `dims` dimensions] -> [..., n, the same].

    `decay`: logarithms, at most 0. `past`: h before the first key, without gradient. Computed in at least float32.
    """
    m = x.shape[-dims - 1]
    if past is not None and n > m:
        raise ValueError(f"scan_sums: {n} queries for {m} keys after a state; give no more queries than keys.")
    h = running(x, decay, dims, past, key_mask)
    return with_padding(h, (*(0, 0) * dims, n - m, 0)).to(x.dtype)  # a negative width crops


def scan_state(x: Tensor, decay: Tensor, dims: int, past: Tensor, key_mask: Tensor | None) -> Tensor:
    """The h after the last key, without gradient: [..., `dims` dimensions]."""
    with torch.no_grad():
        if x.shape[-dims - 1] == 0:
            return past
        last = running(x, decay, dims, past, key_mask).select(-dims - 1, -1)
        return last.to(past.dtype).contiguous()  # does not share memory with other positions


def running(x: Tensor, decay: Tensor, dims: int, past: Tensor | None, key_mask: Tensor | None) -> Tensor:
    """h at each key, in at least float32."""
    if dims == 0:
        past = None if past is None else past[..., None]
        return running(x[..., None], decay[..., None], 1, past, key_mask)[..., 0]
    wide, dim = torch.promote_types(x.dtype, torch.float32), -dims - 1
    x, decay = x.to(wide), decay.to(wide)
    if key_mask is not None:
        visible = key_mask[(..., *[None] * dims)]
        x, decay = torch.where(visible, x, 0), torch.where(visible, decay, 0)
    if past is not None and x.shape[dim]:
        first = exp(decay.narrow(dim, 0, 1)) * past.to(wide).unsqueeze(dim)
        x = x + F.pad(first, (*(0, 0) * dims, 0, x.shape[dim] - 1))
    if torch.compiler.is_compiling():
        decay_copy = unaliased(decay) if torch.is_grad_enabled() else decay
        return faded_sums(*aligned_ends(x, decay_copy, dims), dims, False)
    x, decay = aligned_ends(x, decay, dims)
    return applied(FadedSums, x, decay, dims, False)


@torch.library.custom_op(operation("unaliased"), mutates_args=())
def unaliased(x: Tensor) -> Tensor:
    """A copy for a backward in compiled code, where inductor may overwrite a view while it needs another one.

    It takes both views of a tensor, as two scans with one decay save them, for memory of their own.
    """
    return x.clone(memory_format=torch.contiguous_format)


@unaliased.register_fake
def unaliased_shape(x):
    """The shape of the copy."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


unaliased.register_autograd(lambda ctx, g: g)
unaliased.register_vmap(lambda info, dims, x: (unaliased(x), dims[0]))


def aligned_ends(x: Tensor, decay: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """x expanded to the common shape, and the decays with as many dimensions."""
    shape = torch.broadcast_shapes(x.shape, decay.shape)
    return x.expand(shape), decay.expand(*shape[: -dims - 1], *decay.shape[-dims - 1 :])


@torch.library.custom_op(operation("faded_sums"), mutates_args=())
def faded_sums(x: Tensor, decay: Tensor, dims: int, reverse: bool) -> Tensor:
    """h[t] = exp(decay[t]) h[t - 1] + x[t], or with `reverse` h[t] = exp(decay[t + 1]) h[t + 1] + x[t].

    x [..., m, `dims` dimensions], decay the same or size 1 in some of these -> like x.
    """
    m, x_sizes, decay_sizes = x.shape[-dims - 1], x.shape[-dims:], decay.shape[-dims:]
    lead = math.prod(x.shape[: -dims - 1])
    a, decay = x.reshape(lead, m, *x_sizes), decay.reshape(lead, m, *decay_sizes)
    if x.device.type == "cpu" and lead * math.prod(x_sizes) >= LONG_ROW:
        return faded_rows(a, decay, reverse).view(x.shape)
    b = exp(decay)
    if reverse:
        b = torch.cat((torch.ones_like(b[:, :1]), b[:, 1:].flip(1)), 1)
        a = a.flip(1)
    sums = faded_parts(a, b)
    return (sums.flip(1) if reverse else sums).reshape(x.shape)


def faded_rows(x: Tensor, decay: Tensor, reverse: bool) -> Tensor:
    """`faded_sums` of [b, m, ...], one position after another."""
    h = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not x.numel():
        return h
    rows = zip(x.unbind(1), h.unbind(1), strict=True)
    before = None
    for (row, h_row), b in zip(reversed([*rows]) if reverse else rows, decay_rows(decay, reverse), strict=True):
        if before is None:
            h_row.copy_(row)
        else:
            torch.addcmul(row, before[1] if reverse else b, before[0], out=h_row)
        before = h_row, b
    return h


def decay_rows(decay: Tensor, reverse: bool):
    """exp of the decays [b, m, ...] at each position, of which few exist at a time."""
    blocks = decay.split(max(1, MAP_PART // max(1, decay[:, 0].numel())), 1)
    for block in reversed(blocks) if reverse else blocks:
        rows = exp(block).unbind(1)
        yield from reversed(rows) if reverse else rows


def faded_parts(x: Tensor, factor: Tensor) -> Tensor:
    """h[t] = factor[t] h[t - 1] + x[t]: x [b, m, ...], factor [b, m, ...], overwritten -> like x, in new memory."""
    m = x.shape[1]
    size = max(1, math.isqrt(max(m - 1, 0)) + 1)  # of a part
    parts = (m + size - 1) // size
    h, ends = x.clone(memory_format=torch.contiguous_format), (0, 0) * (x.ndim - 2)
    if m <= 8:
        for t in range(1, m):
            h[:, t].addcmul_(factor[:, t], h[:, t - 1])
        return h
    h, since = (with_padding(t, (*ends, 0, parts * size - m)).unflatten(1, (parts, size)) for t in (h, factor))
    for t in range(1, size):
        h[:, :, t].addcmul_(since[:, :, t], h[:, :, t - 1])
        since[:, :, t].mul_(since[:, :, t - 1])  # the product of the factors within the part
    ends_at = faded_parts(h[:, :, -1], since[:, :, -1].clone())
    h[:, 1:].addcmul_(since[:, 1:], ends_at[:, :-1, None])
    return h.flatten(1, 2)[:, :m].contiguous()


@faded_sums.register_fake
def faded_sums_shape(x, decay, dims, reverse):
    """The shape of the sums."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def faded_keep(ctx, inputs, output):
    """Saves the decays and the sums."""
    _, decay, ctx.dims, ctx.reverse = inputs
    ctx.save_for_backward(decay, output)


def faded_autograd(ctx, g):
    """The gradients of x and of the decays: the recurrence in the other direction."""
    (decay, h), dims = ctx.saved_tensors, ctx.dims
    long = h.device.type == "cpu" and math.prod(h.shape) >= LONG_ROW * h.shape[-dims - 1] > 0
    if long and not (ctx.reverse or torch.is_grad_enabled()) and is_plain((g, decay, h)):
        return *row_gradients(g, decay, h, dims), None, None
    run = faded_sums if torch.compiler.is_compiling() else FadedSums.apply
    g_x = run(g.contiguous(), decay, dims, not ctx.reverse)
    later, before = (g_x, h) if not ctx.reverse else (h, g_x)  # at a position, and at the one before it
    shape = (*(0, 0) * dims, 1, 0)
    if before.shape[-dims - 1]:
        before = F.pad(before.narrow(-dims - 1, 0, before.shape[-dims - 1] - 1), shape)
    return g_x, (later * before * exp(decay)).sum_to_size(decay.shape), None, None


def row_gradients(g: Tensor, decay: Tensor, h: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the decays from that of the sums h, one position after another."""
    g_x, g_decay = torch.empty_like(h), torch.empty_like(decay, memory_format=torch.contiguous_format)
    g, h, decays, g_x_rows, g_decay_rows = (t.reshape(-1, *t.shape[-dims - 1 :]) for t in (g, h, decay, g_x, g_decay))
    before = torch.zeros_like(h[:, 0]), *h.unbind(1)[:-1]
    rows = (reversed(t) for t in (g.unbind(1), g_x_rows.unbind(1), g_decay_rows.unbind(1), before))
    later = torch.zeros((), dtype=h.dtype, device=h.device)
    for factor, g_row, g_x_row, g_decay_row, h_row in zip(decay_rows(decays, True), *rows, strict=True):
        later = factor * torch.add(g_row, later, out=g_x_row)
        g_decay_row.copy_((later * h_row).sum_to_size(g_decay_row.shape))
    return g_x, g_decay


FadedSums = differentiable(faded_sums, faded_keep, faded_autograd, batch_first)
