"""Linear attention whose scores fade, q k^T exp(a - b): what is summed stands under a scale of its own, as in softmax.

Of the keys before a chunk exp(low - b) is summed, low the least b of them: no term is above 1, and exp(a - low), by
which queries read it, is no larger than what the scores of the key with that b fade by. a and b are numbers of a query
and a key, or of each of their features (w of them: 1, or as many as features).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.nn.functions.autocast import exact_products
from tensornet_attn.nn.functions.linear import causal_reads, divided_reads, key_reads, seen_terms, stretch_of
from tensornet_attn.nn.functions.masks import causal_mask, visible
from tensornet_attn.nn.functions.normalize import kept, normalized

GROUP = 16  # states that are summed by one matrix


def fading_attention(
    terms: list[tuple[Tensor, ...]],
    v: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
    eps: float = 0.0,
    normalize: bool = True,
    causal: bool = False,
    chunk: int = 64,
) -> Tensor:
    """`linear_attention` of terms (q, k, a, b), a [..., n, w] and b [..., m, w], and of terms (q, k) that do not fade."""
    if mask is not None:
        return dense_fading(terms, v, mask, key_mask, batch, heads, eps, normalize, causal)
    terms = seen_terms(terms, key_mask, heads)
    if not normalize:
        return sum(read for read, _ in fading_reads(terms, v, causal, chunk, False))
    if v.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(v.device.type):
        return divided_reads(fading_reads(terms, v, causal, chunk), eps)
    with exact_products(v):
        wide = torch.promote_types(v.dtype, torch.float32)
        terms = [tuple(x.to(torch.promote_types(x.dtype, wide)) for x in term) for term in terms]
        return divided_reads(fading_reads(terms, v.to(wide), causal, chunk), eps).to(v.dtype)


def fading_reads(
    terms: list[tuple[Tensor, ...]], v: Tensor, causal: bool, chunk: int, rows: bool = True
) -> list[tuple[Tensor, Tensor]]:
    """What each term reads, and the sums of its rows, which those that fade leave out where not `rows`."""
    found, width = [], v.shape[-1]
    wider = torch.cat((v, torch.ones_like(v[..., :1])), -1) if rows else v
    for q, k, *fading in terms:
        if not fading:
            found.append(causal_reads(q, k, v, chunk) if causal else key_reads(q, k, v))
        elif not causal:
            found.append(key_reads(*faded_sides(q, k, *fading), v))
        else:
            many = math.prod(torch.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v, *fading))))
            stretch = 0 if torch.compiler.is_compiling() else stretch_of(many, chunk)
            found.append(faded_reads(q, k, wider, *fading, stretch, chunk).tensor_split((width,), -1))
    return found


def dense_fading(
    terms: list[tuple[Tensor, ...]],
    v: Tensor,
    mask: Tensor,
    key_mask: Tensor | None,
    batch: int,
    heads: int,
    eps: float,
    normalize: bool,
    causal: bool,
) -> Tensor:
    """The same with every score made, for a mask [n, m], [batch..., n, m] or [batch..., heads..., n, m]."""
    own = causal_mask(terms[0][0].shape[-2], v.shape[-2], v.device) if causal else None
    keep, _ = visible(own, mask, key_mask, batch, heads)
    scores = sum(faded_scores(*term, keep) if len(term) > 2 else term[0] @ term[1].mT for term in terms)
    return (normalized(scores, keep, eps) if normalize else kept(scores, keep)) @ v


def faded_reads(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, stretch: int, chunk: int) -> Tensor:
    """Scores sum_d q k exp(a - b) times values over the keys not later than the query; the last stands at the last key.

    q [..., n, d], k [..., m, d], v [..., m, e], a [..., n, w], b [..., m, w] -> [..., n, e]. `stretch` keys at a time,
    in `chunk`s; 0: all at once, for traced code, where a loop would fix the length.
    """
    n, m = q.shape[-2], k.shape[-2]
    q, a = F.pad(q, (0, 0, m - n, 0)), F.pad(a, (0, 0, m - n, 0), value=-torch.inf)
    parts, before = [], None
    whole = [(q, k, v, a, b)]
    for part in zip(*(t.split(stretch, -2) for t in whole[0]), strict=True) if 0 < stretch < m else whole:
        out, before = faded_chunks(*part, chunk, before, 0 if stretch else 1)
        parts.append(out)
    return F.pad(parts[0] if len(parts) == 1 else torch.cat(parts, -2), (0, 0, n - m, 0))


def faded_chunks(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, chunk: int, before: tuple | None, least: int
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """What as many queries as keys read of these and of what stood before, and what stands now with its scale."""
    m, wide = k.shape[-2], torch.promote_types(q.dtype, torch.float32)
    chunks = (m + (least + 1) * chunk - 1) // chunk
    pads = zip((q, k, v, a, b), (0, 0, 0, -torch.inf, torch.inf), strict=True)
    q, k, v, a, b = (
        F.pad(t, (0, 0, 0, chunks * chunk - m), value=pad).unflatten(-2, (chunks, chunk)) for t, pad in pads
    )
    low = b.detach().amin(-2)  # ... chunks w
    low = torch.cat((low[..., :1, :] if before is None else before[1], low), -2).cummin(-2).values
    old, new = low[..., :-1, None, :], low[..., 1:, None, :]
    read = q * (a - old).to(wide).exp().to(q.dtype)
    a, b = (a - new).to(wide), (b - new).to(wide)  # small numbers, whatever the position
    adds = ((k * (-b).exp().to(k.dtype)).mT @ v).to(wide)
    first = torch.zeros_like(adds[..., :1, :, :]) if before is None else before[0]
    states = faded_sums(torch.cat((first, adds), -3), low, GROUP if least else min(GROUP, chunks + 1))
    out = faded_scores(q, k, a, b, ~ahead(chunk, a.device)) @ v + read @ states[..., :-1, :, :].to(v.dtype)
    return F.pad(out.flatten(-3, -2), (0, 0, 0, m - chunks * chunk)), (states[..., -1:, :, :], low[..., -1:, :])


def faded_scores(q: Tensor, k: Tensor, a: Tensor, b: Tensor, keep: Tensor | None) -> Tensor:
    """Scores [..., n, m] where `keep` says so, 0 elsewhere, where exp(a - b) may be too large a number."""
    one = a.shape[-1] == b.shape[-1] == 1
    by = a - b.mT if one else a[..., :, None, :] - b[..., None, :, :]
    if keep is not None:
        by = by.masked_fill(~keep if one else ~keep[..., None], -torch.inf)
    by = by.exp().to(q.dtype)
    return q @ k.mT * by if one else (q[..., :, None, :] * by * k[..., None, :, :]).sum(-1)


def faded_sides(q: Tensor, k: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys for scores that fade by exp(a - b) over all keys."""
    low, wide = b.detach().amin(-2, keepdim=True), torch.promote_types(q.dtype, torch.float32)
    return q * (a - low).to(wide).exp().to(q.dtype), k * (low - b).to(wide).exp().to(k.dtype)


