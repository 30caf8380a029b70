"""Fast weights written by the delta rule (Schlag et al. 2021), in chunks of keys: time and memory linear in the keys.

The writes of a chunk are the solution of a triangular system (WY form, after Yang et al. 2024), for all chunks at once;
only the fast weights between chunks are computed sequentially. Forward and backward are one operation each: traced
graphs do not depend on the number of chunks, and the backward saves only the operands.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.maps import divided, with_padding
from tensornet_attn.runtime.operations import batch_first, operation
from tensornet_attn.runtime.products import exact_products
from tensornet_attn.runtime.recomputed import recomputed


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

    `chunk`: keys per chunk. `past`, without gradient: S before the first key [..., d, e]; with `normalize` also the sum
    of the keys [..., d]; for "both" also the number of visible keys [...]. Computed in at least float32, also under
    autocast.
    """
    n, m, dtype = q.shape[-2], k.shape[-2], v.dtype
    if past and n > m:
        raise ValueError(f"delta_rule: {n} queries for {m} keys after a state; give no more queries than keys.")
    q, used, v, rate, z = delta_operands(k, v, rate, key_mask, normalize, eps, past, q)
    first = past[0].to(q) if past else None
    read = read_in_chunks(q, used, v, rate, chunk, first)
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
        operands = k, v, rate[..., None]
        if k.shape[-2] == 1:
            return after_one_key(past[0].to(k), *operands).to(past[0].dtype)
        batch = torch.broadcast_shapes(past[0].shape[:-2], *(x.shape[:-2] for x in operands))
        chunk = max(1, min(chunk, k.shape[-2]))
        k, v, rate = (in_chunks(x.expand(*batch, -1, -1), chunks_of(k, chunk), chunk) for x in operands)
        with exact_products(k):
            undone, writes, _ = chunk_writes(k, v, rate)
            return last_state(chunk_keeps(k, undone), k.mT @ writes, past[0], batch)


def last_state(keeps: Tensor, adds: Tensor, first: Tensor, batch: tuple[int, ...]) -> Tensor:
    """The fast weights [batch..., d, e] after the last chunk, see `held_before`."""
    S = first.to(adds).expand(*batch, -1, -1).reshape(adds[:, 0].shape)
    for keep, add in zip(keeps.unbind(1), adds.unbind(1), strict=True):
        S = torch.baddbmm(add, keep, S)
    return S.reshape(*batch, *S.shape[-2:]).to(first.dtype)


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


def read_in_chunks(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, chunk: int, first: Tensor | None = None) -> Tensor:
    """The delta rule without normalisation, for operands that broadcast; `first`: S before the first key."""
    operands = [q, k, v, rate[..., None], *([] if first is None else [first])]
    if first is not None and q.shape[-2] == k.shape[-2] == 1 and one_at_a_time():
        with exact_products(q):
            return q @ after_one_key(first, *operands[1:4])
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in operands))
    q, k, v, rate, *first_ = (x.expand(*batch, -1, -1) for x in operands)
    chunk = chunk if torch.compiler.is_compiling() else max(1, min(chunk, k.shape[-2]))
    return read_delta(q, k, v, rate, first_[0] if first_ else None, chunk)


