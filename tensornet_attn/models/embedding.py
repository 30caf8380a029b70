"""Tokens to rows of the residual stream: a table, a factor, positions, dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models.config import Config
from tensornet_attn.nn.functions.constants import sinusoid

Tensor = torch.Tensor


class Positions(nn.Module):
    """Adds positions, learned or sinusoid, where the model has them, and drops out."""

    def __init__(self, config: Config, length: int, **new: Any):
        super().__init__()
        self.kind, self.length = config.positions, length
        self.dropout = nn.Dropout(config.dropout)
        if self.kind == "learned":
            self.table = nn.Parameter(torch.zeros(length, config.width, **new))

    def forward(self, x: Tensor) -> Tensor:
        """x, and the result, [batch, n, width]. Raises InputError."""
        n = x.shape[1]
        if self.kind == "learned":
            if n > self.length:
                raise InputError(f"{n} positions given; the model has learned {self.length}.")
            x = x + self.table[:n]
        elif self.kind == "sinusoid":
            x = x + sinusoid(torch.arange(n, device=x.device), x.shape[2], x.dtype)
        return self.dropout(x)


def check_tokens(name: str, tokens: Tensor, key_mask: Tensor | None, mask_name: str = "key_mask") -> None:
    """[batch, n], integers, and a boolean mask of the same shape. Raises InputError."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        given = f"{list(tokens.shape)} {tokens.dtype}" if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise InputError(f"'{name}' is {given}; give [batch, n], torch.int64.")
    if key_mask is None:
        return
    if not isinstance(key_mask, torch.Tensor) or key_mask.dtype != torch.bool or key_mask.shape != tokens.shape:
        mask = key_mask
        given = f"{list(mask.shape)} {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise InputError(f"'{mask_name}' is {given}; give {list(tokens.shape)}, torch.bool, true = a token.")
