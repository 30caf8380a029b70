"""Where queries and keys stand: the last query stands at the last key."""

import torch
from torch import Tensor


def query_positions(n: int, m: int, device: torch.device | None = None) -> Tensor:
    """m - n ... m - 1: [n]; keys stand at 0 ... m - 1."""
    return torch.arange(m - n, m, device=device)


def exactly(positions: Tensor) -> Tensor:
    """Positions as numbers of which products keep every digit that matters: float64, where the device has it."""
    return positions.to(torch.float32 if positions.device.type == "mps" else torch.float64)


def distance(n: int, m: int, device: torch.device | None = None) -> Tensor:
    """Query position minus key position: [n, m], integers."""
    return query_positions(n, m, device)[:, None] - torch.arange(m, device=device)