def one_at_a_time() -> bool:
    """Whether a call with one key can run directly: not traced, and without gradients."""
    return not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def after_one_key(S: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """S + rate (v - S k) k^T for one key: k [..., 1, d], v [..., 1, e], rate [..., 1, 1], S [..., d, e]."""
    with exact_products(k):
        return S + k.mT * (rate * (v - k @ S))


@torch.library.custom_op(operation("delta_reads"), mutates_args=())
def delta_reads(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, first: Tensor | None, chunk: int) -> Tensor:
    """The values read: q [..., n, d], k [..., m, d], v [..., m, e], rate [..., m, 1] -> [..., n, e].

    `first`: the fast weights before the first key, [..., d, e], zeros if None.
    """
    with exact_products(k):
        return reads_by_chunks(q, k, v, rate, first, chunk)


def reads_by_chunks(q, k, v, rate, first, chunk: int) -> Tensor:
    """`delta_reads` as plain tensor code."""
    shape, chunks = (*q.shape[:-1], v.shape[-1]), chunks_of(k, chunk)
    q, k, v, rate = (in_chunks(x, chunks, chunk) for x in (q, k, v, rate))
    undone, writes, _ = chunk_writes(k, v, rate)
    states = held_before(chunk_keeps(k, undone), k.mT @ writes, first)
    return from_chunks(q @ states + (q @ k.mT).tril_() @ (writes - undone @ states), shape)


@torch.library.custom_op(operation("delta_gradients"), mutates_args=())
def delta_gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, first: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and rate from that of the values read."""
    with exact_products(k):
        return gradients_by_chunks(g, q, k, v, rate, first, chunk)


def gradients_by_chunks(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, first: Tensor | None, chunk: int
) -> tuple:
    """`delta_gradients` as differentiable plain tensor code; `g_x` is the gradient of x."""
    shapes, width = [x.shape for x in (q, k, v, rate)], k.shape[-1]
    chunks = chunks_of(k, chunk)
    g, q, k, v, rate = (in_chunks(x, chunks, chunk) for x in (g, q, k, v, rate))
    undone, writes, system = chunk_writes(k, v, rate)
    keeps = chunk_keeps(k, undone)
    states = held_before(keeps, k.mT @ writes, first)
    written = writes - undone @ states
    g_scores, g_written = (g @ written.mT).tril_(), (q @ k.mT).tril_().mT @ g
    after = held_before(keeps.mT.flip(1), (q.mT @ g - undone.mT @ g_written).flip(1))
    g_after = after.flip(1)  # of the state after a chunk
    g_writes = g_written + k @ g_after
    g_solved = torch.cat((-g_writes @ states.mT, g_writes), -1)
    g_rated = torch.linalg.solve_triangular(system.mT, g_solved, upper=True, unitriangular=True)
    g_system = (g_rated @ torch.cat((undone, writes), -1).mT).tril_(-1)
    g_key, g_value = g_rated[..., :width] - g_system @ k, g_rated[..., width:]  # of rate k and rate v
    g_k = written @ g_after.mT + g_scores.mT @ q - g_system.mT @ (rate * k) + rate * g_key
    g_rate = (g_key * k).sum(-1, keepdim=True) + (g_value * v).sum(-1, keepdim=True)
    gradients = g @ states.mT + g_scores @ k, g_k, rate * g_value, g_rate
    return tuple(from_chunks(x, shape) for x, shape in zip(gradients, shapes, strict=True))


def chunk_writes(k: Tensor, v: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A chunk writes `writes - undone S` at its keys: undone [..., c, d], writes [..., c, e], their system [..., c, c].

    The unit diagonal and the zeros above it are not stored: no solver reads them.
    """
    rated = rate * torch.cat((k, v), -1)
    system = rated[..., : k.shape[-1]] @ k.mT
    solved = torch.linalg.solve_triangular(system, rated, upper=False, unitriangular=True)
    return *solved.split((k.shape[-1], v.shape[-1]), -1), system


def chunk_keeps(k: Tensor, undone: Tensor) -> Tensor:
    """The factor of a chunk on the fast weights before it, `1 - k^T undone`: [..., d, d]."""
    return torch.eye(k.shape[-1], dtype=k.dtype, device=k.device) - k.mT @ undone


def held_before(keeps: Tensor, adds: Tensor, first: Tensor | None = None) -> Tensor:
    """The fast weights before each chunk, S = keeps S + adds: adds [batch, chunks, d, e] -> the same.

    `first`: those before the first chunk, [..., d, e], zeros if None.
    """
    S, states = torch.zeros_like(adds[:, 0]) if first is None else first.reshape(adds[:, 0].shape), []
    for keep, add in zip(keeps.unbind(1), adds.unbind(1), strict=True):
        states.append(S)
        S = torch.baddbmm(add, keep, S)
    return torch.stack(states, 1)


def chunks_of(k: Tensor, chunk: int) -> int:
    """The number of chunks of keys [..., m, d], at least one."""
    return max(1, (k.shape[-2] + chunk - 1) // chunk)


def in_chunks(x: Tensor, chunks: int, chunk: int) -> Tensor:
    """[..., length, d] -> [batch, chunks, chunk, d]: the last rows, padded with zeros in front."""
    x = with_padding(x, (0, 0, chunks * chunk - x.shape[-2], 0)).contiguous()
    return x.reshape(math.prod(x.shape[:-2]), chunks, chunk, x.shape[-1])


def from_chunks(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[batch, chunks, chunk, d] -> [..., length, d] of this shape: the last rows, padded with zeros in front."""
    x = x.flatten(1, 2)
    return with_padding(x, (0, 0, shape[-2] - x.shape[1], 0)).reshape(shape).contiguous()


@delta_reads.register_fake
def delta_reads_shape(q, k, v, rate, first, chunk):
    """The shape of the values read."""
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@delta_gradients.register_fake
def delta_gradients_shapes(g, *operands):
    """The shapes of the gradients."""
    return tuple(x.new_empty(x.shape) for x in operands[:4])


read_delta = recomputed(delta_reads, delta_gradients, gradients_by_chunks, batch_first)