def ahead(length: int, device: torch.device) -> Tensor:
    """Pairs whose key is later than the query: [length, length]."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def faded_sums(adds: Tensor, low: Tensor, group: int) -> Tensor:
    """States after each of some sums [..., c, d, e], state c the sum over i <= c of exp(low[c] - low[i]) adds[i].

    `low` [..., c, w] does not grow along c. One matrix a `group`, and one for the groups.
    """
    (count, d, e), w = adds.shape[-3:], low.shape[-1]
    groups = (count + group - 1) // group
    low = F.pad(low.mT, (0, groups * group - count), value=torch.inf).cummin(-1).values.unflatten(-1, (groups, group))
    adds = F.pad(adds, (0, 0, 0, 0, 0, groups * group - count)).unflatten(-2, (w, d // w)).movedim(-3, -4).flatten(-2)
    inside = faded_by(low, adds.dtype) @ adds.unflatten(-2, (groups, group))  # ... w groups group (d/w e)
    last = low[..., -1]  # ... w groups
    whole = faded_by(last, adds.dtype) @ inside[..., -1, :]
    earlier = F.pad(whole, (0, 0, 1, -1))[..., None, :]
    since = (low - F.pad(last, (1, -1), value=torch.inf)[..., None]).to(adds.dtype).exp()  # 0 in the first group
    found = (inside + since[..., None] * earlier).flatten(-3, -2)[..., :count, :]
    return found.unflatten(-1, (d // w, e)).movedim(-4, -3).flatten(-3, -2)


def faded_by(low: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(low[c] - low[i]) where i <= c, 0 elsewhere: [..., c, i]."""
    by = (low[..., :, None] - low[..., None, :]).masked_fill(ahead(low.shape[-1], low.device), -torch.inf)
    return by.to(dtype).exp()
