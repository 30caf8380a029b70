"""Causal language models, with memory of earlier segments where their designs have a context input."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.models import memory as memories
from tensornet_attn.models.block import Losses, gathered, last_norm_of
from tensornet_attn.models.embedding import Positions, check_tokens
from tensornet_attn.models.memory import Memory
from tensornet_attn.models.model import Model

Tensor = torch.Tensor


class LanguageModel(Model):
    """Logits of the next token at each position: [batch, n] -> [batch, n, vocabulary].

    >>> model = LanguageModel(vocabulary=9, length=8, width=16, layers=["mhsa_rope"])
    >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 9])
    """

    kind = "language_model"

    def _make(self, **new: Any) -> None:
        config = self.spec.config
        self.embedding = nn.Embedding(config.vocabulary, config.width, **new)
        self.positions = Positions(config, config.length, **new)
        self.norm = last_norm_of(config, **new)
        self.rows = config.memory
        self.output = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False, **new)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary, **new)) if config.output_bias else None

    def forward(
        self,
        tokens: Tensor,
        key_mask: Tensor | None = None,
        memory: Memory | None = None,
        at: Tensor | None = None,
        losses: bool = False,
    ) -> Tensor | tuple[Any, ...]:
        """tokens [batch, n] integers, key_mask [batch, n] (true = a token): logits [batch, n, vocabulary].

        With `memory`, that of the call before or `new_memory(batch)`, (logits, memory). With `at` [k], places counted
        through all rows (row * n + position), logits [k, vocabulary] of these alone. With `losses`, the auxiliary
        losses by name, as `layers.0.mixer.balance`, stand last: (logits, losses), or (logits, memory, losses). Raises
        InputError.
        """
        check_tokens("tokens", tokens, key_mask)
        found: Losses | None = {} if losses else None
        x = self.positions(self.embedding(tokens) * self.scale)
        if memory is None:
            logits = self._logits(self._through("layers", x, found, key_mask), at)
            return logits if found is None else (logits, found)
        made = self._remembering(x, key_mask, memory, at, found)
        return made if found is None else (*made, found)

    def new_memory(self, batch: int) -> Memory:
        """The memory before the first segment. Raises InputError for a model without."""
        self._check_memory()
        weight = self.embedding.weight
        return memories.empty(self._contexts, batch, weight.shape[1], weight.device, weight.dtype)

    @property
    def _contexts(self) -> int:
        return sum(block.mixer.context for block in self.layers)

    def _check_memory(self) -> None:
        if not self.rows:
            raise InputError(f"'{self.spec.name}' has no memory; give it rows, e.g. 'memory: 128' in its description.")

    def _remembering(
        self, x: Tensor, key_mask: Tensor | None, memory: Memory, at: Tensor | None, found: Losses | None
    ) -> tuple[Tensor, Memory]:
        self._check_memory()
        batch, n, width = x.shape
        memories.check(memory, self._contexts, batch, width)
        keep, states, contexts = memories.seen(memory, key_mask, batch, n), iter(memory.states), []
        wanted, all_found = found is not None, {} if found is None else found
        for place, block in enumerate(self.layers):
            if block.mixer.context:
                contexts.append(torch.cat([next(states), x], 1))
                made = block.after(contexts[-1], n, keep, key_mask, losses=wanted)
            else:
                made = block(x, key_mask, losses=wanted)
            x = gathered(made, f"layers.{place}", all_found)
        return self._logits(x, at), memories.after(contexts, keep, self.rows)

    def _logits(self, x: Tensor, at: Tensor | None) -> Tensor:
        weight = self.embedding.weight if self.output is None else self.output.weight
        x = x if at is None else x.flatten(0, 1).index_select(0, at)
        return F.linear(self.norm(x), weight, self.output_bias)
