"""Decayed products inside a chunk: sum_d q[t] k[i] exp(a[t] - c[i]) for i <= t, with no exponent above 0.

If all channels decay alike, this is one matrix product. Otherwise rows of small blocks are combined one by one. For
larger blocks, doubling in size, the second half is combined with the first via the boundary b between them, exp(a[t] -
b) exp(b - c[i]), both at most 1. Nothing is divided by a cumulative decay, so nothing overflows however fast the decay.
On a CPU, if nothing in the call decays by more than exp(-MILD) in a chunk, one boundary in the middle of each channel
serves all rows: exponents are near 0, because their rounding is an error of the product.
"""

import torch
from torch import Tensor

from tensornet_attn.runtime.exponential import exp

FEW = 4  # rows combined one by one
MILD = 40.0  # the exponents beside one boundary are at most half of it, far from overflow and slow results of exp


def faded_products(q: Tensor, k: Tensor, a: Tensor, c: Tensor, strict: bool) -> Tensor:
    """Products [M, C, r, C] of r rows per position, q [M, C, r, d], with keys k [M, C, d] up to it, zeros elsewhere.

    a and c [M, C, w]: logarithms of the decay of rows and keys, w being 1 or d. C is a power of two. `strict`: only
    keys before the position; otherwise a equals c.
    """
    (M, C, r, _), width = q.shape, min(FEW, q.shape[1])
    if c.shape[-1] == 1:
        return (q.flatten(1, 2) @ k.mT).view(M, C, r, C) * fading(a, c, strict)
    if (middle := middles(a, c)) is not None:
        rows, keys = q * (a - middle).exp()[:, :, None], k * (middle - c).exp()
        return (rows.flatten(1, 2) @ keys.mT).view(M, C, r, C).masked_fill_(later(c, strict)[:, None], 0)
    out = q.new_zeros(M, C, r, C)
    blocks, (rows, keys, a_, c_) = diagonal(out, width), (x.unflatten(1, (-1, width)) for x in (q, k, a, c))
    for lag in range(int(strict), width):
        late, early = slice(lag, None), slice(width - lag)
        faded = keys[:, :, early] if lag == 0 else exp(a_[:, :, late] - c_[:, :, early]) * keys[:, :, early]
        dots = (rows[:, :, late] * faded[..., None, :]).sum(-1)  # M G b r
        blocks.diagonal(-lag, 1, 3).copy_(dots.movedim(-1, 1))
    while width < C:
        row, key = across(a, c, width)
        below = later_half(q, width).mul(row).flatten(2, 3) @ first_half(k, width).mul(key).mT  # M G (b r) b
        diagonal(out, 2 * width)[:, width:, :, :width].copy_(
            below.view(M, C // (2 * width), width, r, width).movedim(1, -1)
        )
        width *= 2
    return out


def faded_gradients(g: Tensor, q: Tensor, k: Tensor, a: Tensor, c: Tensor, strict: bool) -> tuple[Tensor, Tensor]:
    """The gradients of q and k from that of `faded_products`. Those of a and c are q and k times these."""
    (M, C, r, d), width = q.shape, min(FEW, q.shape[1])
    if c.shape[-1] == 1:
        g = (g * fading(a, c, strict)).flatten(1, 2)
        return (g @ k).view(q.shape), g.mT @ q.flatten(1, 2)
    if (middle := middles(a, c)) is not None:
        row, key = (a - middle).exp()[:, :, None], (middle - c).exp()
        g = g.masked_fill(later(c, strict)[:, None], 0).flatten(1, 2)
        return (g @ (k * key)).view(q.shape) * row, g.mT @ (q * row).flatten(1, 2) * key
    g_q, g_k, blocks = torch.zeros_like(q), torch.zeros_like(k), diagonal(g, width)
    g_rows, g_keys, rows, keys, a_, c_ = (x.unflatten(1, (-1, width)) for x in (g_q, g_k, q, k, a, c))
    for lag in range(int(strict), width):
        late, early = slice(lag, None), slice(width - lag)
        block_g = blocks.diagonal(-lag, 1, 3).movedim(1, -1)[..., None]  # M G b r 1
        if lag == 0:
            g_rows.addcmul_(block_g, keys[..., None, :])
            g_keys.add_((block_g * rows).sum(-2))
            continue
        faded = exp(a_[:, :, late] - c_[:, :, early])
        g_rows[:, :, late].addcmul_(block_g, (faded * keys[:, :, early])[..., None, :])
        g_keys[:, :, early].addcmul_((block_g * rows[:, :, late]).sum(-2), faded)
    while width < C:
        row, key = across(a, c, width)
        below = diagonal(g, 2 * width)[:, width:, :, :width].movedim(-1, 1).flatten(2, 3)  # M G (b r) b
        later_half(g_q, width).addcmul_(
            (below @ first_half(k, width).mul(key)).view(M, C // (2 * width), width, r, d), row
        )
        first_half(g_k, width).addcmul_(below.mT @ later_half(q, width).mul(row).flatten(2, 3), key)
        width *= 2
    return g_q, g_k


def middles(a: Tensor, c: Tensor) -> Tensor | None:
    """The middle of the exponents of each channel, [M, 1, d], if `middle_of` has one: they fall along the positions."""
    return None if middle_of(a, c) is None else (a[:, :1] + c[:, -1:]) / 2


def middle_of(a: Tensor, c: Tensor) -> float | None:
    """The middle of all exponents; None if they differ by more than MILD, and on a GPU, which would have to wait."""
    if c.device.type != "cpu" or c.numel() == 0:
        return None
    ends = [end.item() for x in (a, c) for end in torch.aminmax(x)]
    low, high = min(ends), max(ends)
    return (low + high) / 2 if high - low <= MILD else None


def fading(a: Tensor, c: Tensor, strict: bool) -> Tensor:
    """exp(a[t] - c[i]) for keys up to the position, zeros elsewhere: a and c [M, C, 1] -> [M, C, 1, C]."""
    return exp((a - c.mT).masked_fill_(later(c, strict), -torch.inf))[:, :, None]


def later(like: Tensor, strict: bool) -> Tensor:
    """True if a key is after a position, or at it if `strict`: like [M, C, .] -> [C, C]."""
    position = torch.arange(like.shape[1], device=like.device)
    return position >= position[:, None] if strict else position > position[:, None]


def diagonal(x: Tensor, width: int) -> Tensor:
    """The blocks on the diagonal of [M, C, r, C], as a writable view: [M, width, r, width, C / width]."""
    return x.unflatten(3, (-1, width)).unflatten(1, (-1, width)).diagonal(dim1=1, dim2=4)


def first_half(x: Tensor, width: int) -> Tensor:
    """The first half of blocks of 2 width positions: [M, C, ...] -> [M, C / (2 width), width, ...]."""
    return x.unflatten(1, (-1, 2, width))[:, :, 0]


def later_half(x: Tensor, width: int) -> Tensor:
    """The second half of these blocks."""
    return x.unflatten(1, (-1, 2, width))[:, :, 1]


def across(a: Tensor, c: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The decay of second-half rows since the boundary between the halves, and of first-half keys until it.

    [M, C / (2 width), width, 1, d] and [M, C / (2 width), width, d].
    """
    early = first_half(c, width)
    at = early[:, :, -1:]
    return exp(later_half(a, width) - at)[..., None, :], exp(at - early)
