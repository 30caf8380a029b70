"""Multi-head attention from the equation, with trained weights."""

from __future__ import annotations

import torch
from torch import Tensor

from tensornet_attn.convert.trained import TrainedAttention


def attention(t: TrainedAttention, x: Tensor) -> Tensor:
    """The output of a trained self-attention for x [batch, n, f]; several heads may share keys and values."""
    n, (heads, width) = x.shape[1], t.weights["Wq"].shape[1:]
    bias = {name: t.biases.get(name, torch.zeros(())) for name in ("bq", "bk", "bv", "bo")}
    q, k, v = (torch.einsum("bnf,fhd->bnhd", x, t.weights[f"W{c}"]) + bias[f"b{c}"] for c in "qkv")
    if t.rope_base is not None:
        q, k = turned(q, t), turned(k, t)
    k, v = (z.repeat_interleave(heads // z.shape[2], 2) for z in (k, v))
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) * width**-0.5
    if t.causal:
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    y = torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v)
    return torch.einsum("bnhd,hdf->bnf", y, t.weights["Wo"]) + bias["bo"]


def turned(z: Tensor, t: TrainedAttention) -> Tensor:
    """Rotary positions, halves paired, on [batch, n, heads, d]."""
    width = round(z.shape[-1] * t.rope_fraction)
    angle = torch.arange(z.shape[1])[:, None, None] * t.rope_base ** (-2 * torch.arange(width // 2) / width)
    a, b, rest = z.split([width // 2, width // 2, z.shape[-1] - width], -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), rest), -1)
