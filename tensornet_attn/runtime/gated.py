"""The delta rule with a decaying state, and with separate keys to erase and to write, in chunks of keys.

    S <- exp(decay) S + rate (write v^T - key (erase^T exp(decay) S))^T, read by the query: Gated DeltaNet, Kimi Delta
    Attention, Comba, RWKV-7.

The effect of a chunk on the state, `S <- keep S + add`, is the solution of a triangular system of decayed products (WY
form, after Yang et al. 2024), for all chunks at once; only the states between chunks are computed sequentially. Forward
and backward are one operation each: traced graphs do not depend on the number of chunks, and the backward saves only
the operands. No exponent is above 0, or, where the decays of channels are mild, above MILD / 2 of `fading`.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.exponential import exp
from tensornet_attn.runtime.fading import faded_gradients, faded_products
from tensornet_attn.runtime.maps import fewer_calls, with_padding
from tensornet_attn.runtime.operations import batch_first, operation
from tensornet_attn.runtime.products import exact_products
from tensornet_attn.runtime.recomputed import recomputed

LEAST = {torch.float32: -100.0, torch.float64: -750.0}  # smaller ones underflow to 0; clamping keeps sums finite


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    decay: Tensor | None = None,
    erase: Tensor | None = None,
    write: Tensor | None = None,
    undecayed: bool = False,
    key_mask: Tensor | None = None,
    chunk: int = 32,
    past: list[Tensor] | tuple[Tensor, ...] = (),
    steps: int = 1,
    reads=None,
) -> Tensor:
    """q [..., n, d], k, erase, write [..., m, d], v [..., m, e], rate [..., m], decay [..., m, 1 or d] -> [..., n, e].

    `decay`: logarithms, at most 0. `undecayed`: erase reads the state before the decay. `past`: S before the first key
    [..., d, e], without gradient. `chunk`: keys per chunk. `steps`: number of keys, erase, write, v and rate per
    position, applied one after another. `reads`: a replacement for `read_gated`. Computed in at least float32, also
    under autocast.
    """
    if steps > 1:
        q = F.pad(q[..., None, :], (0, 0, steps - 1, 0)).flatten(-3, -2)  # queries read after the last step
        decay, key_mask = by_steps(decay, key_mask, steps)
        read = gated_delta_rule(q, k, v, rate, decay, erase, write, undecayed, key_mask, chunk, past, reads=reads)
        return read[..., steps - 1 :: steps, :]
    n, m, dtype = q.shape[-2], k.shape[-2], v.dtype
    if past and n > m:
        raise ValueError(f"gated_delta_rule: {n} queries for {m} keys after a state; give no more queries than keys.")
    operands = gated_operands(k, v, rate, decay, erase, write, key_mask)
    q, first = q.to(operands[1]), past[0].to(operands[1]) if past else None
    if first is not None and n == m == 1 and fewer_calls():
        with exact_products(q):
            return (q @ after_one_gated_key(first, *operands, undecayed)).to(dtype)
    return (reads or read_gated)(*expanded(q, *operands, first), undecayed, chunk).to(dtype)


def gated_delta_state(
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    past: list[Tensor] | tuple[Tensor, ...],
    decay: Tensor | None = None,
    erase: Tensor | None = None,
    write: Tensor | None = None,
    undecayed: bool = False,
    key_mask: Tensor | None = None,
    chunk: int = 32,
    steps: int = 1,
) -> Tensor:
    """The S [..., d, e] of `gated_delta_rule` after the last key, without gradient."""
    if steps > 1:
        decay, key_mask = by_steps(decay, key_mask, steps)
    with torch.no_grad():
        operands = gated_operands(k, v, rate, decay, erase, write, key_mask)
        if k.shape[-2] == 1:
            return after_one_gated_key(past[0].to(operands[1]), *operands, undecayed).to(past[0].dtype)
        end = gated_end if torch.compiler.is_compiling() else end_of_chunks
        arguments = *expanded(*operands, past[0]), undecayed, chunk
        return end(*arguments)


@torch.library.custom_op(operation("gated_end"), mutates_args=())
def gated_end(
    e: Tensor | None, k: Tensor, w: Tensor | None, v: Tensor, rate: Tensor, decay: Tensor | None, first: Tensor,
    undecayed: bool, chunk: int,
) -> Tensor:  # fmt: skip
    """The state [..., d, e] after the last key, see `gated_reads`."""
    return end_of_chunks(e, k, w, v, rate, decay, first, undecayed, chunk)


def end_of_chunks(e, k, w, v, rate, decay, first, undecayed: bool, chunk: int) -> Tensor:
    """`gated_end` as plain tensor code."""
    chunk = chunk_size(k.shape[-2], chunk)
    chunks = chunks_of(k, chunk)
    with exact_products(k):
        operands = (None if x is None else in_chunks(x, chunks, chunk) for x in (e, k, w, v, rate, decay))
        effects = Chunks(operands, undecayed)
        S = first.to(effects.adds).reshape(effects.adds[:, 0].shape)
        for keep, add in zip(effects.keeps.unbind(1), effects.adds.unbind(1), strict=True):
            S = torch.baddbmm(add, keep, S)
    return S.reshape(first.shape).to(first.dtype)


def by_steps(decay: Tensor | None, key_mask: Tensor | None, steps: int) -> tuple[Tensor | None, Tensor | None]:
    """Repeats per-position operands for all steps: S decays at the first."""
    decay = None if decay is None else F.pad(decay[..., None, :], (0, 0, 0, steps - 1)).flatten(-3, -2)
    return decay, None if key_mask is None else key_mask.repeat_interleave(steps, -1)


def gated_operands(
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    decay: Tensor | None,
    erase: Tensor | None,
    write: Tensor | None,
    key_mask: Tensor | None,
) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor, Tensor, Tensor | None]:
    """(keys to erase or None if equal, keys, keys to write at or None if equal, values, rates [..., m, 1], decays)."""
    dtype = torch.promote_types(v.dtype, torch.float32)

    def seen(x: Tensor) -> Tensor:
        return x.to(dtype) if key_mask is None else torch.where(key_mask[..., None], x.to(dtype), 0)

    erase, write = (None if x is None else seen(x) for x in (erase, write))
    decay = None if decay is None else seen(decay).clamp(min=LEAST[dtype])
    return erase, seen(k), write, seen(v), seen(rate[..., None]), decay


def after_one_gated_key(
    S: Tensor,
    e: Tensor | None,
    k: Tensor,
    w: Tensor | None,
    v: Tensor,
    rate: Tensor,
    decay: Tensor | None,
    undecayed: bool,
) -> Tensor:
    """The S [..., d, e] after one key, from the results of `gated_operands`."""
    faded = S if decay is None else exp(decay).mT * S
    with exact_products(k):
        erased = (k if e is None else e) @ (S if undecayed else faded)
    return faded + (k.mT * (rate * (v - erased)) if w is None else w.mT * (rate * v) - k.mT * (rate * erased))


def widened(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """x with its last dimensions expanded to these sizes."""
    return x.expand(*x.shape[: x.ndim - len(sizes)], *sizes)


def expanded(*operands: Tensor | None) -> list:
    """The operands with their common batch."""
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in operands if x is not None))
    return [None if x is None else x.expand(*batch, -1, -1) for x in operands]


def chunk_size(keys: int, max_chunk: int) -> int:
    """A power of two, at most `max_chunk`, and no larger than needed for this many keys."""
    return 1 << min(max(max_chunk, 1).bit_length() - 1, max(keys - 1, 0).bit_length())


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


@torch.library.custom_op(operation("gated_reads"), mutates_args=())
def gated_reads(
    q: Tensor, e: Tensor | None, k: Tensor, w: Tensor | None, v: Tensor, rate: Tensor, decay: Tensor | None,
    first: Tensor | None, undecayed: bool, chunk: int,
) -> Tensor:  # fmt: skip
    """The values read: q [..., n, d], e, k and w [..., m, d], v [..., m, e], rate [..., m, 1],
    decay [..., m, 1 or d] -> [..., n, e].

    `first`: the state before the first key, [..., d, e], zeros if None.
    """
    with exact_products(k):
        return gated_reads_by_chunks(q, e, k, w, v, rate, decay, first, undecayed, chunk)


def gated_reads_by_chunks(q, e, k, w, v, rate, decay, first, undecayed: bool, chunk: int, hold=held_before) -> Tensor:
    """`gated_reads` as plain tensor code; `hold`: `held_before`, or a kernel with the same arguments."""
    shape, chunk = (*q.shape[:-1], v.shape[-1]), chunk_size(k.shape[-2], chunk)
    chunks = chunks_of(k, chunk)
    q, *operands = (None if x is None else in_chunks(x, chunks, chunk) for x in (q, e, k, w, v, rate, decay))
    effects = Chunks(operands, undecayed, q)
    states = hold(effects.keeps, effects.adds, first)
    read = effects.queries @ states + effects.scores @ (effects.writes - effects.undone @ states)
    return from_chunks(read if w is None else read + effects.write_scores @ effects.v, shape)


class Chunks:
    """The effect of chunks on the states before them; all tensors are [batch, chunks, chunk, .].

    At its keys a chunk writes `writes - undone S`, and v at w. Queries read `queries S`, `scores` times the written
    values, and `write_scores v`.
    """

    def __init__(self, operands, undecayed: bool, q=None):
        """`operands`: e, k, w, v, rate, decay. Without q, leaves out what queries read, without w, what w writes."""
        e, k, w, v, rate, decay = operands
        e = k if e is None else e
        self.k, self.w = k, w = rate * k, None if w is None else rate * w
        flat = k.shape[:2]
        total = None if decay is None else decay.cumsum(-2)
        before = total - decay if undecayed and decay is not None else total
        self.since = None if total is None else total[..., -1:, :] - total
        fall = (
            k.new_zeros(1) if total is None else total[..., -1, :]
        )  # logarithm of the decay of the state over a chunk
        self.v, self.erased, self.left = v, decayed(e, before), decayed(k, self.since)
        self.fall, self.total, self.before = exp(fall), total, before
        self.scores, self.system = products(q, e, k, total, before, undecayed, flat)
        solved = v
        if w is not None:
            self.written = decayed(w, self.since)
            self.write_scores, self.write_system = products(q, e, w, total, before, undecayed, flat)
            self.write_system = self.write_system.tril(-1)
            solved = -self.write_system @ v
        right_side = torch.cat((self.erased, solved), -1)
        self.solved = torch.linalg.solve_triangular(self.system, right_side, upper=False, unitriangular=True)
        self.undone, self.writes = self.solved.split((k.shape[-1], v.shape[-1]), -1)
        self.keeps = self.left.mT @ -self.undone
        self.keeps.diagonal(0, -2, -1).add_(self.fall)
        self.adds = self.left.mT @ self.writes
        self.adds = self.adds if w is None else self.adds + self.written.mT @ v
        if q is not None:
            self.queries = decayed(q, total)


def decayed(x: Tensor, logarithms: Tensor | None) -> Tensor:
    """exp(logarithms) x; x without logarithms."""
    return x if logarithms is None else x * exp(logarithms)


def products(q, e, k, total, before, undecayed: bool, flat) -> tuple:
    """Scores of queries, if any, with keys up to theirs, the system of erase with earlier keys: [b, chunks, c, c].

    What the system holds on and above the diagonal is arbitrary: no solver reads it.
    """
    if total is None:
        return None if q is None else (q @ k.mT).tril_(), e @ k.mT
    q, e, k, total, before = (None if x is None else x.flatten(0, 1) for x in (q, e, k, total, before))
    if q is None or undecayed:
        system = faded_products(e[:, :, None], k, before, total, True)[:, :, 0]
        scores = None if q is None else faded_products(q[:, :, None], k, total, total, False)[:, :, 0]
    else:
        scores, system = faded_products(torch.stack((q, e), 2), k, total, total, False).unbind(2)
    return None if scores is None else scores.unflatten(0, flat), system.unflatten(0, flat)


def products_gradients(g_scores, g_system, q, e, k, total, before, undecayed: bool, flat) -> tuple[Tensor, ...]:
    """The gradients of q, e and k from those of `products`."""
    if total is None:
        g_scores, g_system = g_scores.tril_(), g_system.tril_(-1)
        return g_scores @ k, g_system @ k, g_scores.mT @ q + g_system.mT @ e
    g_scores, g_system, q, e, k, total, before = (x.flatten(0, 1) for x in (g_scores, g_system, q, e, k, total, before))
    if undecayed:
        g_e, g_k = faded_gradients(g_system[:, :, None], e[:, :, None], k, before, total, True)
        g_q, g_k_of_scores = faded_gradients(g_scores[:, :, None], q[:, :, None], k, total, total, False)
        gradients = g_q[:, :, 0], g_e[:, :, 0], g_k + g_k_of_scores
    else:
        g = torch.stack((g_scores, g_system.tril(-1)), 2)
        g_rows, g_k = faded_gradients(g, torch.stack((q, e), 2), k, total, total, False)
        g_q, g_e = g_rows.unbind(2)
        gradients = g_q, g_e, g_k
    return tuple(x.unflatten(0, flat) for x in gradients)


@torch.library.custom_op(operation("gated_gradients"), mutates_args=())
def gated_gradients(
    g: Tensor, q: Tensor, e: Tensor | None, k: Tensor, w: Tensor | None, v: Tensor, rate: Tensor, decay: Tensor | None,
    first: Tensor | None, undecayed: bool, chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, e, k, w, v, rate and decay, empty for those that are None, from that of the values read."""
    with exact_products(k):
        return gated_gradients_by_chunks(g, q, e, k, w, v, rate, decay, first, undecayed, chunk)


