"""Tables that are functions of positions and sizes."""

import torch
from torch import Tensor

from tensornet_attn.nn.functions.positions import exactly


def sinusoid(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Entry 2i is sin(p * 10000 ** (-2i / width)), 2i + 1 its cosine: [p, width]."""
    positions, entry = exactly(positions), torch.arange(width, device=positions.device)  # late angles are large
    angle = positions[:, None] * 10000.0 ** (-2 * (entry // 2).to(positions.dtype) / width)
    return torch.where(entry % 2 == 0, angle.sin(), angle.cos()).to(dtype)


def alibi_slopes(heads: int, device: torch.device | None, dtype: torch.dtype) -> Tensor:
    """2 ** (-8 i / heads), i from 1; between powers of two, filled from the next power (Press et al. 2022): [heads]."""
    power = 2 ** (heads.bit_length() - 1)
    steps = [8 * i / power for i in range(1, power + 1)] + [4 * i / power for i in range(1, 2 * (heads - power), 2)]
    return torch.tensor([2.0**-step for step in steps], device=device, dtype=dtype)
