"""Encoder and causal decoder: designs within the source, within the target, and from target to source."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models.block import Losses, WithLosses, last_norm_of
from tensornet_attn.models.embedding import Positions, check_tokens
from tensornet_attn.models.model import Model

Tensor = torch.Tensor


class Seq2Seq(Model):
    """Logits of the next token of the target: [batch, m], [batch, n] -> [batch, n, target_vocabulary].

    Without a `target_vocabulary` source and target share vocabulary and embedding.

    >>> layer = {"mixer": "mhsa", "cross": "cross"}
    >>> model = Seq2Seq(vocabulary=9, length=8, width=16, encoder=["mhsa"], decoder=[layer])
    >>> model(torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)).shape
    torch.Size([2, 4, 9])
    """

    kind = "seq2seq"

    def _make(self, **new: Any) -> None:
        config = self.spec.config
        own, out = config.target_vocabulary, config.target_vocabulary or config.vocabulary
        self.embedding = nn.Embedding(config.vocabulary, config.width, **new)
        self.target_embedding = None if own is None else nn.Embedding(own, config.width, **new)
        self.source_positions = Positions(config, config.length, **new)
        self.target_positions = Positions(config, config.length, **new)
        self.source_norm, self.norm = last_norm_of(config, **new), last_norm_of(config, **new)
        self.output = None if config.tied else nn.Linear(config.width, out, bias=False, **new)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        losses: bool = False,
    ) -> WithLosses:
        """source [batch, m], target [batch, n] integers; masks of these shapes (true = a token).

        With `losses`, (logits, auxiliary losses by name, as `encoder.0.mixer.balance`). Raises InputError.
        """
        if not losses:
            return self.decode(self.encode(source, source_mask), target, source_mask, target_mask)
        encoded, found = self.encode(source, source_mask, losses=True)
        logits, own = self.decode(encoded, target, source_mask, target_mask, losses=True)
        return logits, {**found, **own}

    def encode(self, source: Tensor, source_mask: Tensor | None = None, losses: bool = False) -> WithLosses:
        """What the decoder looks at: [batch, m, width]; with `losses`, (that, the encoder's losses)."""
        check_tokens("source", source, source_mask, "source_mask")
        found: Losses | None = {} if losses else None
        x = self.source_positions(self.embedding(source) * self.scale)
        encoded = self.source_norm(self._through("encoder", x, found, source_mask))
        return encoded if found is None else (encoded, found)

    def decode(
        self,
        encoded: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        at: Tensor | None = None,
        losses: bool = False,
    ) -> WithLosses:
        """Logits [batch, n, vocabulary] of a target after a source that `encode` has encoded; (logits, losses) too.

        With `at` [k], places counted through all rows (row * n + position), logits [k, vocabulary] of these alone.
        """
        check_tokens("target", target, target_mask, "target_mask")
        if target.shape[0] != encoded.shape[0]:
            raise InputError(f"'target' has batch {target.shape[0]}, 'source' has {encoded.shape[0]}.")
        table = self.embedding if self.target_embedding is None else self.target_embedding
        found: Losses | None = {} if losses else None
        x = self.target_positions(table(target) * self.scale)
        x = self._through("decoder", x, found, target_mask, encoded, source_mask)
        x = x if at is None else x.flatten(0, 1).index_select(0, at)
        logits = F.linear(self.norm(x), table.weight if self.output is None else self.output.weight)
        return logits if found is None else (logits, found)
