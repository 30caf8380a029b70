"""What the plain designs share: projections, who sees whom, and rows of attention, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Score = Callable[[int, int, int], Tensor]  # (head, query, key) -> a number
Pairing = Callable[[Tensor, Tensor], Tensor]  # (query, key) -> a number


@dataclass(frozen=True)
class Sight:
    """Which key j a query i may look at; the last of n queries stands at the last of m keys."""

    n: int
    m: int
    causal: bool = False
    key_mask: Tensor | None = None  # [m], true where one may look
    mask: Tensor | None = None  # [n, m], likewise

    def position(self, i: int) -> int:
        return i + self.m - self.n

    def __call__(self, i: int, j: int) -> bool:
        before = not self.causal or j <= self.position(i)
        allowed = self.mask is None or bool(self.mask[i, j])
        return before and allowed and self.key(j)

    def key(self, j: int) -> bool:
        return self.key_mask is None or bool(self.key_mask[j])

    def keys(self, i: int) -> list[int]:
        return [j for j in range(self.m) if self(i, j)]


def banded(sight: Sight, left: int, right: int) -> Sight:
    """The same sight where -right <= i - j <= left, nothing elsewhere."""

    def seen(i: int, j: int) -> bool:
        return sight(i, j) and -right <= sight.position(i) - j <= left

    mask = torch.tensor([[seen(i, j) for j in range(sight.m)] for i in range(sight.n)])
    return Sight(sight.n, sight.m, mask=mask)


def project(x: Tensor, weight: Tensor) -> Tensor:
    """The sum over f of x[f] weight[f, ...]."""
    return weighted(x, weight)


def project_all(rows: Sequence[Tensor], weight: Tensor) -> Tensor:
    return torch.stack([project(row, weight) for row in rows])


def biased(w: Weights, letter: str, rows: Tensor) -> Tensor:
    """x W + b, where there is one."""
    return project_all(rows, w[f"W{letter}"]) + w.get(f"b{letter}", 0)


def projections(w: Weights, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values."""
    return biased(w, "q", x), biased(w, "k", memory), biased(w, "v", memory)


