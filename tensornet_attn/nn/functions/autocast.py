"""Products in the dtype that is asked for, under autocast too."""

import torch
from torch import Tensor


def autocast_kind(x: Tensor) -> str:
    """The kind of device whose autocast acts on x; the CPU's where its own has none."""
    kind = x.device.type
    return kind if torch.amp.is_autocast_available(kind) else "cpu"


def exact_products(x: Tensor) -> torch.autocast:
    """A context in which products on the device of x keep their dtype."""
    return torch.autocast(autocast_kind(x), enabled=False)
