"""Fast weights written by the delta rule (Schlag et al. 2021): `gated_delta_rule` without a decay, and sums of keys."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.gated import gated_delta_rule, gated_delta_state
from tensornet_attn.runtime.maps import divided, with_padding


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    key_mask: Tensor | None = None,
    normalize: str = "none",
    eps: float = 0.0,
    chunk: int = 64,
    past: list[Tensor] | tuple[Tensor, ...] = (),
) -> Tensor:
    """S += rate (v - S k) k^T, read by q: q [..., n, d], k [..., m, d], v [..., m, e], rate [..., m] -> [..., n, e].

    `chunk`: keys per chunk, at most 32 where keys are that narrow. `past`, without gradient: S before the first key
    [..., d, e]; with `normalize` also the sum of the keys [..., d]; for "both" also the number of visible keys [...].
    Computed in at least float32, also under autocast.
    """
    n, m, dtype = q.shape[-2], k.shape[-2], v.dtype
    if past and n > m:
        raise ValueError(f"delta_rule: {n} queries for {m} keys after a state; give no more queries than keys.")
    q, used, v, rate, z = delta_operands(k, v, rate, key_mask, normalize, eps, past, q)
    read = gated_delta_rule(q, used, v, rate, chunk=min(chunk, max(32, k.shape[-1])), past=past[:1])
    if normalize == "none":
        return read.to(dtype)
    z = with_padding(z, (0, 0, n - m, 0))  # the last query is at the last key; a negative width crops
    return divided(read, (z * q).sum(-1, keepdim=True) + eps).to(dtype)


def delta_state(
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    past: list[Tensor] | tuple[Tensor, ...],
    key_mask: Tensor | None = None,
    normalize: str = "none",
    eps: float = 0.0,
    chunk: int = 64,
) -> Tensor:
    """The S [..., d, e] of `delta_rule` after the last key, without gradient."""
    with torch.no_grad():
        _, k, v, rate, _ = delta_operands(k, v, rate, key_mask, normalize, eps, past)
    return gated_delta_state(k, v, rate, past, chunk=chunk)


def delta_operands(
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    key_mask: Tensor | None,
    normalize: str,
    eps: float,
    past: list[Tensor] | tuple[Tensor, ...],
    q: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Query (the key if q is None), key, value and rate that S is written with, and the sums of the keys."""
    q, k, v, rate = (t.to(torch.promote_types(v.dtype, torch.float32)) for t in (k if q is None else q, k, v, rate))
    if key_mask is not None:
        k, v = (torch.where(key_mask[..., None], x, 0) for x in (k, v))
        rate = torch.where(key_mask, rate, 0)
    if normalize == "none":
        return q, k, v, rate, k
    z = k.cumsum(-2)
    before = past[1].to(z)[..., None, :] if past else None
    count = past[2][..., None] if len(past) > 2 else None
    z = z if before is None else z + before
    used, rate = keys_by_sum(k, z, rate, key_mask, eps, before, count) if normalize == "both" else (k, rate)
    return q, used, v, rate, z


def keys_by_sum(
    k: Tensor,
    z: Tensor,
    rate: Tensor,
    key_mask: Tensor | None,
    eps: float,
    before: Tensor | None = None,
    count: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """k / (z'.k + eps) and rate (z'.k), z' the sum of earlier keys; z'.k is set to 1 at the first visible key.

    `before` [..., 1, d] and `count` [..., 1]: sum and number of visible keys before the first key.
    """
    shifted = F.pad(z, (0, 0, 1, -1)) if z.shape[-2] else z
    if before is not None:
        shifted = torch.cat((before.expand_as(z[..., :1, :]), z[..., :-1, :]), -2)
    scale = (shifted * k).sum(-1)  # ... m
    visible = torch.ones_like(scale, dtype=torch.bool) if key_mask is None else key_mask.expand_as(scale)
    scale = torch.where(visible.cumsum(-1) + (0 if count is None else count) > 1, scale, 1)
    return divided(k, scale[..., None] + eps), rate * scale