def gated_gradients_by_chunks(
    g, q, e, k, w, v, rate, decay, first, undecayed: bool, chunk: int, hold=held_before
) -> tuple:
    """`gated_gradients` as differentiable plain tensor code; `g_x` is the gradient of x.

    exp(total) multiplies q and e and divides k and w, so the gradient of total is q g_q + e g_e - k g_k - w g_w.
    """
    shapes, chunk = [() if x is None else x.shape for x in (q, e, k, w, v, rate, decay)], chunk_size(k.shape[-2], chunk)
    chunks = chunks_of(k, chunk)
    g, q, e, k, w, v, rate, decay = (
        None if x is None else in_chunks(x, chunks, chunk) for x in (g, q, e, k, w, v, rate, decay)
    )
    effects, flat, width = Chunks((e, k, w, v, rate, decay), undecayed, q), k.shape[:2], k.shape[-1]
    own, key, write, k, w = e is None, k, w, effects.k, effects.w  # k and w are times the rate
    e = key if own else e
    states = hold(effects.keeps, effects.adds, first)
    written = effects.writes - effects.undone @ states
    g_scores, g_written = g @ written.mT, effects.scores.mT @ g
    after = hold(effects.keeps.mT.flip(1), (effects.queries.mT @ g - effects.undone.mT @ g_written).flip(1))
    g_after = after.flip(1)  # of the state after a chunk
    g_writes = g_written + effects.left @ g_after
    g_solved = torch.cat((-g_writes @ states.mT, g_writes), -1)
    g_solved = torch.linalg.solve_triangular(effects.system.mT, g_solved, upper=True, unitriangular=True)
    g_erased, g_v = g_solved.split((width, v.shape[-1]), -1)
    g_q, g_e, g_k = products_gradients(
        g_scores, -g_solved @ effects.solved.mT, q, e, k, effects.total, effects.before, undecayed, flat
    )
    g_left = decayed(written @ g_after.mT, effects.since)
    g_k, g_end, g_w = g_k + g_left, None if decay is None else (k * g_left).sum(-2, keepdim=True), None
    if w is not None:
        g_scores, g_system = g @ v.mT, -g_v @ v.mT
        g_v = effects.write_scores.mT @ g - effects.write_system.mT @ g_v + effects.written @ g_after
        of_products = products_gradients(g_scores, g_system, q, e, w, effects.total, effects.before, undecayed, flat)
        g_left = decayed(v @ g_after.mT, effects.since)
        g_q, g_e, g_w = (x + y for x, y in zip((g_q, g_e, g_left), of_products, strict=True))
        g_end = None if g_end is None else g_end + (w * g_left).sum(-2, keepdim=True)
    g_q = g_q + decayed(g @ states.mT, effects.total)
    g_e = g_e + decayed(g_erased, effects.before)
    g_decay = None
    if g_end is not None:
        of_end = g_end + effects.fall[..., None, :] * (states * g_after).sum(-1)[..., None, :]
        g_total = q * g_q - k * g_k - (0 if w is None else w * g_w)  # of total, at each position
        by_erased = e * g_e
        g_total = g_total if undecayed else g_total + by_erased
        if decay.shape[-1] == 1:
            g_total, by_erased, of_end = (x.sum(-1, keepdim=True) for x in (g_total, by_erased, of_end))
        g_decay = g_total.flip(-2).cumsum(-2).flip(-2) + of_end
        if undecayed:
            g_decay = g_decay + by_erased.flip(-2).cumsum(-2).flip(-2) - by_erased
    g_rate = (key * g_k).sum(-1, keepdim=True)
    if w is not None:
        g_rate, g_w = g_rate + (write * g_w).sum(-1, keepdim=True), rate * g_w
    g_k = g_e + rate * g_k if own else rate * g_k
    gradients = zip((g_q, None if own else g_e, g_k, g_w, g_v, g_rate, g_decay), shapes, strict=True)
    empty = (*shapes[0][:-2], 0, 0)
    return tuple(g_q.new_empty(empty) if x is None else from_chunks(x, shape) for x, shape in gradients)


@gated_end.register_fake
def gated_end_shape(e, k, w, v, rate, decay, first, undecayed, chunk):
    """The shape of the state."""
    return first.new_empty(first.shape)


@gated_reads.register_fake
def gated_reads_shape(q, e, k, w, v, rate, decay, first, undecayed, chunk):
    """The shape of the values read."""
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@gated_gradients.register_fake
def gated_gradients_shapes(g, q, e, k, w, v, rate, decay, *options):
    """The shapes of the gradients."""
    empty = (*q.shape[:-2], 0, 0)
    return tuple(q.new_empty(empty if x is None else x.shape) for x in (q, e, k, w, v, rate, decay))


read_gated = recomputed(gated_reads, gated_gradients, gated_gradients_by_chunks, batch_first)
