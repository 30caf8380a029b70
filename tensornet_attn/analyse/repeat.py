"""Random tokens that are repeated: the sequences on which induction heads show."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tensornet_attn.errors import InputError

Tensor = torch.Tensor


def repeated_tokens(vocabulary: int | Sequence[int], period: int, batch: int = 8, seed: int = 0) -> Tensor:
    """Sequences of random tokens, each repeated once: [batch, 2 * period] int64.

    `vocabulary`: the number of tokens, or the tokens to choose from. The `period` tokens of a sequence are drawn evenly
    without repetition, so that each has one first occurrence. Raises InputError.

    >>> tokens = repeated_tokens(100, period=4, batch=2)
    >>> tokens.shape, torch.equal(tokens[:, :4], tokens[:, 4:])
    (torch.Size([2, 8]), True)
    """
    known = torch.tensor(range(vocabulary) if isinstance(vocabulary, int) else vocabulary, dtype=torch.int64)
    if not 2 <= period <= len(known):
        raise InputError(f"period is {period!r}; with {len(known)} tokens to choose from it is from 2 to {len(known)}.")
    if batch < 1:
        raise InputError(f"batch is {batch!r}; it is a whole number from 1.")
    generator = torch.Generator().manual_seed(seed)
    once = torch.stack([torch.randperm(len(known), generator=generator)[:period] for _ in range(batch)])
    return known[torch.cat([once, once], 1)]
