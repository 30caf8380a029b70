"""Convolutions along a sequence, the last dimension, with zero padding."""

import torch
import torch.nn.functional as F
from torch import Tensor


def shifted_sum(x: Tensor, taps_dim: int, left: int, tail: int | None = None) -> Tensor:
    """y[i] = sum over j of x[j, i + j - left]: [..., taps, ..., n] -> [..., n]. `tail`: only the last entries."""
    rows = x.unbind(taps_dim)
    first, count = (0, x.shape[-1]) if tail is None else (x.shape[-1] - tail, tail)
    padded = [F.pad(row, (left, len(rows) - 1 - left)).narrow(-1, first + tap, count) for tap, row in enumerate(rows)]
    return sum(padded[1:], start=padded[0])


def convolve(x: Tensor, weight: Tensor, left: int, groups: int, tail: int | None = None) -> Tensor:
    """y[c, i] = sum over j and d of x[d, i + j - left] weight[c, d, j]: [..., d, n] -> [..., c, n].

    `groups`: as in conv1d. `tail`: only the last `tail` entries.
    """
    n, width = x.shape[-1], weight.shape[-1]
    first, count = (0, n) if tail is None else (n - tail, tail)
    wide = x.dtype in (torch.float32, torch.float64)
    if x.device.type == "cpu" and wide and width <= FEW_TAPS and groups == weight.shape[0] == x.shape[-2]:
        return by_taps(x, weight[:, 0].mT, left, first, count)
    if x.numel() == 0:  # reshape and conv1d reject empty tensors
        return (x.sum() + weight.sum()) * x.new_zeros(*x.shape[:-2], weight.shape[0], count)
    pad = max(left, width - 1 - left)
    x_rows, weight = x.reshape(-1, *x.shape[-2:]), weight.contiguous()
    if x.dtype == torch.float64:  # torch 2.13 lacks some float64 gradients of non-contiguous tensors
        x_rows = x_rows.clone(memory_format=torch.contiguous_format)
    y = F.conv1d(x_rows, weight, padding=pad, groups=groups)
    return y.narrow(-1, pad - left + first, count).reshape(*x.shape[:-2], weight.shape[0], count)


FEW_TAPS = 8  # up to this many taps, products of shifted rows are four times as fast on a CPU as depthwise conv1d


def by_taps(x: Tensor, weight: Tensor, left: int, first: int, count: int) -> Tensor:
    """Depthwise convolution, weight [taps, c], as a sum of shifted rows."""
    padded = F.pad(x.mT, (0, 0, left, len(weight) - 1 - left))  # ... n c
    y = padded.narrow(-2, first, count) * weight[0]
    for tap, row in enumerate(weight[1:], 1):
        y = torch.addcmul(y, padded.narrow(-2, first + tap, count), row)
    return y.mT
