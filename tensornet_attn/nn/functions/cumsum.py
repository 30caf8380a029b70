"""Sums over the keys of what is a product of a part of queries and one of keys."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.nn.functions.linear import seen_terms
from tensornet_attn.nn.functions.masks import causal_mask, visible
from tensornet_attn.nn.functions.normalize import added, masked_sum


def cumulative_sums(
    terms: list[tuple[Tensor, Tensor]],
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
    causal: bool = False,
    wide: bool = False,
) -> Tensor:
    """The sum over the visible keys of q k^T, added up over `terms`: q [..., n, d], k [..., m, d] -> [..., n].

    `batch` and `heads` count dimensions before the sequence. With a `mask` the products are made: it may hide any pair.
    `wide`: in float32 at least, for what differences are taken of.
    """
    if wide:
        terms = [tuple(x.to(torch.promote_types(x.dtype, torch.float32)) for x in term) for term in terms]
    if mask is not None:
        scores = sum(q @ k.mT for q, k in terms)
        own = causal_mask(scores.shape[-2], scores.shape[-1], scores.device) if causal else None
        keep, bias = visible(own, mask, key_mask, batch, heads)
        return masked_sum(added(scores, bias), keep)
    terms = seen_terms(terms, key_mask, heads)
    return sum((q * (summed_so_far(k, q.shape[-2]) if causal else k.sum(-2, keepdim=True))).sum(-1) for q, k in terms)


def summed_so_far(k: Tensor, n: int) -> Tensor:
    """The keys [..., m, d] up to each of n queries, the last of which stands at the last key, summed: [..., n, d]."""
    total = k.cumsum(-2, dtype=torch.promote_types(k.dtype, torch.float32)).to(k.dtype)
    return F.pad(total, (0, 0, n - k.shape[-2], 0))
