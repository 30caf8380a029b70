"""Products: with weights, their dtype under autocast, exact columns added to scores, and mixing of large maps."""

import functools
import pathlib

import torch
from torch import Tensor

from tensornet_attn.constants import (
    MAP_PART,
    NARROW,
    NARROW_PARTS,
    ONEDNN_LONGEST,
    ONEDNN_PART,
    PROJECTED_ZEN5,
)
from tensornet_attn.runtime.maps import SMALL_CALL
from tensornet_attn.runtime.operations import asks_gradients, is_plain

PROJECTED = 1 << 19  # numbers of x from which oneDNN saves more time than it takes to set up a product
NEVER = 1 << 59


def projected(x: Tensor, weight: Tensor, exact: bool = False) -> Tensor:
    """x [..., f] times a weight [f, e], large products by the faster of torch's two libraries for the CPU.

    `exact`: rounded no more than `x @ weight`.
    """
    if torch.compiler.is_compiling() or not onednn_saves(x, weight, exact):
        return x @ weight
    if asks_gradients(x, weight):
        return Projected.apply(x, weight, exact)
    return onednn_product(x, weight.mT, exact)


def projected_by_each(x: Tensor, weights: Tensor) -> Tensor:
    """x [..., n, f] times each of the weights [e, f, l], which are not copied: [..., n, e, l]."""
    rows = x.flatten(0, -2).expand(len(weights), -1, -1)  # e n f
    return torch.bmm(rows, weights).movedim(0, -2).unflatten(0, x.shape[:-1])


def wide_products(x: Tensor, y: Tensor) -> Tensor:
    """x [..., n, f] times y [..., f, e], exactly `projected`, if the matrices are wide enough."""
    (*lead, n, f), e = x.shape, y.shape[-1]
    if torch.compiler.is_compiling() or x.shape[:-2] != y.shape[:-2] or not onednn_adds(x, y, n, f, e):
        return x @ y
    x, y = x.reshape(-1, n, f), y.reshape(-1, f, e)
    if len(x) == 1:  # without copies
        return projected(x.squeeze(0), y.squeeze(0), exact=True).view(*lead, n, e)
    return torch.stack([projected(*pair, exact=True) for pair in zip(x, y, strict=True)]).view(*lead, n, e)


class Projected(torch.autograd.Function):
    """x times a weight, and the gradients, by oneDNN; that of the weight in parts, or by MKL."""

    @staticmethod
    def forward(ctx, x, weight, exact):
        """Saves what the gradients need."""
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.exact, ctx.turned = exact, not x.is_contiguous()
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        return onednn_product(x, weight.mT, exact)

    @staticmethod
    def backward(ctx, g):
        """The gradients, by products that have gradients themselves if they are differentiated in turn."""
        (x, weight), d_x, d_weight = ctx.saved_tensors, None, None
        again = torch.is_grad_enabled()
        if weight is not None:
            fast = not again and onednn_takes(g, weight.mT, ctx.exact)
            if fast and ctx.turned:  # its gradient is laid out as it is
                d_x = onednn_product(weight, g, ctx.exact).mT
            else:
                d_x = onednn_product(g, weight, ctx.exact) if fast else g @ weight.mT
        if x is not None:
            rows, g_rows = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
            fast = not again and onednn_adds(x, g, x.shape[-1], g.shape[-1])
            d_weight = onednn_product(rows.mT, g_rows.mT, True) if fast else rows.mT @ g_rows
        return d_x, d_weight, None


def onednn_product(x: Tensor, weight: Tensor, exact: bool = False) -> Tensor:
    """x [..., f] times the transpose of a weight [e, f]; `exact` or long sums in parts."""
    length = x.shape[-1]
    size = ONEDNN_PART if exact or length > ONEDNN_LONGEST else length
    products = (
        # other strides of the weight take a thousand times as long
        torch.ops.mkldnn._linear_pointwise(
            part.contiguous(), own if own.mT.is_contiguous() else own.contiguous(), None, "none", [], ""
        )
        for part, own in zip(x.split(size, -1), weight.split(size, -1), strict=True)
    )
    return functools.reduce(Tensor.add_, products)


def onednn_saves(x: Tensor, weight: Tensor, exact: bool = False) -> bool:
    """Whether oneDNN may compute a product, and is faster."""
    return x.numel() >= onednn_from() and onednn_takes(x, weight, exact)


