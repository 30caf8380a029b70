"""Norms along one dimension, without weights of their own."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.nn.functions.normalize import divided


def rms_norm(x: Tensor, dim: int, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x ** 2) + eps)."""
    x = x.movedim(dim, -1)
    return F.rms_norm(x, x.shape[-1:], eps=eps).movedim(-1, dim)


def layer_norm(x: Tensor, dim: int, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps)."""
    if torch.compiler.is_compiling():  # tracing knows the strides of torch's gradient wrong; see `maps`
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return rms_norm(wide - wide.mean(dim, keepdim=True), dim, eps).to(x.dtype)
    x = x.movedim(dim, -1)
    return F.layer_norm(x, x.shape[-1:], eps=eps).movedim(-1, dim)


def l1_norm(x: Tensor, dim: int, eps: float = 0.0) -> Tensor:
    """x / (sum of absolute values + eps); zeros stay zeros."""
    return divided(x, x.abs().sum(dim, keepdim=True) + eps)


def l2_norm(x: Tensor, dim: int, eps: float = 0.0) -> Tensor:
    """x / (root of the sum of squares + eps); zeros stay zeros."""
    return divided(x, torch.linalg.vector_norm(x, dim=dim, keepdim=True) + eps)
