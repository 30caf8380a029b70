"""The delta rule with a decaying state, and with separate keys to erase and to write, in chunks of keys.

    S <- exp(decay) S + rate (write v^T - key (erase^T exp(decay) S))^T, read by the query: Gated DeltaNet, Kimi Delta
    Attention, Comba, RWKV-7.

The effect of a chunk on the state, `S <- keep S + add`, is the solution of a triangular system of decayed products, as
in `scan`. Only the states between chunks are computed sequentially. No exponent is above 0, or, where the decays of
channels are mild, above MILD / 2 of `fading`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.exponential import exp
from tensornet_attn.runtime.fading import faded_gradients, faded_products
from tensornet_attn.runtime.operations import batch_first, operation
from tensornet_attn.runtime.products import exact_products
from tensornet_attn.runtime.recomputed import recomputed
from tensornet_attn.runtime.scan import chunks_of, from_chunks, held_before, in_chunks, last_state, one_at_a_time

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
    q, first = q.to(operands[0]), past[0].to(operands[0]) if past else None
    return gated_in_chunks(q, *operands, first, undecayed, chunk, reads or read_gated).to(dtype)


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
            return after_one_gated_key(past[0].to(operands[0]), *operands, undecayed).to(past[0].dtype)
        batch, inputs = expanded(*operands, past[0])
        *inputs, first = inputs
        chunk = chunk_size(k.shape[-2], chunk)
        chunks = chunks_of(k, chunk)
        with exact_products(k):
            effects = Chunks([None if x is None else in_chunks(x, chunks, chunk) for x in inputs], undecayed)
            return last_state(effects.keeps, effects.adds, first, batch)


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
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """(erase, rated keys to erase at, rated keys to write at or None if equal, values, decays)."""
    dtype = torch.promote_types(v.dtype, torch.float32)
    decay = k.new_zeros(()).expand(*rate.shape, 1) if decay is None else decay
    k, v, rate, decay = (x.to(dtype) for x in (k, v, rate, decay))
    erase, write = (None if x is None else x.to(dtype) for x in (erase, write))
    if key_mask is not None:
        visible = key_mask[..., None]
        k, v, decay = (torch.where(visible, x, 0) for x in (k, v, decay))
        erase, write = (None if x is None else torch.where(visible, x, 0) for x in (erase, write))
        rate = torch.where(key_mask, rate, 0)
    decay, rate = decay.clamp(min=LEAST[dtype]), rate[..., None]
    return k if erase is None else erase, rate * k, None if write is None else rate * write, v, decay


def gated_in_chunks(
    q: Tensor,
    e: Tensor,
    k: Tensor,
    w: Tensor | None,
    v: Tensor,
    decay: Tensor,
    first: Tensor | None,
    undecayed: bool,
    chunk: int,
    reads,
) -> Tensor:
    """`gated_delta_rule` for the results of `gated_operands`, which broadcast."""
    if first is not None and q.shape[-2] == k.shape[-2] == 1 and one_at_a_time():
        with exact_products(q):
            return q @ after_one_gated_key(first, e, k, w, v, decay, undecayed)
    _, operands = expanded(q, e, k, w, v, decay, first)
    return reads(*operands, undecayed, chunk)


def after_one_gated_key(
    S: Tensor, e: Tensor, k: Tensor, w: Tensor | None, v: Tensor, decay: Tensor, undecayed: bool
) -> Tensor:
    """The S [..., d, e] after one key, from the results of `gated_operands`."""
    faded = exp(decay).mT * S
    with exact_products(k):
        erased = e @ (S if undecayed else faded)
    return faded + (k.mT * (v - erased) if w is None else w.mT * v - k.mT * erased)


def widened(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """x with its last dimensions expanded to these sizes."""
    return x.expand(*x.shape[: x.ndim - len(sizes)], *sizes)


def expanded(*operands: Tensor | None) -> tuple[torch.Size, list]:
    """The common batch of the operands, and the operands expanded to it."""
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in operands if x is not None))
    return batch, [None if x is None else x.expand(*batch, -1, -1) for x in operands]


def chunk_size(keys: int, max_chunk: int) -> int:
    """A power of two, at most `max_chunk`, and no larger than needed for this many keys."""
    return 1 << min(max(max_chunk, 1).bit_length() - 1, max(keys - 1, 0).bit_length())


@torch.library.custom_op(operation("gated_reads"), mutates_args=())
def gated_reads(
    q: Tensor, e: Tensor, k: Tensor, w: Tensor | None, v: Tensor, decay: Tensor, first: Tensor | None,
    undecayed: bool, chunk: int,
) -> Tensor:  # fmt: skip
    """The values read: q [..., n, d], e, k and w [..., m, d], v [..., m, e], decay [..., m, 1 or d] -> [..., n, e].

    `first`: the state before the first key, [..., d, e], zeros if None.
    """
    with exact_products(k):
        return gated_reads_by_chunks(q, e, k, w, v, decay, first, undecayed, chunk)


def gated_reads_by_chunks(q, e, k, w, v, decay, first, undecayed: bool, chunk: int, hold=held_before) -> Tensor:
    """`gated_reads` as plain tensor code; `hold`: `held_before`, or a kernel with the same arguments."""
    shape, chunk = (*q.shape[:-1], v.shape[-1]), chunk_size(k.shape[-2], chunk)
    chunks = chunks_of(k, chunk)
    q, *operands = (None if x is None else in_chunks(x, chunks, chunk) for x in (q, e, k, w, v, decay))
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
        """`operands`: e, k, w or None, v, decay. Without q, leaves out what queries read, without w, what w writes."""
        e, k, w, v, decay = operands
        flat = e.shape[:2]
        total = decay.cumsum(-2)
        before = total - decay if undecayed else total
        self.v, self.erased, self.since = v, e * exp(before), exp(total[..., -1:, :] - total)
        self.fall = exp(total[..., -1, :])  # decay of the state over a chunk
        self.left, self.total, self.before = k * self.since, total, before
        self.scores, self.system = products(q, e, k, total, before, undecayed, flat)
        solved = v
        if w is not None:
            self.written = w * self.since
            self.write_scores, self.write_system = products(q, e, w, total, before, undecayed, flat)
            solved = -self.write_system @ v
        right_side = torch.cat((self.erased, solved), -1)
        right_side = torch.linalg.solve_triangular(self.system, right_side, upper=False, unitriangular=True)
        self.undone, self.writes = right_side.split((k.shape[-1], v.shape[-1]), -1)
        self.keeps = torch.diag_embed(self.fall.expand(*flat, k.shape[-1])) - self.left.mT @ self.undone
        self.adds = self.left.mT @ self.writes
        self.adds = self.adds if w is None else self.adds + self.written.mT @ v
        if q is not None:
            self.queries = q * exp(total)


def products(q, e, k, total, before, undecayed: bool, flat) -> tuple:
    """Scores of queries, if any, with keys up to theirs, the system of erase with earlier keys: [b, chunks, c, c]."""
    q, e, k, total, before = (None if x is None else x.flatten(0, 1) for x in (q, e, k, total, before))
    if q is None or undecayed:
        system = faded_products(e[:, :, None], k, before, total, True)[:, :, 0]
        scores = None if q is None else faded_products(q[:, :, None], k, total, total, False)[:, :, 0]
    else:
        scores, system = faded_products(torch.stack((q, e), 2), k, total, total, False).unbind(2)
        system = system.tril(-1)
    return None if scores is None else scores.unflatten(0, flat), system.unflatten(0, flat)


def products_gradients(g_scores, g_system, q, e, k, total, before, undecayed: bool, flat) -> tuple[Tensor, ...]:
    """The gradients of q, e and k from those of `products`."""
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
    g: Tensor, q: Tensor, e: Tensor, k: Tensor, w: Tensor | None, v: Tensor, decay: Tensor, first: Tensor | None,
    undecayed: bool, chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, e, k, w (empty if w is None), v and decay from that of the values read."""
    with exact_products(k):
        return gated_gradients_by_chunks(g, q, e, k, w, v, decay, first, undecayed, chunk)