def onednn_takes(x: Tensor, weight: Tensor, exact: bool = False) -> bool:
    """Whether oneDNN may compute a large product, in parts if it is `exact` or has long sums."""
    laid = x.is_contiguous() or (exact and x.ndim == 2 and x.mT.is_contiguous())  # parts are copied anyway
    if weight.ndim != 2 or min(weight.shape) < NARROW or not laid or not onednn_reads(x, weight):
        return False
    return in_parts_saves() or not (exact or x.shape[-1] > ONEDNN_LONGEST)


def onednn_reads(*given: Tensor) -> bool:
    """Whether oneDNN may read these: float32 on a CPU, without autocast, and nothing watches them."""
    if any(x.dtype != torch.float32 or x.device.type != "cpu" for x in given):
        return False
    return bool(torch.backends.mkldnn.enabled) and not torch.is_autocast_enabled("cpu") and is_plain(given)


def onednn_adds(x: Tensor, y: Tensor, *sizes: int) -> bool:
    """Whether oneDNN may compute a sum of many parts, of matrices with these numbers of rows and columns."""
    return min(sizes) >= NARROW_PARTS * torch.get_num_threads() and in_parts_saves() and onednn_reads(x, y)


def in_parts_saves() -> bool:
    """Whether oneDNN is faster than MKL even in parts."""
    return onednn_from() <= PROJECTED_ZEN5


@functools.cache
def onednn_from() -> int:
    """The numbers of x from which oneDNN is faster than MKL: on AMD with AVX-512; elsewhere NEVER."""
    try:
        processor = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return NEVER
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    known = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not (known and wide and "AuthenticAMD" in processor):
        return NEVER
    return PROJECTED_ZEN5 if "cpu family\t: 26\n" in processor else PROJECTED


def autocast_kind(x: Tensor) -> str:
    """The device type whose autocast applies to x; the CPU's if that of x has none."""
    kind = x.device.type
    return kind if torch.amp.is_autocast_available(kind) else "cpu"


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The autocast dtype of products on the device of x. Returns None if autocast is off."""
    kind = autocast_kind(x)
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a product takes x: its own, or that of autocast."""
    return x.dtype if x.dtype == torch.float64 else autocast_dtype(x) or x.dtype


def exact_products(x: Tensor) -> torch.autocast:
    """A context that disables autocast on the device of x."""
    return torch.autocast(autocast_kind(x), enabled=False)


def exact_columns(x: Tensor, like: Tensor) -> Tensor:
    """Splits x [..., 1], a cumulative sum or a position, into columns [..., c] that add up to it.

    One column; or three if their dtype, see `column_dtype`, has 16 bits, each holding the remaining digits.
    """
    dtype = column_dtype(like)
    if columns_of(like) == 1:
        return x.to(dtype)
    columns, rest = list[Tensor](), x.float()
    for _ in range(columns_of(like)):
        columns.append(rest.to(dtype))
        rest = rest - columns[-1]
    return torch.cat(columns, -1)


def equal_columns(number: float, like: Tensor) -> Tensor:
    """The counterpart of `exact_columns` on the other operand, beside `like`: [..., c]."""
    return like.new_full((*like.shape[:-1], columns_of(like)), number, dtype=column_dtype(like))


def columns_of(like: Tensor) -> int:
    """The number of columns: three if they are 16-bit, else one."""
    return 3 if column_dtype(like).itemsize < 4 else 1


def column_dtype(like: Tensor) -> torch.dtype:
    """The dtype of `exact_columns` beside `like`: that of products, or float32, in which attention then computes.

    Gradients of a cumulative sum, rounded to 16 bits at each position, would not cancel where they are summed. A CPU
    computes attention in float32 as fast; other devices, and autocast, keep 16 bits.
    """
    in_float = like.device.type == "cpu" and torch.is_grad_enabled() and autocast_dtype(like) is None
    return torch.promote_types(like.dtype, torch.float32) if in_float else product_dtype(like)


def mixed(weight: Tensor, x: Tensor, last: int) -> Tensor:
    """The sum over g of weight[h, g] x[..., g, `last` dimensions], for each h: [..., h, `last` dimensions].

    Uses one matmul per entry of the dimensions before g, because a single matmul would have to permute x.
    """
    rows = x.flatten(-last)  # ... g numbers
    return (weight.expand(*rows.shape[:-2], -1, -1) @ rows).unflatten(-1, x.shape[-last:])


