"""Products in the dtype that is asked for, under autocast too."""

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