def gated_gradients_by_chunks(g, q, e, k, w, v, decay, first, undecayed: bool, chunk: int, hold=held_before) -> tuple:
    """`gated_gradients` as differentiable plain tensor code; `g_x` is the gradient of x.

    exp(total) multiplies q and e and divides k and w, so the gradient of total is q g_q + e g_e - k g_k - w g_w.
    """
    shapes, chunk = [() if x is None else x.shape for x in (q, e, k, w, v, decay)], chunk_size(k.shape[-2], chunk)
    chunks = chunks_of(k, chunk)
    g, q, e, k, w, v, decay = (None if x is None else in_chunks(x, chunks, chunk) for x in (g, q, e, k, w, v, decay))
    effects, flat, width = Chunks((e, k, w, v, decay), undecayed, q), k.shape[:2], k.shape[-1]
    states = hold(effects.keeps, effects.adds, first)
    written = effects.writes - effects.undone @ states
    g_scores, g_written = g @ written.mT, effects.scores.mT @ g
    after = hold(effects.keeps.mT.flip(1), (effects.queries.mT @ g - effects.undone.mT @ g_written).flip(1))
    g_after = after.flip(1)  # of the state after a chunk
    g_writes = g_written + effects.left @ g_after
    g_solved = torch.cat((-g_writes @ states.mT, g_writes), -1)
    g_rated = torch.linalg.solve_triangular(effects.system.mT, g_solved, upper=True, unitriangular=True)
    g_system = -g_rated @ torch.cat((effects.undone, effects.writes), -1).mT
    g_erased, g_v = g_rated.split((width, v.shape[-1]), -1)
    of_products = products_gradients(g_scores, g_system, q, e, k, effects.total, effects.before, undecayed, flat)
    g_left = (written @ g_after.mT) * effects.since
    g_q, g_e, g_k = (x + y for x, y in zip((0, 0, g_left), of_products, strict=True))
    g_end, g_w = k * g_left, None
    if w is not None:
        g_scores, g_system = g @ v.mT, -g_v @ v.mT
        g_v = effects.write_scores.mT @ g - effects.write_system.mT @ g_v + effects.written @ g_after
        of_products = products_gradients(g_scores, g_system, q, e, w, effects.total, effects.before, undecayed, flat)
        g_left = (v @ g_after.mT) * effects.since
        g_q, g_e, g_w = (x + y for x, y in zip((g_q, g_e, g_left), of_products, strict=True))
        g_end = g_end + w * g_left
    g_q = g_q + (g @ states.mT) * exp(effects.total)
    g_e = g_e + g_erased * exp(effects.before)
    of_end = g_end.sum(-2, keepdim=True) + effects.fall[..., None, :] * (states * g_after).sum(-1)[..., None, :]
    g_total = q * g_q - k * g_k - (0 if w is None else w * g_w)  # of total, at each position
    by_erased = e * g_e
    g_total = g_total if undecayed else g_total + by_erased
    if decay.shape[-1] == 1:
        g_total, by_erased, of_end = (x.sum(-1, keepdim=True) for x in (g_total, by_erased, of_end))
    g_decay = g_total.flip(-2).cumsum(-2).flip(-2) + of_end
    if undecayed:
        g_decay = g_decay + by_erased.flip(-2).cumsum(-2).flip(-2) - by_erased
    gradients = zip((g_q, g_e, g_k, g_w, g_v, g_decay), shapes, strict=True)
    empty = g_q.new_empty((*shapes[0][:-2], 0, 0))
    return tuple(empty if x is None else from_chunks(x, shape) for x, shape in gradients)


@gated_reads.register_fake
def gated_reads_shape(q, e, k, w, v, decay, first, undecayed, chunk):
    """The shape of the values read."""
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@gated_gradients.register_fake
def gated_gradients_shapes(g, q, e, k, w, v, decay, *options):
    """The shapes of the gradients."""
    empty = (*q.shape[:-2], 0, 0)
    return tuple(q.new_empty(empty if x is None else x.shape) for x in (q, e, k, w, v, decay))


read_gated = recomputed(gated_reads, gated_gradients, gated_gradients_by_chunks, batch_first)