def joint_shape(first: torch.Size, *others: torch.Size) -> torch.Size:
    """The shape to which these shapes broadcast; equal ones take no time."""
    if torch.compiler.is_compiling() or any(first != other for other in others):  # traced sizes stay unknown
        return torch.broadcast_shapes(first, *others)
    return first


def summed_products(a: Tensor, b: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The sum over some dimensions of a times b, which broadcast; computed in at least float32."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    b = b.contiguous() if b.numel() < a.numel() else b  # it is read several times, in strides four times as slowly
    return (a.to(torch.promote_types(dtype, torch.float32)) * b).sum(dims).to(dtype)


def weighted_total(values: list[Tensor], weights: list[Tensor | None]) -> Tensor:
    """The sum of the values, each times its weight, if it has one."""
    return total_of([x if w is None else w * x for x, w in zip(values, weights, strict=True)])


def total_of(parts) -> Tensor:
    """The sum, without adding 0 to the first part."""
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


def weighted_sum(x: Tensor, weight: Tensor, dim: int) -> Tensor:
    """The sum over a dimension of x times a weight with as many dimensions or fewer, the last of size 1."""
    large = not torch.compiler.is_compiling() and x.numel() > SMALL_CALL and x.device.type == "cpu"
    wide = x.dtype == weight.dtype and x.dtype.itemsize >= 4 and not torch.is_autocast_enabled("cpu")
    if not (large and wide and x.is_contiguous() and is_plain((x, weight))):
        return (weight.movedim(dim, -2).mT @ x.movedim(dim, -2)).squeeze(-2)
    if asks_gradients(x, weight):
        return WeightedSum.apply(x, weight, dim)
    return weighted_parts(x, weight, dim)


class WeightedSum(torch.autograd.Function):
    """`weighted_sum` a part of x at a time: no product is as large as x."""

    @staticmethod
    def forward(ctx, x, weight, dim):
        """Saves both operands."""
        ctx.save_for_backward(x, weight)
        ctx.dim = dim
        return weighted_parts(x, weight, dim)

    @staticmethod
    def backward(ctx, g):
        """The gradients of x and the weight; by plain operations if they are differentiated in turn, or batched."""
        x, weight = ctx.saved_tensors
        of_x, of_weight, _ = ctx.needs_input_grad
        g = g.unsqueeze(ctx.dim)
        if torch.is_grad_enabled() or not is_plain((x, weight, g)):
            return g * weight if of_x else None, (g * x).sum_to_size(weight.shape) if of_weight else None, None
        d_x = torch.empty_like(x) if of_x else None
        d_weight, wide = torch.zeros_like(weight) if of_weight else None, long_rows(weight, x)
        for part, own, to in weighted_rows(x, g, d_x, weight):
            if of_x:
                torch.mul(own, wide, out=to)
            if of_weight:
                d_weight += (part * own).sum_to_size(weight.shape)
        return d_x, d_weight, None


def weighted_parts(x: Tensor, weight: Tensor, dim: int) -> Tensor:
    """`weighted_sum` of contiguous x."""
    found = x.new_empty([size for i, size in enumerate(x.shape) if i - x.ndim != dim])
    weights = long_rows(weight, x).unbind(dim)
    for part, own, _ in weighted_rows(x, found, None, weight):
        first, *rest = part.unbind(dim)
        torch.mul(first, weights[0], out=own)
        for row, one in zip(rest, weights[1:], strict=True):
            own.addcmul_(row, one)
    return found


def long_rows(weight: Tensor, x: Tensor) -> Tensor:
    """The weight as large as the last dimensions of x: loops over short rows are slow."""
    return weight.expand(x.shape[-weight.ndim :]).contiguous()


def weighted_rows(x: Tensor, y: Tensor, z: Tensor | None, weight: Tensor):
    """Parts of x, y and z, which stay in the L2 cache: rows of the dimensions before those of the weight."""
    lead = x.ndim - weight.ndim
    x, y = (t.reshape(-1, *t.shape[lead:]) for t in (x, y))
    z = None if z is None else z.reshape(-1, *z.shape[lead:])
    size = max(1, MAP_PART * torch.get_num_threads() // max(1, x[0].numel()))
    parts = [[None] * ((len(x) + size - 1) // size) if t is None else t.split(size) for t in (x, y, z)]
    return zip(*parts, strict=True)
