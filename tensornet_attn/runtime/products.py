"""Products: their dtype under autocast, exact columns added to scores, and mixing of large maps in place."""

import torch
from torch import Tensor


def autocast_kind(x: Tensor) -> str:
    """The device type whose autocast applies to x; the CPU's if that of x has none."""
    kind = x.device.type
    return kind if torch.amp.is_autocast_available(kind) else "cpu"


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The autocast dtype of products on the device of x. Returns None if autocast is off."""
    kind = autocast_kind(x)
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def product_dtype(x: Tensor, dtype: torch.dtype | None = None) -> torch.dtype:
    """The dtype in which a product takes x, or operands of `dtype`: the own dtype, or that of autocast."""
    dtype = dtype or x.dtype
    return dtype if dtype == torch.float64 else autocast_dtype(x) or dtype


def exact_products(x: Tensor) -> torch.autocast:
    """A context that disables autocast on the device of x."""
    return torch.autocast(autocast_kind(x), enabled=False)


def exact_columns(x: Tensor, like: Tensor) -> Tensor:
    """Splits x [..., 1], a cumulative sum or a position, into columns [..., c] that add up to it.

    One column; or three 16-bit columns if products with `like` are 16-bit, each holding the remaining digits.
    """
    dtype = product_dtype(like)
    if columns_of(like) == 1:
        return x.to(dtype)
    columns, rest = list[Tensor](), x.float()
    for _ in range(columns_of(like)):
        columns.append(rest.to(dtype))
        rest = rest - columns[-1]
    return torch.cat(columns, -1)


def equal_columns(number: float, like: Tensor) -> Tensor:
    """The counterpart of `exact_columns` on the other operand, beside `like`: [..., c]."""
    return like.new_full((*like.shape[:-1], columns_of(like)), number)


def columns_of(like: Tensor) -> int:
    """The number of columns: three if products with `like` are 16-bit, else one."""
    return 3 if product_dtype(like).itemsize < 4 else 1


def mixed(weight: Tensor, x: Tensor, last: int) -> Tensor:
    """The sum over g of weight[h, g] x[..., g, `last` dimensions], for each h: [..., h, `last` dimensions].

    Uses one matmul per entry of the dimensions before g, because a single matmul would have to permute x.
    """
    rows = x.flatten(-last)  # ... g numbers
    return (weight.expand(*rows.shape[:-2], -1, -1) @ rows).unflatten(-1, x.shape[-last:])


def summed_products(a: Tensor, b: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The sum over some dimensions of a times b, which broadcast; computed in at least float32."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    return (a.to(torch.promote_types(dtype, torch.float32)) * b).sum(dims).to(dtype)
