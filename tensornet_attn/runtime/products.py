"""Products: their dtype, under autocast too; columns that add to scores; large maps, whose numbers stay in place."""

import torch
from torch import Tensor


def autocast_kind(x: Tensor) -> str:
    """The kind of device whose autocast acts on x; the CPU's where its own has none."""
    kind = x.device.type
    return kind if torch.amp.is_autocast_available(kind) else "cpu"


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype that autocast gives to products on the device of x; None where it is not on."""
    kind = autocast_kind(x)
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def product_dtype(x: Tensor, dtype: torch.dtype | None = None) -> torch.dtype:
    """The dtype in which a product takes x, or numbers of `dtype` beside it: their own, or that of autocast."""
    dtype = dtype or x.dtype
    return dtype if dtype == torch.float64 else autocast_dtype(x) or dtype


def exact_products(x: Tensor) -> torch.autocast:
    """A context in which products on the device of x keep their dtype."""
    return torch.autocast(autocast_kind(x), enabled=False)


def exact_columns(x: Tensor, like: Tensor) -> Tensor:
    """x [..., 1], a cumulative sum or a position, as columns that add up to it in products that take `like`: [..., c].

    One column; or three of 16 bits, each of which has the digits that those before it lack.
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
    """What the columns of `exact_columns` meet, beside `like`: [..., c]."""
    return like.new_full((*like.shape[:-1], columns_of(like)), number)


def columns_of(like: Tensor) -> int:
    """How many columns: three where products with `like` take numbers of 16 bits, else one."""
    return 3 if product_dtype(like).itemsize < 4 else 1


def mixed(weight: Tensor, x: Tensor, last: int) -> Tensor:
    """The sum over g of weight[h, g] x[..., g, `last` dimensions], for each h: [..., h, `last` dimensions].

    One matmul for each entry of the dimensions before g: a single one for all would have to move x.
    """
    rows = x.flatten(-last)  # ... g numbers
    return (weight.expand(*rows.shape[:-2], -1, -1) @ rows).unflatten(-1, x.shape[-last:])


def summed_products(a: Tensor, b: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The sum over some dimensions of a times b, which broadcast: products and sums stand in float32 at least."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    return (a.to(torch.promote_types(dtype, torch.float32)) * b).sum(dims).to(dtype)