def turned_all(
    w: Weights,
    x: Tensor,
    memory: Tensor,
    sight: Sight,
    base: float = 10000,
    part: float = 1,
    normed: Pairing | None = None,
    beside: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; the first two normed, by `normed(row, scale)`, and turned by their positions."""

    def turned(letter: str, rows: Tensor, first: int) -> Tensor:
        heads = biased(w, letter, rows)
        if normed:
            heads = [normed(row, w[f"{letter}_norm"]) for row in heads]
        return torch.stack([rotated(row, position, base, part, beside) for position, row in enumerate(heads, first)])

    return turned("q", x, sight.position(0)), turned("k", memory, 0), biased(w, "v", memory)


def ungrouped(w: Weights, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Weights, Tensor, Tensor, Tensor]:
    """Query head (g, j) as one of g j heads, beside the keys and values of its group g."""
    K, V = (torch.repeat_interleave(rows, Q.shape[2], 1) for rows in (K, V))
    return w | {"Wo": w["Wo"].flatten(0, 1)}, Q.flatten(1, 2), K, V


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


def share(amounts: Tensor, eps: float | Tensor = 0) -> Tensor:
    """Each amount divided by the sum along the last axis plus eps; zeros where all are zero."""
    total = amounts.sum(-1, keepdim=True) + eps
    return amounts / torch.where(total != 0, total, 1)


def seen_maps(amount: Score, heads: int, sight: Sight) -> Tensor:
    """A[a, i, j] = amount(a, i, j) at the keys that i sees; 0 at the others."""

    def row(a: int, i: int) -> Tensor:
        return torch.stack([amount(a, i, j) if sight(i, j) else zero() for j in range(sight.m)])

    return torch.stack([torch.stack([row(a, i) for i in range(sight.n)]) for a in range(heads)])


def rows_of(amount: Score, heads: int, sight: Sight, eps: float = 0) -> Tensor:
    """A[a, i, j] = amount(a, i, j) divided by its sum over the keys that i sees, plus eps; 0 at the others."""
    return share(seen_maps(amount, heads, sight), eps)


def softmax_rows(score: Score, heads: int, sight: Sight) -> Tensor:
    """A[a, i, j] = exp(score(a, i, j)) divided by its sum over the keys that i sees; 0 at the others."""
    return rows_of(lambda a, i, j: torch.exp(score(a, i, j)), heads, sight)


def scaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k / len(q) ** 0.5


def softmax_of(Q: Tensor, K: Tensor, sight: Sight, pairing: Pairing = scaled) -> Tensor:
    """softmax over j of the pairing of q_i and k_j, q_i . k_j / sqrt(d) where none is given, head by head."""
    return softmax_rows(lambda a, i, j: pairing(Q[i][a], K[j][a]), len(Q[0]), sight)


def headwise(w: Weights, Q: Tensor, K: Tensor, V: Tensor, sight: Sight, pairing: Pairing = scaled) -> Tensor:
    """The output of attention with the softmax of these pairings."""
    return merge(softmax_of(Q, K, sight, pairing), V, w["Wo"])


def attended(score: Score, w: Weights, V: Tensor, sight: Sight) -> Tensor:
    """The output of attention with the softmax of these scores."""
    return merge(softmax_rows(score, len(w["Wo"]), sight), V, w["Wo"])


def weighted(row: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """The sum over j of row[j] values[j]."""
    return sum((amount * value for amount, value in zip(row, values, strict=True)), torch.zeros_like(values[0]))


def read(A: Tensor, V: Tensor) -> Tensor:
    """o[i, a] = sum over j of A[a, i, j] V[j, a]; V[j] is [heads, d]."""
    return torch.stack([project_all(rows, V[:, a]) for a, rows in enumerate(A)], 1)


def joined(reads: Iterable[Sequence[Tensor]], Wo: Tensor) -> Tensor:
    """y_i = sum over heads a of reads[i, a] Wo[a]; Wo is [heads, d, f]."""
    return torch.stack([sum(map(project, row, Wo)) for row in reads])


def merge(A: Tensor, V: Tensor, Wo: Tensor) -> Tensor:
    """y_i = sum over heads a of (sum over j of A[a, i, j] V[j, a]) Wo[a]; V[j] is [heads, d], Wo [heads, d, f]."""
    return joined(read(A, V), Wo)


def by_head(head: Callable[[int], Sequence[Tensor]], Wo: Tensor) -> Tensor:
    """y_i = sum over heads a of head(a)[i] Wo[a]."""
    return joined(zip(*map(head, range(len(Wo))), strict=True), Wo)


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1: x + 1 above zero, exp(x) below."""
    return torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))


def rms(x: Tensor, eps: float = 1e-6, along: tuple[int, ...] = (-1,)) -> Tensor:
    """Divided by the root of the mean square along its last axis, or others."""
    return x / torch.sqrt((x * x).mean(along, keepdim=True) + eps)


def layer_normed(x: Tensor, eps: float = 1e-5) -> Tensor:
    return rms(x - x.mean(-1, keepdim=True), eps)


def rotated(vector: Tensor, position: int, base: float = 10000, part: float = 1, beside: bool = False) -> Tensor:
    """The first `part` of a vector's last axis, r entries: t and t + r / 2 turned by position * base ** (-2 t / r).

    `beside`: 2 t and 2 t + 1 in their place.
    """
    r = round(part * vector.shape[-1])
    out = list(vector.unbind(-1))
    for t in range(r // 2):
        angle = position * base ** (-2 * t / r)
        one, other = (2 * t, 2 * t + 1) if beside else (t, t + r // 2)
        a, b = vector[..., one], vector[..., other]
        out[one] = a * math.cos(angle) - b * math.sin(angle)
        out[other] = b * math.cos(angle) + a * math.sin(angle)
    return torch.stack(out, -1)


def softmax(logits: Tensor) -> Tensor:
    return torch.exp(logits) / torch.exp(logits).sum()


def largest(amounts: Tensor, k: int) -> list[int]:
    """The places of the k largest of amounts [e], the smaller place first among equals."""
    return sorted(range(len(amounts)), key=lambda e: (-amounts[e].item(), e))[:k]
