"""Numbers that are added to scores of a product, as columns beside its features."""

import torch
from torch import Tensor

from tensornet_attn.nn.functions.autocast import product_dtype


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
