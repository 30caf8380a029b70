"""Classifiers of whole sequences, of tokens or of numbers: by the mean, by a learned row in front, or by all rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models.block import Losses, WithLosses, last_norm_of
from tensornet_attn.models.embedding import Positions, check_numbers, check_tokens
from tensornet_attn.models.model import Model

Tensor = torch.Tensor


class SequenceClassifier(Model):
    """Logits of the classes: [batch, n] -> [batch, classes]; of numbers [batch, n, features].

    >>> model = SequenceClassifier(vocabulary=9, length=8, width=16, classes=3, layers=["mhsa"])
    >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 3])
    >>> series = SequenceClassifier(features=4, length=8, width=16, classes=3, layers=["mhsa"], pooling="concat")
    >>> series(torch.zeros(2, 8, 4)).shape
    torch.Size([2, 3])
    """

    kind = "sequence_classifier"

    def _make(self, **new: Any) -> None:
        config = self.spec.config
        cls = config.pooling == "cls"
        self.features, self.length, self.pooling = config.features, config.length, config.pooling
        if config.features is None:
            self.embedding = nn.Embedding(config.vocabulary, config.width, **new)
        else:
            self.projection = nn.Linear(config.features, config.width, **new)
        self.cls = nn.Parameter(torch.zeros(config.width, **new)) if cls else None
        self.positions = Positions(config, config.length + cls, **new)
        self.norm = last_norm_of(config, **new)
        rows = config.length if config.pooling == "concat" else 1
        self.output = nn.Linear(rows * config.width, config.classes, **new)

    def forward(self, tokens: Tensor, key_mask: Tensor | None = None, losses: bool = False) -> WithLosses:
        """tokens [batch, n] integers, or [batch, n, features] numbers, and key_mask [batch, n], true where one stands.

        Logits [batch, classes]; with `losses`, (logits, auxiliary losses by name, as `layers.0.mixer.balance`). Raises
        InputError; also where `pooling: concat` is given another n than its length.
        """
        x = self._embedded(tokens, key_mask) * self.scale
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.shape[0], 1, -1), x], 1)
            key_mask = None if key_mask is None else nn.functional.pad(key_mask, (1, 0), value=True)
        found: Losses | None = {} if losses else None
        x = self._through("layers", self.positions(x), found, key_mask)
        logits = self.output(self._pooled(self.norm(x), key_mask))
        return logits if found is None else (logits, found)

    def _embedded(self, tokens: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.features is None:
            check_tokens("tokens", tokens, key_mask)
            x = self.embedding(tokens)
        else:
            check_numbers("tokens", tokens, key_mask, self.features)
            x = self.projection(tokens.to(self.projection.weight.dtype))
        if self.pooling == "concat" and x.shape[1] != self.length:
            raise InputError(
                f"{x.shape[1]} positions given; 'pooling: concat' takes {self.length}, the model's length."
            )
        return x

    def _pooled(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """[batch, n, width] -> [batch, width], or [batch, n width]; a sequence of padding alone gives zeros."""
        if self.cls is not None:
            return x[:, 0]
        if self.pooling == "concat":
            return (x if key_mask is None else torch.where(key_mask[..., None], x, 0)).flatten(1)
        if key_mask is None:
            return x.mean(1)
        count = key_mask.sum(1, keepdim=True).clamp(min=1)
        return torch.where(key_mask[..., None], x, 0).sum(1) / count
